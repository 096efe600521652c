"""Plans do not depend on the units of reward and length, nor on where rewards and steps begin."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest

import mufield as mf
from mufield.planning import BPTT

pytestmark = pytest.mark.slow

CELLS, STEPS = 12, 3


@dataclass(frozen=True)
class Units:
    """How a problem is written down: r' = shift + unit r, s' = length s, first step."""

    unit: float = 1.0
    shift: float = 0.0
    length: float = 1.0
    first: int = 0

    def system(self, capped=False):
        grid = mf.Grid.box(-2.0 * self.length, 2.0 * self.length, (CELLS,))
        centres = jnp.asarray(grid.centres[:, 0])

        def motion(state, action, mu):
            drift = 0.1 * self.length * (mu.step - self.first)
            return state + 0.8 * action + 0.2 * (jnp.dot(mu.mass, centres) - state) + drift

        def reward(state, action, mu):
            where, effort = state[0] / self.length, (action[0] / self.length) ** 2
            wanted = 1.0 + 0.2 * (mu.step - self.first)
            paid = -((where - wanted) ** 2) - 0.3 * effort - 0.2 * mf.log_mass(mu.here)
            return self.shift + self.unit * paid

        start = np.exp(-2.0 * (grid.centres[:, 0] / self.length + 0.8) ** 2)
        limit = mf.constraints.mass_at_most(grid, lambda s: s[0] > self.length, 0.2)
        problem = mf.Problem(
            space=grid,
            actions=mf.Box(-1.5 * self.length, 1.5 * self.length),
            reward=reward,
            horizon=self.first + STEPS,
            initial=start / start.sum(),
            noise=0.3 * self.length,
            max_move=2.5 * self.length,
            constraints=[limit] if capped else (),
        )
        system = mf.SimulatedSystem(problem, motion)
        return system.from_step(self.first, problem.initial) if self.first else system

    def plain(self, value):
        """J in the plain units."""
        return (float(value) - STEPS * self.shift) / self.unit


PLAIN = Units()
OTHERS = [Units(1e6, 3e5, 1e-3, 2), Units(1e-6, -1e-5, 1e3)]


def mirror(flow, motion):
    return mf.MirrorAscent(40, bound=False).solve(mf.MoveFlow(flow, motion))


def table(flow, motion):
    return mf.plan(flow, motion, ascent=BPTT(steps=60, learning_rate=0.1))


def random_table(flow, motion):
    return mf.plan(flow, motion, random=True, ascent=BPTT(steps=60, learning_rate=0.1))


def network(flow, motion):
    ascent = BPTT(steps=20, learning_rate=3e-3)
    return mf.plan(flow, motion, mf.Network(width=4, depth=1), ascent=ascent)


CASES = [
    (mirror, False),
    (mirror, True),
    (table, False),
    (table, True),
    (random_table, True),
    pytest.param(network, False, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("method", "capped"), CASES)
def test_a_plan_is_the_same_in_all_units(method, capped):
    flow, motion = PLAIN.system(capped).reveal()
    best = method(flow, motion)
    reference = flow.mean_actions(best.profile, flow.rollout(best.profile, motion).mass)
    assert float(jnp.ptp(reference)) > 0.5
    for units in OTHERS:
        if method in (random_table, network):  # whose random numbers depend on the horizon
            units = replace(units, first=0)
        flow, motion = units.system(capped).reveal()
        found = method(flow, motion)
        assert units.plain(found.value) == pytest.approx(float(best.value), rel=1e-3)
        mass = flow.rollout(found.profile, motion).mass
        moved = (flow.mean_actions(found.profile, mass) / units.length)[units.first :]
        heavy = np.asarray(mass[units.first : -1]) > 0.01
        apart = np.abs(np.asarray(moved - reference))[..., 0]
        assert apart[heavy].max() < 0.05
        if capped:
            margins = np.asarray(found.margins)[units.first :]
            np.testing.assert_allclose(margins, np.asarray(best.margins), atol=5e-3)


def test_multipliers_have_the_unit_of_the_reward():
    plain, large = (
        mirror(*units.system(capped=True).reveal()).multipliers for units in (PLAIN, Units(1e4))
    )
    assert float(jnp.max(plain)) > 0
    np.testing.assert_allclose(large / 1e4, plain, rtol=1e-2, atol=1e-3 * float(jnp.max(plain)))


@pytest.mark.nightly
def test_learning_is_the_same_in_all_units():
    figures = []
    for units in (PLAIN, Units(1e6, 3e5, 1e-3), Units(1e-6, -1e-5, 1e3)):
        system = units.system()
        learner = mf.M3UCRL(system.problem, planner=mf.MirrorPlanner(sweeps=20))
        found = mf.learn(system, learner, episodes=3, agents=4, seed=0, progress=False)
        figures.append([units.plain(row.value) for row in found.metrics])
    for other in figures[1:]:
        assert other == pytest.approx(figures[0], rel=1e-2)
