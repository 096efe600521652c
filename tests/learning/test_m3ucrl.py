import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import FAMILY, MIRROR, NETWORK, TABLE, SureFamily, corridor

import mufield
from mufield import (
    Bonus,
    Flow,
    GaussianProcess,
    GradientPlanner,
    Greedy,
    Hallucinated,
    MirrorPlanner,
    MoveFlow,
    Thompson,
    make,
    random_policy,
)
from mufield.errors import UserError
from mufield.learning.diagnostics import measure
from mufield.learning.m3ucrl import M3UCRL
from mufield.learning.run import learn
from mufield.learning.state import PlanError, Use

pytestmark = pytest.mark.slow

KEY = jax.random.key(3)


def one_episode(learner, state):
    plan = learner.ask(state)
    episode = corridor().run(plan.profile, state.key_for(Use.RUN))
    return plan, episode, learner.tell(state, episode, plan)


@pytest.fixture(scope="module")
def learner():
    return M3UCRL(corridor().problem, FAMILY, MIRROR)


@pytest.mark.parametrize(
    ("planner", "optimism"),
    [
        (MIRROR, Hallucinated()),
        (MIRROR, Bonus()),
        (MIRROR, Thompson()),
        (MIRROR, Greedy()),
        (TABLE, Hallucinated()),
        (NETWORK, Hallucinated()),
        pytest.param(NETWORK, Greedy(), marks=pytest.mark.nightly),
    ],
)
def test_two_episodes_with_every_planner_and_optimism(planner, optimism):
    learner = M3UCRL(corridor().problem, SureFamily(), planner, optimism=optimism)
    state, before = learner.init(KEY), -np.inf
    for count in (1, 2):
        plan, episode, state = one_episode(learner, state)
        assert state.episode == count
        assert len(state.data) == 4 * count
        # No trace of eta: the system has one action axis, and refuses others.
        assert episode.actions.shape[-1] == 1
        assert (float(plan.control) > 0) == isinstance(optimism, Hallucinated)
        assert np.isfinite(float(plan.value))
        if isinstance(planner, GradientPlanner):
            # It goes on from the last plan, and this family's model never changes.
            assert float(plan.value) > before
            before = float(plan.value)


@pytest.mark.parametrize("inducing", [0, 64])
def test_thompson_sampling_draws_from_gaussian_processes_of_both_forms(inducing):
    family = GaussianProcess(inducing=inducing)
    learner = M3UCRL(corridor().problem, family, MIRROR, optimism=Thompson())
    _, _, state = one_episode(learner, learner.init(KEY))
    first, again = (float(learner.ask(state).value) for _ in range(2))
    other = float(learner.ask(eqx.tree_at(lambda s: s.key, state, jax.random.key(9))).value)
    assert first == again != other


def test_optimism_never_expects_less_than_the_mean_does():
    value = {}
    for optimism in (Hallucinated(), Greedy()):
        planner = MirrorPlanner(points=5, sweeps=80)
        learner = M3UCRL(corridor().problem, SureFamily(gain=0.3), planner, optimism=optimism)
        value[type(optimism)] = float(learner.ask(learner.init(KEY)).value)
    assert value[Hallucinated] > value[Greedy] + 0.1


def test_with_a_perfect_model_the_plan_earns_what_it_expects():
    learner = M3UCRL(corridor().problem, SureFamily(spread=0.0), MIRROR, random_first=0.0)
    plan = learner.ask(learner.init(KEY))
    found = corridor().evaluate(plan.profile)
    assert float(plan.value) == pytest.approx(float(found.value), rel=1e-9)
    np.testing.assert_allclose(plan.mass, found.mass, atol=1e-12)


def test_a_run_is_a_function_of_its_seed(learner):
    first = learn(corridor(), learner, episodes=2, seed=5, progress=False)
    again = learn(corridor(), learner, episodes=2, seed=5, progress=False)
    other = learn(corridor(), learner, episodes=2, seed=6, progress=False)
    assert first.metrics == again.metrics
    assert first.metrics != other.metrics


def test_seeds_in_threads_learn_as_alone(learner):
    def run(seed):
        return learn(corridor(), learner, episodes=2, seed=seed, progress=False).metrics

    alone = run(6)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, [5, 6]))[1] == alone


