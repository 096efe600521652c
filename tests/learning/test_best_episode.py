"""Which episode counts as the best."""

from dataclasses import replace

import equinox as eqx
import numpy as np
import pytest
from small import FAMILY, MIRROR, corridor

from mufield import M3UCRL, AbstractSystem, Problem, SimulatedSystem, learn, point_mass
from mufield.learning.metrics import Earned, began_elsewhere, best_episode


def test_only_episodes_that_began_as_the_problem_says_compare():
    assert best_episode([Earned(-3.0), Earned(-1.0, 0.5), Earned(-2.0), Earned(-2.0)]) == 2
    assert best_episode([Earned(-3.0, 1.0), Earned(-1.0, 0.5)]) == 1


def test_a_start_that_was_planned_counts_however_small_the_difference():
    initial = np.array([0.5, 0.5, 0.0])
    planned = np.array([0.52, 0.48, 0.0])
    assert began_elsewhere(initial, planned, planned, 4) == pytest.approx(0.02)
    assert began_elsewhere(initial, initial, planned, 4) is None


def test_a_few_agents_are_never_spread_as_their_distribution():
    cells = 400
    initial = np.full(cells, 1 / cells)
    rng = np.random.default_rng(0)
    for agents in (1, 10, 1000, 100_000):
        observed = rng.multinomial(agents, initial) / agents
        for planned in (initial, np.full(cells, np.nan)):
            assert began_elsewhere(initial, planned, observed, agents) is None
    corner = np.zeros(cells)
    corner[:40] = 1 / 40
    assert began_elsewhere(initial, initial, corner, 1000) == pytest.approx(0.9)
    half = np.where(np.arange(cells) < cells // 2, 2 / cells, 0.0)
    assert began_elsewhere(initial, initial, half, 1000) == pytest.approx(0.5)
    for agents, places in ((120, 64), (1000, 400), (50, 9), (5, 3)):
        initial = rng.dirichlet(np.ones(places))
        for observed in rng.multinomial(agents, initial, size=1000) / agents:
            assert began_elsewhere(initial, initial, observed, agents) is None
    # Where the problem has nobody, chance leads nobody.
    assert began_elsewhere(corner, corner, np.eye(cells)[-1], 1) == pytest.approx(1.0)


class FirstElsewhere(AbstractSystem):
    """Its first episode begins at the other end of the corridor and is paid much more."""

    system: SimulatedSystem
    problem: Problem
    first: list[bool]

    def run(self, policy, key, *, agents=1):
        if not self.first:
            return self.system.run(policy, key, agents=agents)
        self.first.pop()
        end = point_mass(self.problem.grid, self.problem.grid.n_cells - 1)
        episode = self.system.from_step(0, end).run(policy, key, agents=agents)
        return replace(episode, rewards=episode.rewards + 10.0)


def test_a_run_does_not_call_an_episode_from_elsewhere_its_best():
    system = FirstElsewhere(corridor(), corridor().problem, [True])
    learner = M3UCRL(system.problem, FAMILY, MIRROR)
    result = learn(system, learner, episodes=1, progress=False)
    assert result.metrics[0].elsewhere == 1.0
    assert "by what it earned" not in result.best(cautious=True).how
    again = FirstElsewhere(corridor(), corridor().problem, [True])
    result = learn(again, learner, episodes=2, progress=False)
    first, second = result.metrics
    assert first.value > second.value == second.best
    assert second.elsewhere is None
    assert eqx.tree_equal(result.best_profile, result.profile)
