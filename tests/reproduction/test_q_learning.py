"""U2-MF-QL-FH does step for step what it says, and its files are safe to resume from."""

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walk, walking_problem

from mufield import (
    Grid,
    MoveSet,
    NeighbourNoise,
    Problem,
    Profile,
    SimulatedSystem,
    TablePolicy,
    log_mass,
    point_mass,
    uniform,
)
from mufield.compare import ComparisonConfig, compare
from mufield.environments.four_rooms import MOVES, discrete_rooms
from reproduction import q_learning, q_training
from reproduction.q_learning import QLearning
from reproduction.q_training import train

pytestmark = pytest.mark.slow

ROOMS = """
...#..
......
.#.#..
"""


@cache
def rooms(actions="extended", **options):
    return discrete_rooms(actions=actions, drawing=ROOMS, horizon=4, **options)


def avoid_crowds(state, action, mu):
    return -log_mass(mu.density_here)


def corridor(options, *, reward=avoid_crowds, motion=walk):
    """Three cells of length one half in a row; the moves are left, stay, right."""
    grid = Grid.from_map("...", cell_size=HALF)
    problem = Problem(
        space=grid,
        actions=MoveSet(np.array([[-1.0], [0.0], [1.0]]) * HALF, options),
        reward=reward,
        horizon=2,
        initial=point_mass(grid, 1),
        noise=NeighbourNoise(0.0),
        max_move=HALF,
        pay_end=True,
    )
    return SimulatedSystem(problem, motion)


HALF = 0.5
LEFT, EVEN = (1.0, 0.0, 0.0), (1 / 3, 1 / 3, 1 / 3)


# The loop against a plain version of it.


def expected_moves(problem):
    """Each option's possible next cells with their probabilities, by counting neighbours."""
    grid = problem.grid
    ends = grid.cell_index(grid.free_cells[:, None] + np.asarray(MOVES))
    pushes = grid.neighbours
    laws = np.zeros((grid.n_cells, len(problem.actions.options), grid.n_cells))
    for x in range(grid.n_cells):
        for o, option in enumerate(np.asarray(problem.actions.options)):
            for move, chance in enumerate(option):
                y = ends[x, move] if ends[x, move] >= 0 else x
                pushed = pushes[y][pushes[y] >= 0]
                laws[x, o, y] += chance * (1 - problem.noise.intensity)
                np.add.at(laws[x, o], pushed, chance * problem.noise.intensity / len(pushed))
    return laws


def plain_q_learning(problem, episodes, seed, *, omega_q, omega_nu, epsilon):
    """The algorithm as it is printed, nu and all; returns Q, visits, nu and what was earned."""
    rng = np.random.Generator(np.random.PCG64(seed))
    laws = expected_moves(problem)
    horizon, (cells, options, _) = problem.horizon, laws.shape
    q = np.zeros((horizon, cells, options))
    visits = np.zeros(q.shape, dtype=int)
    nu = np.full((horizon + 1, cells), 1 / cells)
    initial = np.asarray(problem.initial)
    earned = 0.0

    def draw(law):
        return int(np.searchsorted(np.cumsum(law)[:-1], rng.random(), side="right"))

    for k in range(1, episodes + 1):
        rho_nu = 1 / (1 + k) ** omega_nu
        x = draw(initial)
        for h in range(horizon):
            nu[h] += rho_nu * (np.eye(cells)[x] - nu[h])
            reward = -math.log(nu[h, x])
            chance = rng.random()
            o = int(chance / epsilon * options) if chance < epsilon else int(np.argmax(q[h, x]))
            y = draw(laws[x, o])
            if h + 1 < horizon:
                ahead = q[h + 1, y].max()
            else:
                nu[horizon] += rho_nu * (np.eye(cells)[y] - nu[horizon])
                ahead = -math.log(nu[horizon, y]) if problem.pay_end else 0.0
                earned += ahead
            rho_q = 1 / (1 + visits[h, x, o]) ** omega_q
            q[h, x, o] += rho_q * (reward + ahead - q[h, x, o])
            visits[h, x, o] += 1
            earned += reward
            x = y
    return q, visits, nu, earned