def test_learning_ends_near_the_best_plan():
    flow, motion = corridor().reveal()
    from mufield import Box, MirrorAscent

    moves = MoveFlow(flow, motion, Box(-1.0, 1.0).points(5))
    best = float(MirrorAscent(sweeps=100).solve(moves).value)
    learner = M3UCRL(corridor().problem, FAMILY, MirrorPlanner(points=5, sweeps=40))
    result = learn(corridor(), learner, episodes=6, progress=False, reference=best)
    random = float(corridor().evaluate(random_policy(corridor().problem)).value)
    assert result.metrics[-1].best > random + 0.8 * (best - random)
    assert result.metrics[-1].regret == pytest.approx(best - result.metrics[-1].value)
    assert result.metrics[-1].spread < result.metrics[0].spread


def test_the_first_episode_can_be_random(learner):
    shy = M3UCRL(corridor().problem, SureFamily(), MIRROR, random_first=1.0)
    state = shy.init(KEY)
    plan, episode, after = one_episode(shy, state)
    assert plan.note == "the uniform random policy"
    assert measure(state, plan, episode).optimistic is None
    assert shy.ask(after).note == ""


def test_a_share_of_the_first_moves_is_random_until_there_are_data(learner):
    pure = M3UCRL(corridor().problem, FAMILY, MIRROR, random_first=0.0)
    (plan, _, after), (planned, _, _) = (one_episode(m, m.init(KEY)) for m in (learner, pure))
    table = planned.profile.per_step
    # Of the moves -1, -0.5, 0, 0.5 and 1 those within a quarter of the box of rest.
    near = np.where(np.abs(table.actions[..., 0]) == 0.5, 0.5, 0.0)
    assert near.sum() == near.shape[0] * near.shape[1]
    expected = 0.97 * table.weights + 0.03 * near
    np.testing.assert_allclose(plan.profile.per_step.weights, expected, atol=1e-12)
    assert eqx.tree_equal(learner.ask(after), pure.ask(after))
    with pytest.raises(UserError, match="random_first must be one finite number from 0 to 1"):
        M3UCRL(corridor().problem, random_first=1.5)


def test_restoring_fits_the_same_model(learner):
    plan, _, state = one_episode(learner, learner.init(KEY))
    back = learner.restore(KEY, state.data, state.ends, plan.memory, plan.profile)
    assert eqx.tree_equal(back.model, state.model)
    assert eqx.tree_equal(learner.ask(back), learner.ask(state))


def test_an_episode_with_nan_is_refused_and_changes_nothing(learner):
    state = learner.init(KEY)
    _, episode, _ = one_episode(learner, state)
    broken = eqx.tree_at(
        lambda e: e.next_states, episode, episode.next_states.at[0, 2].set(jnp.nan)
    )
    with pytest.raises(ValueError, match="agent 0, step 2"):
        learner.tell(state, broken)
    assert state.episode == 0
    assert len(state.data) == 0


class Diverging(MirrorPlanner):
    """Plans well before any data, then not at all."""

    def plan(self, flow, motion, actions, key, memory, outcomes=None):
        plan = super().plan(flow, motion, actions, key, memory, outcomes)
        plan = eqx.tree_at(lambda p: p.value, plan, plan.value / (motion.model.spread - 0.1))
        return eqx.tree_at(lambda p: p.late_gain, plan, jnp.asarray(0.5))


def test_a_plan_that_is_not_finite_gives_way_to_the_last_good_policy():
    learner = M3UCRL(corridor().problem, SureFamily(spread=0.2), Diverging(points=3, sweeps=2))
    state = learner.init(KEY)
    plan, _, state = one_episode(learner, state)
    broken = eqx.tree_at(lambda s: s.model.spread, state, jnp.asarray(0.1))
    fallback = learner.ask(broken)
    # The last policy is what is run, so there is nothing to say of how the new plan was found.
    assert "last good policy" in fallback.note
    assert "still gains" in plan.note
    assert "still gains" not in fallback.note
    assert fallback.outcome == "unknown"
    assert eqx.tree_equal(fallback.profile, plan.profile)
    nothing_yet = eqx.tree_at(lambda s: s.model.spread, learner.init(KEY), jnp.asarray(0.1))
    with pytest.raises(PlanError, match="no earlier policy"):
        learner.ask(nothing_yet)


def test_a_fit_that_fails_gives_way_to_that_of_fewer_episodes():
    learner = M3UCRL(corridor().problem, SureFamily(fails_from=6), MIRROR)
    state = learner.init(KEY)
    for _ in range(2):
        _, _, state = one_episode(learner, state)
    assert state.episode == 2
    assert "fit to 8 transitions is not finite; going on with that to the first 4" in state.notes[0]
    hopeless = M3UCRL(corridor().problem, SureFamily(), MIRROR)
    hopeless.family = SureFamily(fails_from=0)
    with pytest.raises(PlanError, match="not even the prior"):
        hopeless.tell(state, corridor().run(random_policy(corridor().problem), KEY))


