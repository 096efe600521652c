"""Every mistake in a problem gets an error that names it, before anything is built."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mufield import (
    Box,
    Grid,
    MoveSet,
    Problem,
    SimulatedSystem,
    as_profile,
    log_mass,
    point_mass,
    random_policy,
    uniform,
)
from mufield.constraints import mass_at_most
from mufield.finite.system import FiniteSystem
from mufield.fleet import CityMap, Earnings, Passengers, Trips
from mufield.space.move import GaussianNoise, NeighbourNoise

GRID = Grid.from_map("...\n.#.\n...")


def crowd(state, action, mu):
    return -log_mass(mu.here)


def walk(state, action, mu):
    return state + action


def problem(**changes):
    arguments = {
        "space": GRID,
        "actions": Box(-1.0, 1.0, dim=2),
        "reward": crowd,
        "horizon": 3,
        "initial": uniform(GRID),
        "noise": 0.1,
        "max_move": 1.0,
    }
    return Problem(**(arguments | changes))


def test_what_users_print_fits_on_a_screen():
    limits = mass_at_most(GRID, [(0, 2), (1, 2)], 0.5, name="north")
    given = problem(constraints=limits, trips=Trips(lambda state, mu: 0.1, np.eye(8)))
    system = SimulatedSystem(given, walk)
    passengers = Passengers(GRID, np.full((3, 8), 0.05))
    trips, earnings = Trips(passengers, np.eye(8)), Earnings(passengers)
    fleet = problem(space=CityMap(2.3, 48.9, 0.0, GRID), trips=trips, reward=earnings)
    shown = {
        "8 of them free": GRID,
        "reward=<function crowd>": given,
        "name='north'": given,
        "Flow(landing=Tables, problem=Problem(": system.reveal()[0],
        "Profile.stationary(TablePolicy(": as_profile(random_policy(given), 3),
        "_motion=<function walk>": system,
        "agents=9": FiniteSystem.of(system, 9),
        "reward=Earnings(": fleet,
    }
    for part, value in shown.items():
        assert part in repr(value)
        assert len(repr(value).splitlines()) <= 45
        assert repr(value).count("shape=(3, 3)") <= 1, "a map is shown once"
    assert "trips" not in repr(problem())


def test_a_good_problem_is_accepted():
    assert problem().paid_steps == 3
    assert problem(pay_end=True).paid_steps == 4
    assert problem(max_move=None).max_move == GRID.extent
    assert problem(noise=(0.0, 0.3)).noise.std == (0.0, 0.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": 0}, "horizon must be a whole number of at least 1, got 0"),
        ({"horizon": -3}, "horizon"),
        ({"horizon": True}, "horizon"),
        ({"noise": -0.1}, r"is -0.1 .* must be 0 or more"),
        ({"noise": np.nan}, "must be 0 or more"),
        ({"noise": (0.1, 0.1, 0.1)}, "2 axes"),
        ({"initial": np.full(8, 0.9 / 8)}, "initial distribution must sum to 1.*0.9"),
        ({"initial": np.r_[-1.0, 2.0, np.zeros(6)]}, "must not be negative"),
        ({"initial": np.r_[np.nan, np.zeros(7)]}, "NaN"),
        ({"initial": np.ones((3, 3)) / 9}, "inside walls"),
        ({"max_move": 0.0}, "max_move must be positive"),
        ({"reward": lambda s, a, mu: jnp.zeros(2)}, r"reward must return the shape \(\).*\(2,\)"),
        ({"reward": lambda s, a, mu: jnp.log(-1.0 - mu.here)}, "reward must be finite"),
        ({"reward": lambda s, a: 0.0}, "reward could not be evaluated"),
        ({"reward": lambda s, a, mu: s[7:8].sum() / 0}, "reward"),
    ],
)
def test_bad_problems_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        problem(**changes)


@pytest.mark.parametrize(
    ("motion", "message"),
    [
        (lambda s, a, mu: s[0], r"motion must return the shape \(2,\) for one agent, got \(\)"),
        (lambda s, a, mu: s + jnp.nan, "motion must be finite"),
        (lambda s, a, mu: s + jnp.sqrt(a), "NaN or infinite for the state.*action"),
        (lambda s, a, mu: s + 3.0 * a, "up to .*3.* max_move"),
        (lambda s: s, "motion could not be evaluated"),
    ],
)
def test_bad_motions_are_refused(motion, message):
    with pytest.raises(ValueError, match=message):
        SimulatedSystem(problem(), motion)


def test_bad_boxes_noises_and_move_sets_are_refused():
    with pytest.raises(ValueError, match="lower to a higher"):
        Box(1.0, -1.0)
    with pytest.raises(ValueError, match="number from 0 to 1"):
        NeighbourNoise(1.5)
    with pytest.raises(ValueError, match="must not be negative"):
        GaussianNoise((0.1, -0.1))
    with pytest.raises(ValueError, match="must sum to 1"):
        MoveSet([[0.0], [1.0]], [[0.5, 0.4]])
    with pytest.raises(ValueError, match="rows of 2"):
        MoveSet([[0.0], [1.0]], [[0.5, 0.4, 0.1]])


def test_the_action_nearest_to_zero():
    assert Box(-1.0, 1.0, dim=2).rest == (0.0, 0.0)
    assert Box((0.5, -2.0), (1.0, -1.0)).rest == (0.5, -1.0)
    assert MoveSet([[1.0], [-0.5]]).rest == (-0.5,)


def test_a_point_mass_in_a_wall_is_refused():
    with pytest.raises(ValueError, match="is a wall"):
        point_mass(GRID, 1, 1)


def test_actions_hand_out_a_regular_set():
    box = Box((-1.0, 0.0), (1.0, 2.0))
    points = np.asarray(box.points(3))
    assert points.shape == (9, 2)
    assert points[0].tolist() == [-1.0, 0.0]
    assert points[-1].tolist() == [1.0, 2.0]
    assert np.asarray(box.points(1)).tolist() == [[0.0, 1.0]]
    inner = np.asarray(box.points(2, border=False))
    assert inner.tolist() == [[-0.5, 0.5], [-0.5, 1.5], [0.5, 0.5], [0.5, 1.5]]
    with pytest.raises(ValueError, match="number of points"):
        box.points(0)
    moves = MoveSet([[0.0], [2.0]])
    assert moves.points(9) is moves.moves
    assert (moves.lower, moves.upper) == ((0.0,), (2.0,))


def test_actions_pair_with_the_points_of_a_box():
    eta = Box(-1.0, 1.0)
    assert Box(0.0, 2.0).product(eta).lower == (0.0, -1.0)
    pairs = MoveSet([[0.0], [2.0]]).product(eta, 2)
    assert np.asarray(pairs.moves).tolist() == [[0, -1], [0, 1], [2, -1], [2, 1]]


@pytest.mark.parametrize("actions", [Box(-1.0, 3.0, dim=2), MoveSet([[0.0, 1.0], [2.0, 0.0]])])
def test_drawn_actions_are_possible_ones(actions):
    drawn = actions.sample(jax.random.key(0), (5, 4))
    assert drawn.shape == (5, 4, 2)
    assert bool(jnp.all(actions.contains(drawn)))


def test_moves_that_are_no_numbers_are_refused_with_an_example():
    with pytest.raises(ValueError, match=r"real numbers, got \[\['N'.*such as \[\[0, 0\]"):
        MoveSet([["N"], ["S"]])


def far_off(size):
    """Cells of this size, 4,507,000 m from the origin, where 32 bits resolve half a metre."""
    grid = Grid.box(4_507_000.0, 4_507_000.0 + 12 * size, 12)
    line = {"space": grid, "actions": Box(-1.0, 1.0), "initial": point_mass(grid, 1)}
    return problem(**line, noise=0.2 * size, max_move=size)


def test_cells_that_rounding_would_blur_are_refused():
    assert far_off(5.0).grid.cell_size == (5.0,)
    with jax.enable_x64(False):
        system = SimulatedSystem(far_off(50.0), lambda state, action, mu: state + 50.0 * action)
        episode = system.run(lambda s, mu, h: jnp.array([0.5]), jax.random.key(0), agents=500)
        moved = (episode.next_states - episode.states)[:, 0, 0] / 50.0
        assert float(jnp.mean(moved)) == pytest.approx(0.5, abs=0.03)
        with pytest.raises(ValueError, match="subtract the map's lower corner"):
            far_off(5.0)
