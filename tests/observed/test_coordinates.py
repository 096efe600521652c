"""Files of longitude and latitude, for problems on a map."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleet import rows_of, write

import mufield as mf
from mufield.deploy.export import describe, policy_bytes
from mufield.deploy.reader import DeployedPolicy
from mufield.io.checks import Asked
from mufield.io.episode import read_episode
from mufield.io.log import read_log
from mufield.io.observed import read_positions

KEY = jax.random.key(0)
STEPS = 3


@pytest.fixture(scope="module")
def town():
    """A turned map of three by four cells with two walls, and vehicles on it."""
    rng = np.random.default_rng(0)
    walls = np.zeros((3, 4), dtype=bool)
    walls[1, 1] = walls[2, 3] = True
    grid = mf.Grid.box(0.0, (1.5, 2.0), (3, 4), walls=walls)
    plain = mf.fleet.CityMap(-73.98, 40.75, 29.0, grid)
    there = plain.to_earth(grid.centres[rng.integers(grid.n_cells, size=300)])
    city = mf.fleet.CityMap.of_traffic(*there.T, cell=500, turn=29)
    assert city.grid.n_cells == grid.n_cells
    problem = mf.Problem(
        space=plain,
        actions=mf.Box(-1.0, 1.0, dim=2),
        reward=lambda state, action, mu: state[1],
        horizon=STEPS,
        initial=mf.uniform(grid),
        noise=0.05,
        max_move=(0.4, 0.5),
    )
    return mf.SimulatedSystem(problem, lambda s, a, mu: s + jnp.array([0.4, 0.5]) * a)


def on_earth(rows, city):
    """Rows of a log with coordinates in place of positions."""
    found = []
    for row in rows:
        row = dict(row)
        for name, prefix in (("state", ""), ("next", "next_")):
            if f"{name}_0" in row:
                point = city.to_earth([[row.pop(f"{name}_0"), row.pop(f"{name}_1")]])[0]
                row |= {f"{prefix}longitude": point[0], f"{prefix}latitude": point[1]}
        found.append(row)
    return found


def test_a_problem_knows_its_map(town):
    problem = town.problem
    assert problem.city.grid == problem.grid
    assert problem.from_step(1, problem.initial).city is problem.city
    assert hash(problem.city) == hash(problem.city)


def test_vehicles_off_the_map_are_left_out_with_a_note(town, tmp_path):
    problem, policy = town.problem, mf.random_policy(town.problem, 3)
    rows = on_earth(rows_of(town.run(policy, KEY, agents=20)), problem.city)
    for row in rows[-STEPS:]:  # the last vehicle is in another town
        row |= {"longitude": -75.0, "next_longitude": -75.0}
    asked = Asked(problem, mf.as_profile(policy, STEPS), run="abc", episode=1, policy="def")
    notes = []
    found = read_episode(write(tmp_path / "earth.csv", rows), asked, notes=notes)
    assert len(found.states) == 19
    assert notes[0] == "3 of 60 rows were left out, because they are not on the map"


def test_episodes_and_logs_in_coordinates_are_those_in_kilometres(town, tmp_path):
    problem, policy = town.problem, mf.random_policy(town.problem, 3)
    episode = town.run(policy, KEY, agents=20)
    asked = Asked(problem, mf.as_profile(policy, STEPS), run="abc", episode=1, policy="def")
    rows = rows_of(episode)
    earthly = on_earth(rows, problem.city)
    for read in (lambda path: read_episode(path, asked), lambda path: read_log(path, problem).data):
        usual = read(write(tmp_path / "plane.csv", rows))
        found = read(write(tmp_path / "earth.csv", earthly))
        for name in ("states", "next_states", "actions", "mass"):
            np.testing.assert_allclose(getattr(found, name), getattr(usual, name), atol=1e-4)
        name = "stopped" if hasattr(usual, "stopped") else "observed"
        np.testing.assert_array_equal(getattr(found, name), getattr(usual, name))
    start = [
        {"longitude": row["longitude"], "latitude": row["latitude"]} for row in earthly[::STEPS]
    ]
    mass, notes = read_positions(write(tmp_path / "start.csv", start), problem)
    np.testing.assert_allclose(mass, mf.histogram(problem.grid, episode.states[:, 0]), atol=1e-6)
    assert notes == ()


def test_masses_may_be_the_positions_of_all_vehicles(town, tmp_path):
    problem, policy = town.problem, mf.random_policy(town.problem, 3)
    episode = town.run(policy, KEY, agents=40)
    asked = Asked(problem, mf.as_profile(policy, STEPS), run="abc", episode=1, policy="def")
    few = on_earth(rows_of(episode), problem.city)[: 5 * STEPS]
    path, notes = write(tmp_path / "few.csv", few), []
    alone = read_episode(path, asked, notes=notes)
    assert "standard errors of up to" in notes[0]
    assert "all positions, with --mass" in notes[0]
    everybody = np.concatenate([episode.states, episode.next_states[:, -1:]], axis=1)
    # In the middles of their cells, so that no rounding moves them to another.
    everybody = problem.grid.centres[np.asarray(problem.grid.index_of(everybody))]
    rows = [
        {"step": step, "longitude": x, "latitude": y}
        for step in range(STEPS + 1)
        for x, y in problem.city.to_earth(everybody[:, step])
    ]
    rows.append({"step": 0, "longitude": -75.0, "latitude": 40.0})
    notes = []
    mass = write(tmp_path / "all.csv", rows)
    found = read_episode(path, asked, mass_path=mass, notes=notes)
    assert notes == [f"1 of {len(rows)} rows were left out, because they are not on the map"]
    for step in range(STEPS + 1):
        whole = mf.histogram(problem.grid, everybody[:, step])
        np.testing.assert_allclose(found.mass[step], whole, atol=1e-6)
    assert float(np.abs(alone.mass - found.mass).max()) > 0.02
    with pytest.raises(mf.UserError, match="expected the steps 0 to 3, as the horizon is 3"):
        read_episode(path, asked, mass_path=write(mass, [row for row in rows if row["step"] != 2]))


def test_vehicles_off_the_map_are_counted(town, tmp_path):
    city = town.problem.city
    grid = city.grid
    wall = city.to_earth([[0.75, 0.75], [-0.3, 0.2], [9.0, 9.0]])
    rows = [{"longitude": x, "latitude": y} for x, y in [*wall, *city.to_earth(grid.centres)]]
    mass, notes = read_positions(write(tmp_path / "start.csv", rows), town.problem)
    assert notes == ("1 of 13 rows were left out, because they are not on the map",)
    assert float(mass.sum()) == pytest.approx(1.0)
    assert float(mass[0]) == pytest.approx(2 / 12)  # and the vehicle beyond the border
    # Rows keep their numbers in errors.
    rows = [dict(row, agent=i, time=0, action_0=0, action_1=0) for i, row in enumerate(rows)]
    rows[-1] |= {"agent": 3}
    with pytest.raises(mf.UserError, match="line 14, column time: agent 3 has time 0 more"):
        read_log(write(tmp_path / "log.csv", rows), town.problem)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"longitude": 40.75, "latitude": -93.98}, "column latitude: expected degrees"),
        ({"longitude": "x", "latitude": 40.75}, "column longitude: expected a finite number"),
        ({"longitude": "nan", "latitude": 40.75}, "expected a finite number"),
        ({"longitude": -73.98}, "latitude is missing"),
        ({"longitude": 10.0, "latitude": 40.0}, "none of 1 rows is on the map"),
        ({"longitude": -73.98, "latitude": 40.75, "state_0": 1.0}, "leave one out"),
    ],
)
def test_coordinates_that_cannot_be_right(town, tmp_path, row, message):
    with pytest.raises(mf.UserError, match=message):
        read_positions(write(tmp_path / "start.csv", [row]), town.problem)


def test_coordinates_need_a_map(tmp_path):
    problem = mf.make("four-rooms", horizon=2).problem
    row = {"longitude": -73.98, "latitude": 40.75}
    with pytest.raises(mf.UserError, match="need a map, and the problem has none"):
        read_positions(write(tmp_path / "start.csv", [row]), problem)


def test_the_reader_drives_on_the_map(town, tmp_path):
    problem = town.problem
    city, grid = problem.city, problem.grid
    rng = np.random.default_rng(1)
    profile = mf.Profile.stacked(
        mf.TablePolicy.deterministic(jnp.asarray(rng.uniform(-1, 1, (STEPS, grid.n_cells, 2)))),
        STEPS,
    )
    (tmp_path / "policy.safetensors").write_bytes(policy_bytes(describe(profile, problem)))
    policy = DeployedPolicy.load(tmp_path / "policy.safetensors")
    earth = city.to_earth(grid.centres)
    np.testing.assert_allclose(policy.positions(*earth.T), grid.centres, atol=1e-9)
    found = policy.destinations(*earth.T, step=1)
    aims = grid.centres + np.array([0.4, 0.5]) * policy.act(grid.centres, step=1)
    wanted = city.to_earth(city.onto_streets(aims)[0])
    np.testing.assert_allclose(found, wanted, atol=1e-9)
    free = np.asarray(grid.index_of(city.to_plane(*found.T)))
    assert (free >= 0).all()
    # In a wall it counts for the nearest cell; far from all it gets no destination.
    near = city.to_earth([[0.75, 0.7]])
    assert policy.destinations(*near.T, step=0).shape == (1, 2)
    batch = ([earth[0, 0], -74.5, earth[1, 0]], [earth[0, 1], 40.75, earth[1, 1]])
    first, lost, second = policy.destinations(*batch, step=1)
    np.testing.assert_allclose([first, second], wanted[:2], atol=1e-9)
    assert np.isnan(lost).all()
    with pytest.raises(ValueError, match=r"row 1: .* is not on the map or near it \(1 of 3\)"):
        policy.positions(*batch)
    with pytest.raises(ValueError, match="latitude, row 0: expected degrees"):
        policy.positions([0.0], [float("nan")])
    bare = mf.make("four-rooms", horizon=2).problem
    exported = policy_bytes(describe(mf.random_policy(bare), bare))
    (tmp_path / "bare.safetensors").write_bytes(exported)
    with pytest.raises(ValueError, match="has no map"):
        DeployedPolicy.load(tmp_path / "bare.safetensors").positions(*near.T)