def test_a_band_that_is_too_narrow_is_warned_of():
    notes = {}
    for name, family in {
        "wrong": SureFamily(gain=-1.0, spread=1e-3),
        "right": SureFamily(gain=1.0, spread=1e-3),
    }.items():
        learner = M3UCRL(corridor().problem, family, MIRROR)
        state = learner.init(KEY)
        plan = learner.ask(state)
        episode = corridor().run(random_policy(corridor().problem), KEY, agents=20)
        row = measure(state, plan, episode)
        notes[name] = row.notes
        assert row.coverage is not None
    assert "too narrow" in notes["wrong"][0]
    assert notes["right"] == ()


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="needs a box"):
        M3UCRL(make("discrete-rooms", horizon=2).problem, SureFamily(), TABLE)
    with pytest.raises(ValueError, match="the number of episodes must be a whole number"):
        learn(corridor(), episodes=0)


SLIPS = {
    "mf.plan(*rooms.reveal(), 'table')": r"Table or Network, got 'table' .*give .*Table\(\)",
    "mf.plan(*rooms.reveal(), mf.Table)": r"got <class .*; give .*mufield.Table\(\)",
    "mf.M3UCRL(rooms.problem, optimism='greedy')": (
        r"optimism must be .* got 'greedy' .*; give .* mufield.Greedy\(\)"
    ),
    "mf.M3UCRL(rooms.problem, 'gp')": r"family must be .*, got 'gp' .*; give",
    "mf.M3UCRL(rooms.problem, planner='mirror')": r"planner must be .*, got 'mirror' .*; give",
    "mf.learn(rooms, 'gp')": r"the learner must be .* got 'gp' .*; make .*M3UCRL\(",
    "mf.learn(rooms, mf.GaussianProcess())": r"the learner must be .* GaussianProcess",
    "mf.learn(rooms.problem)": r"got a Problem, .*; give SimulatedSystem",
}

SCRIPT = """
import json, sys
import mufield as mf
rooms = mf.make("four-rooms", horizon=2)
found = {}
for slip in json.loads(sys.argv[1]):
    try:
        found[slip] = ["no error", repr(eval(slip))]
    except Exception as error:
        found[slip] = [type(error).__name__, str(error)]
print(json.dumps(found))
"""


def test_names_in_place_of_objects_are_answered_with_the_remedy():
    """In a Python of its own: at test time, annotations are checked before our code is."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(list(SLIPS))],
        env={**os.environ, "PYTHONPATH": str(Path(mufield.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    for slip, words in SLIPS.items():
        kind, message = found[slip]
        assert kind == "UserError", message
        assert re.search(words, message), message


def test_a_result_says_in_a_line_what_matters_and_becomes_rows_and_a_figure(monkeypatch):
    learner, seen = M3UCRL(corridor().problem, SureFamily(), MIRROR), []
    result = learn(
        corridor(),
        learner,
        episodes=2,
        reference=20.0,
        progress=False,
        watch=lambda state, plan, episode, row: seen.append((state.episode, row)),
    )
    assert seen == list(enumerate(result.metrics))
    text = repr(result)
    assert text.startswith("LearnResult(episodes=2, transitions=8, last J=")
    assert len(text.splitlines()) == 1
    assert len(text) < 150
    frame = result.to_frame()
    if find_spec("pandas") is not None:
        assert frame["value"].tolist() == [row.value for row in result.metrics]
    monkeypatch.setattr("mufield.learning.run.find_spec", lambda name: None)
    assert result.to_frame() == [row.row() for row in result.metrics]
    pytest.importorskip("matplotlib")
    (axes,) = result.plot().axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [row.value for row in result.metrics])


def test_move_sets_are_paired_with_any_number_of_controls():
    system = make("discrete-rooms", horizon=2)
    for controls in (2, 4):
        planner = MirrorPlanner(controls=controls, sweeps=3)
        learner = M3UCRL(system.problem, SureFamily(), planner)
        plan = learner.ask(learner.init(KEY))
        # Without eta, the policy draws from the moves of the set.
        assert plan.profile.at(0).actions.shape == (1, *system.problem.actions.moves.shape)
        assert float(plan.control) > 0
    model, actions = learner.init(KEY).model, system.problem.actions
    flow = Flow(learner.optimism.joint(system.problem))
    imagined = learner.optimism.imagine(system.problem, flow, model, None, KEY)
    eager = planner.plan(*imagined, actions, KEY, None)  # also outside a compiled function
    assert np.isfinite(float(eager.value))