@pytest.mark.parametrize(
    ("actions", "noise", "pay_end", "spread"),
    [
        pytest.param("standard", 0.0, True, False, marks=pytest.mark.nightly),
        pytest.param("extended", 0.0, False, True, marks=pytest.mark.nightly),
        ("extended", 0.2, True, False),
    ],
)
def test_the_compiled_loop_is_the_plain_one(actions, noise, pay_end, spread):
    system = rooms(actions, noise_intensity=noise, pay_end=pay_end)
    problem = system.problem
    if spread:
        system = SimulatedSystem(with_initial(problem, uniform(problem.grid)), walk)
    rates = {"omega_q": 0.6, "omega_nu": 0.1, "epsilon": 0.3}
    # Long enough for the common scale of the distributions to be renewed several times.
    episodes = 1500
    learner = QLearning(system, **rates)
    state = learner.advance(learner.init(3), episodes)
    q, visits, nu, earned = plain_q_learning(system.problem, episodes, 3, **rates)
    assert np.array_equal(state.visits, visits)
    np.testing.assert_allclose(state.q, q, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(state.nu, nu, rtol=1e-9, atol=1e-90)
    assert state.earned == pytest.approx(earned, rel=1e-9)
    assert state.episodes == episodes


def with_initial(problem, initial):
    return Problem(
        space=problem.grid,
        actions=problem.actions,
        reward=problem.reward,
        horizon=problem.horizon,
        initial=initial,
        noise=problem.noise,
        max_move=problem.max_move,
        pay_end=problem.pay_end,
    )


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_the_tables_are_the_moves_that_walls_allow(noise):
    system = rooms(noise_intensity=noise)
    tables = QLearning(system).tables
    cells = system.problem.grid.n_cells
    assert tables.shape == (4, cells, 9)
    chances = np.diff(tables.chances, axis=-1, prepend=0.0)
    laws = np.zeros((*tables.ends.shape[:2], cells))
    cell, option, _ = np.indices(tables.ends.shape)
    np.add.at(laws, (cell, option, tables.ends), chances)
    np.testing.assert_allclose(laws, expected_moves(system.problem), atol=1e-12)
    assert (chances >= 0).all()
    assert (tables.chances[..., -1] == 1).all()


def any_option(problem):
    actions, cells = problem.actions, problem.grid.n_cells
    weights = jnp.broadcast_to(jnp.mean(actions.options, axis=0), (cells, len(actions.moves)))
    return TablePolicy.mixing(actions.moves, weights)


def test_agents_that_choose_at_random_are_distributed_as_the_population():
    system, episodes = rooms(noise_intensity=0.2), 40_000
    learner = QLearning(system, epsilon=1.0, omega_nu=1.0)
    state = learner.advance(learner.init(0), episodes)
    seen = state.visits.sum(axis=-1)
    assert (seen.sum(axis=-1) == episodes).all()
    # Rates 1 / (1 + k) make nu the plain average; what it started from counts as one episode.
    even = 1 / system.problem.grid.n_cells
    np.testing.assert_allclose(state.nu[:-1], (seen + even) / (episodes + 1), rtol=1e-9)
    exact = np.asarray(system.evaluate(any_option(system.problem)).mass)
    deviation = np.sqrt(exact * (1 - exact) / episodes)
    assert (np.abs(state.nu - exact) <= 4.5 * deviation + 1 / episodes).all()


# What it learns.


@pytest.mark.nightly
@pytest.mark.parametrize("options", [(LEFT, EVEN), (EVEN, LEFT)])
def test_it_finds_the_even_population_where_that_can_be_reached(options):
    # Drawing from all three moves keeps the population even: the entropy cannot be greater.
    system = corridor(np.array(options))
    learner = QLearning(system, omega_q=0.6, omega_nu=0.9, epsilon=0.3)
    state = learner.advance(learner.init(0), 20_000)
    best = 2 * math.log(3) + 3 * math.log(HALF)
    assert float(system.evaluate(learner.profile(state)).value) == pytest.approx(best)
    # nu also counts the random steps to the left, which are some.
    assert learner.estimate(state) == pytest.approx(best, abs=0.15)
    start = learner.init(0)
    worst = 3 * math.log(HALF)
    first = float(system.evaluate(learner.profile(start)).value)
    assert first == pytest.approx(worst if options[0] == LEFT else best)


@pytest.mark.nightly
def test_single_moves_leave_a_population_in_one_cell():
    system = rooms("standard")
    result = train(system, episodes=3000, evaluate_every=3000, progress=False)
    assert float(result.curve.evaluation[-1]) == pytest.approx(0.0, abs=1e-9)
    assert result.curve.training[-1] > 0.3
    mixed = train(rooms("extended"), episodes=3000, evaluate_every=3000, progress=False)
    assert mixed.curve.evaluation[-1] > 0.5


@pytest.mark.nightly
def test_it_is_a_contender_of_comparisons(monkeypatch):
    few = {"episodes": 1000, "evaluate_every": 500}
    monkeypatch.setattr(q_training, "train", lambda system, **given: train(system, **given | few))
    config = ComparisonConfig(
        "discrete-rooms",
        ("u2mfqlfh",),
        seeds=(0,),
        options={"horizon": 4, "drawing": ROOMS},
        imports=str(Path(q_training.__file__).with_name("contender.py")),
    )
    (found,) = compare(config, progress=False).results
    assert found.transitions == (2000, 4000)
    assert found.finals == (pytest.approx(0.0, abs=1e-9),)


def test_no_step_pays_more_than_the_rate_allows():
    learner = QLearning(rooms())
    state, paid = learner.init(0), 5
    for _ in range(30):
        before, state = state, learner.advance(state, 1)
        most = paid * 0.05 * math.log(1 + state.episodes)
        assert -1e-12 <= state.earned - before.earned <= most + 1e-12
        np.testing.assert_allclose(state.nu.sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.nightly
def test_the_profile_takes_the_first_best_option():
    learner = QLearning(rooms())
    state = learner.init(0)
    q = np.random.default_rng(0).integers(0, 3, size=state.q.shape).astype(float)
    profile = learner.profile(replace(state, q=q))
    choice = np.array([[row.tolist().index(max(row)) for row in step] for step in q])
    actions = learner.system.problem.actions
    wanted = TablePolicy.mixing(actions.moves, actions.options[jnp.asarray(choice)])
    assert isinstance(profile, Profile)
    assert np.array_equal(profile.join(profile.per_step).weights, wanted.weights)


# Randomness, blocks and threads.


def assert_same_state(got, wanted):
    for name in ("q", "visits", "weights"):
        assert np.array_equal(getattr(got, name), getattr(wanted, name)), name
    for name in ("scale", "episodes", "earned", "generator"):
        assert getattr(got, name) == getattr(wanted, name), name


def test_the_same_seed_gives_the_same_state_and_another_seed_another():
    learner = QLearning(rooms())
    first, again, other = (learner.advance(learner.init(seed), 500) for seed in (1, 1, 2))
    assert_same_state(again, first)
    assert not np.array_equal(other.visits, first.visits)


def test_how_episodes_are_cut_into_calls_makes_no_difference():
    learner = QLearning(rooms(noise_intensity=0.2))
    start = learner.init(0)
    whole = learner.advance(start, 1000)
    state = start
    for block in (1, 0, 399, 7, 593):
        state = learner.advance(state, block)
    assert_same_state(state, whole)
    assert start.episodes == 0
    assert not start.visits.any()


def test_two_threads_learn_as_one_after_the_other():
    learners = [QLearning(rooms(actions)) for actions in ("standard", "extended")]

    def run(learner):
        return learner.advance(learner.init(0), 20_000)

    alone = [run(learner) for learner in learners]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(run, learners))
    for got, wanted in zip(together, alone, strict=True):
        assert_same_state(got, wanted)


# Training and its files.


@pytest.mark.nightly
def test_the_curve_says_what_was_seen_since_the_entry_before():
    system = rooms()
    result = train(system, episodes=600, evaluate_every=200, seed=4, progress=False)
    learner = QLearning(system)
    state, before = learner.init(4), 0.0
    assert result.curve.episodes.tolist() == [200, 400, 600]
    for entry in range(3):
        state = learner.advance(state, 200)
        assert result.curve.training[entry] == (state.earned - before) / 200
        assert result.curve.estimate[entry] == state.q[0, system.problem.grid.index_at(0, 0)].max()
        value = float(system.evaluate(learner.profile(state)).value)
        assert result.curve.evaluation[entry] == value
        before = state.earned
    assert_same_state(result.state, state)
    assert (np.diff(result.curve.seconds, prepend=0.0) > 0).all()
    assert value == float(system.evaluate(result.profile).value)


def test_progress_is_shown_where_asked_for(capsys):
    train(rooms(), episodes=200, evaluate_every=100, progress=False)
    assert capsys.readouterr().err == ""
    train(rooms(), episodes=200, evaluate_every=100)
    assert "Q-learning 200/200" in capsys.readouterr().err


# Mistakes.


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({"omega_q": 0.0}, "omega_q must be more than 0"),
        ({"omega_nu": 1.5}, "omega_nu must be more than 0"),
        ({"epsilon": -0.1}, "epsilon must be between 0 and 1"),
    ],
)
def test_rates_out_of_range_are_refused(rates, message):
    with pytest.raises(ValueError, match=message):
        QLearning(rooms(), **rates)


@pytest.mark.parametrize(("episodes", "every"), [(0, 1), (250, 100), (100, 0), (-100, 100)])
def test_numbers_of_episodes_that_do_not_fit_are_refused(episodes, every):
    with pytest.raises(ValueError, match="a positive multiple of evaluate_every"):
        train(rooms(), episodes=episodes, evaluate_every=every, progress=False)


def test_a_negative_number_of_episodes_is_refused():
    learner = QLearning(rooms())
    with pytest.raises(ValueError, match="at least 0, got -1"):
        learner.advance(learner.init(0), -1)


def slow_in_crowds(state, action, mu):
    return state + action * (1 - mu.here)


@pytest.mark.parametrize(
    ("system", "message"),
    [
        (
            lambda: SimulatedSystem(walking_problem(Grid.from_map("..."), noise=0.0), walk),
            "needs finitely many options, a MoveSet, got the box",
        ),
        (lambda: corridor(None, motion=slow_in_crowds), "a motion that does not depend on mu"),
        (
            lambda: corridor(None, reward=lambda s, a, mu: avoid_crowds(s, a, mu) + a[0]),
            r"the reward -log mu\(s\).* for the move \[-0\.5\] in the cell \[0\]",
        ),
        (
            lambda: corridor(None, reward=lambda s, a, mu: -log_mass(jnp.max(mu.mass))),
            r"the reward -log mu\(s\)",
        ),
        (
            # Right only in cells of length 1: it is the density that counts.
            lambda: corridor(None, reward=lambda s, a, mu: -log_mass(mu.here)),
            r"the reward -log mu\(s\)",
        ),
    ],
)
def test_systems_that_do_not_fit_are_refused(system, message):
    with pytest.raises(ValueError, match=message):
        QLearning(system())


def test_numba_is_imported_only_when_it_is_needed_and_named_where_it_is_missing(monkeypatch):
    code = "import sys, reproduction.q_training; print('numba' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ImportError, match="pip install numba"):
        q_learning.compiled_loop.__wrapped__()
