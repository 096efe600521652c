"""Episodes from files: read as they were, or refused with the row, the column and the remedy."""

import builtins
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleet import mass_rows, rows_of, write

from mufield import (
    Box,
    Episode,
    Grid,
    Problem,
    SimulatedSystem,
    UserError,
    log_mass,
    make,
    random_policy,
)
from mufield.io.checks import Asked, check_present, notes_on_sample
from mufield.io.episode import read_episode
from mufield.io.rows import settle, touching, unmoved_at_walls
from mufield.io.tables import Table
from mufield.policies.base import as_profile

pytestmark = pytest.mark.slow

pyarrow = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def system():
    return make("four-rooms", horizon=4, drawing="....\n.##.\n....")


@pytest.fixture(scope="module")
def asked(system):
    profile = as_profile(random_policy(system.problem), system.problem.horizon)
    return Asked(system.problem, profile, run="abc", episode=2, policy="def")


@pytest.fixture(scope="module")
def episode(system, asked):
    return system.run(asked.profile, jax.random.key(3), agents=40)


@pytest.fixture
def rows(episode):
    return rows_of(episode)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_episode_comes_back_as_it_was(tmp_path, asked, episode, rows, suffix):
    np.random.default_rng(0).shuffle(rows)
    grid = asked.problem.grid
    mass = write(tmp_path / f"mass{suffix}", mass_rows(grid, episode.mass))
    found = read_episode(write(tmp_path / f"e{suffix}", rows), asked, mass_path=mass)
    for name in ("states", "actions", "next_states", "mass", "rewards"):
        np.testing.assert_allclose(getattr(found, name), getattr(episode, name), atol=1e-12)
    # Contact with walls says where agents were stopped; nobody stops by chance so close to one.
    np.testing.assert_array_equal(found.stopped, episode.stopped)


def test_without_masses_the_agents_are_the_population(tmp_path, asked, episode, rows):
    found = read_episode(write(tmp_path / "e.csv", rows), asked)
    counts = np.bincount(asked.problem.grid.index_of(episode.next_states[:, -1]))
    np.testing.assert_allclose(found.mass[-1][: len(counts)], counts / 40)
    entropies = -(found.mass * log_mass(found.mass)).sum(axis=1)
    np.testing.assert_allclose(found.rewards, entropies, atol=1e-12)


def test_chosen_agents_are_learned_from_but_all_are_the_population(tmp_path, asked, rows, episode):
    path = write(tmp_path / "e.csv", rows)
    found = read_episode(path, asked, agents=["3", "0"])
    np.testing.assert_allclose(found.states, episode.states[jnp.array([3, 0])], atol=1e-12)
    np.testing.assert_array_equal(found.mass, read_episode(path, asked).mass)
    with pytest.raises(UserError, match="no agent 77; there are 0, 1,"):
        read_episode(path, asked, agents=["77"])


def test_agents_that_join_leave_or_miss_rows_are_welcome(tmp_path, asked, rows, episode):
    """Agent 0 joins at step 2, agent 1 leaves after step 0, agent 2 misses step 1."""
    grid, lost = asked.problem.grid, {(0, 0), (0, 1), (1, 1), (1, 2), (1, 3), (2, 1)}
    kept = [row for row in rows if (row["agent"], row["step"]) not in lost]
    np.random.default_rng(0).shuffle(kept)
    found = read_episode(write(tmp_path / "e.csv", kept), asked)
    present = np.ones((40, 4), bool)
    present[tuple(zip(*lost, strict=True))] = False
    np.testing.assert_array_equal(found.present, present)
    for name in ("states", "actions", "next_states", "stopped"):
        mine, wanted = (np.asarray(getattr(each, name))[present] for each in (found, episode))
        np.testing.assert_allclose(mine, wanted, atol=1e-12)
    places = np.concatenate([episode.states, episode.next_states[:, -1:]], axis=1)
    index = grid.index_of(places)
    # Somebody who lacks a row is known to be where the last one ended: 0, 1 after that step.
    for step, absent in enumerate(([0], [0], [1], [1], [1])):
        who = np.setdiff1d(np.arange(40), absent)
        counts = np.bincount(index[who, step], minlength=grid.n_cells)
        np.testing.assert_allclose(found.mass[step], counts / 39, atol=1e-12)
        paid = np.flatnonzero(present[:, min(step, 3)])
        mean = -np.log(counts[index[paid, step]] / 39).mean()
        np.testing.assert_allclose(found.rewards[step], mean, atol=1e-9)
    whole = read_episode(write(tmp_path / "e.csv", kept), asked, agents=["5"])
    assert whole.present is None


def test_an_episode_of_which_hardly_anything_is_left_is_refused(tmp_path):
    table = Table(tmp_path / "e.csv", {}, first_row=2, word="line")
    present = np.eye(40, dtype=bool)
    with pytest.raises(UserError, match=r"at least 10% of them, got 40 of 1,600; .* with --log"):
        check_present(table, present, every_step=True)
    check_present(table, np.repeat(np.eye(10, dtype=bool), 4, axis=1), every_step=True)


def test_with_masses_nobody_need_be_there_at_every_step(tmp_path, asked, rows, episode):
    mass = write(tmp_path / "m.csv", mass_rows(asked.problem.grid, episode.mass))
    path = write(tmp_path / "e.csv", [row for row in rows if row["step"] != 2])
    found = read_episode(path, asked, mass_path=mass)
    np.testing.assert_allclose(found.rewards, episode.rewards, atol=1e-9)
    assert not found.present[:, 2].any()
    assert found.present[:, [0, 1, 3]].all()


def test_given_columns_are_believed(tmp_path, asked, rows):
    more = {"reward": 2.5, "run": "abc", "episode": 2}
    found = read_episode(write(tmp_path / "e.csv", [row | more for row in rows]), asked)
    np.testing.assert_allclose(found.rewards[:-1], 2.5)


def test_rounded_positions_at_walls_are_no_positions_in_walls(tmp_path, asked, rows, episode):
    short = [{k: round(v, 3) if isinstance(v, float) else v for k, v in r.items()} for r in rows]
    found = read_episode(write(tmp_path / "e.csv", short), asked)
    np.testing.assert_allclose(found.states, episode.states, atol=2.1e-3)
    assert (found.stopped >= episode.stopped).all()


def changed(row, **values):
    def change(rows):
        rows[row] |= values

    return change


def dropped(column):
    def change(rows):
        for row in rows:
            del row[column]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dropped("next_1"), "next_1 is missing among agent, step"),
        (changed(5, state_0="abc"), "line 7, column state_0: expected a finite number, got 'abc'"),
        (changed(5, action_1="nan"), "line 7, column action_1: expected a finite number"),
        (changed(5, step=1.5), "line 7, column step: expected a whole number, got '1.5'"),
        (changed(5, step=-1), "expected 0 to 3, got '-1'; count steps from 0"),
        (changed(5, step=9), "expected the steps 0 to 3, as the horizon is 4, got 0 to 9"),
        (changed(5, step=0), "line 7, column step: agent 1 has step 0 more than once"),
        (lambda rows: rows.__delitem__(slice(1, None, 4)), "no agent has a row for step 1, so"),
        (changed(5, state_0=41.0), "line 7, column state_0: expected a position between 0.0 and 4"),
        (changed(5, next_0=1.5, next_1=1.5), r"line 7, .*\(1.5, 1.5\) is inside a wall; check"),
        (changed(5, action_0=1.2), "line 7, column action_0: the action .* is outside the box"),
        (changed(3, next_0=3.9), "line 5, column next_0: the agent moved by .* check the units"),
        (changed(0, next_0=0.001, next_1=0.001), "column state_. *: expected 0.001, where the"),
        (lambda rows: [r.update(state_2=0.0) for r in rows], "got state_2 as well"),
        (lambda rows: [r.update(run="other") for r in rows], "line 2, column run: expected abc"),
        (lambda rows: [r.update(episode=1) for r in rows], "column episode: expected 2, got '1'"),
        (lambda rows: [r.update(policy="x") for r in rows], "column policy: expected def, got 'x'"),
        (lambda rows: [r.update(reward="") for r in rows], "column reward: expected a finite"),
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path, asked, rows, change, message):
    change(rows)
    with pytest.raises(UserError, match=message):
        read_episode(write(tmp_path / "e.csv", rows), asked)


def test_an_episode_of_another_horizon_is_refused(tmp_path, asked, rows):
    shorter = [row for row in rows if row["step"] < 3]
    with pytest.raises(UserError, match="as the horizon is 4, got 0 to 2"):
        read_episode(write(tmp_path / "e.csv", shorter), asked)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dropped("mass"), "mass is missing among"),
        (changed(1, mass=7.0), "expected masses that sum to 1 at every time, got 7"),
        (changed(1, mass=-0.1), "line 3, column mass: expected 0 or more"),
        (changed(1, cell_0=9), "line 3, column cell_0: expected a cell from 0 to 3, got '9'"),
        (changed(1, cell_0=1, cell_1=1), r"none in walls, for the cell \(1, 1\)"),
        (lambda rows: rows.append(rows[-1]), "step 4 more than once"),
        (lambda rows: [r.update(step=r["step"] + 1) for r in rows], "got 1 to 5"),
    ],
)
def test_masses_that_cannot_be_right_are_refused(tmp_path, asked, rows, episode, change, message):
    masses = mass_rows(asked.problem.grid, episode.mass)
    change(masses)
    path = write(tmp_path / "mass.csv", masses)
    with pytest.raises(UserError, match=message):
        read_episode(write(tmp_path / "e.csv", rows), asked, mass_path=path)


def test_parquet_rows_are_counted_from_one_and_may_lack_values(tmp_path, asked, rows):
    rows[5]["state_1"] = None
    with pytest.raises(UserError, match=r"e.parquet, row 6, column state_1: expected a finite"):
        read_episode(write(tmp_path / "e.parquet", rows), asked)


def test_files_that_are_no_tables_are_refused(tmp_path, asked):
    path = tmp_path / "e.csv"
    for text, message in (
        ("", "got an empty file or line"),
        ("agent,step,agent\n", "agent appears more than once"),
        ("agent,step\n1,2\n3\n", "line 3: expected 2 values"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_episode(path, asked)
    with pytest.raises(UserError, match="there is no file"):
        read_episode(tmp_path / "none.csv", asked)
    for name in ("e.xls", "e.parquet"):
        (tmp_path / name).write_text("PAR1")
        with pytest.raises(UserError, match="parquet"):
            read_episode(tmp_path / name, asked)


def test_without_pyarrow_the_remedy_is_named(tmp_path, asked, rows, monkeypatch):
    path = write(tmp_path / "e.parquet", rows)
    real = builtins.__import__

    def without(name, *arguments, **more):
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'mufield\[parquet\]'") as raised:
        read_episode(path, asked)
    assert raised.value.name == "pyarrow", "by the name a command knows that it is no fault of ours"


def test_the_last_step_is_paid_only_where_the_problem_pays_it(tmp_path):
    grid = Grid.box(0.0, 1.0, 4, periodic=True)
    problem = Problem(
        space=grid,
        actions=Box(-1.0, 1.0),
        reward=lambda s, a, mu: s[0] - a[0] ** 2,
        horizon=2,
        initial=jnp.full(4, 0.25),
        noise=0.01,
        max_move=0.5,
    )
    system = SimulatedSystem(problem, lambda s, a, mu: s + 0.5 * a)
    profile = as_profile(random_policy(problem), 2)
    episode = system.run(profile, jax.random.key(0), agents=9)
    asked = Asked(problem, profile, run="r", episode=1, policy="p")
    path = write(tmp_path / "e.csv", rows_of(episode))
    found = read_episode(path, asked)
    expected = (episode.states[..., 0] - episode.actions[..., 0] ** 2).mean(axis=0)
    np.testing.assert_allclose(found.rewards, expected, atol=1e-9)
    assert not found.stopped.any()
    rows = rows_of(episode)
    rows[0]["state_0"] = 1.2
    with pytest.raises(UserError, match="wrap positions on this periodic axis"):
        read_episode(write(path, rows), asked)


def test_agents_in_cells_count_as_stopped_only_beside_walls():
    grid = Grid.from_map("...\n.#.\n...")
    start = np.array([[0.5, 0.5], [1.5, 0.5], [0.5, 0.5]])
    end = np.array([[0.5, 0.5], [1.5, 0.5], [1.5, 0.5]])
    assert unmoved_at_walls(grid, start, end).tolist() == [[1, 1], [0, 1], [0, 1]]


def test_an_agent_that_slid_past_a_walls_end_was_stopped_by_it():
    grid = Grid.from_map("....\n....\n..#.")
    start, end = np.array([[1.9, 0.5]]), np.array([[1.9999999, 1.2]])
    assert touching(grid, start, end).tolist() == [[True, False]]
    assert touching(grid, np.array([[1.9, 1.1]]), end).tolist() == [[False, False]]


def test_only_rounding_is_forgiven():
    grid = Grid.box(0.0, 2.0, 2)
    points, lost = settle(grid, np.array([[-0.0005], [2.0], [2.0009], [2.5]]))
    assert lost.tolist() == [False, False, False, True]
    assert (points[:3] >= 0).all()
    assert (points[:3] <= 2).all()


def test_episodes_read_are_episodes(tmp_path, asked, rows):
    assert isinstance(read_episode(write(tmp_path / "e.csv", rows), asked), Episode)


def with_start(asked, start=None):
    known = asked.problem.initial if start is None else start
    return replace(asked, start=np.asarray(known, dtype=float))


def notes_of(path, asked, **options):
    """Notes on an episode, without the one on agents that may be a sample."""
    notes = []
    read_episode(path, asked, notes=notes, **options)
    return [note for note in notes if "stand for the whole population" not in note]


def test_agents_that_may_be_a_sample_are_noted_with_their_standard_error(
    tmp_path, asked, episode, rows
):
    told, notes = write(tmp_path / "e.csv", rows), []
    found = read_episode(told, asked, notes=notes)
    agents = len(episode.states)
    shares = np.asarray(found.mass, dtype=float)
    errors = np.sqrt(shares * (1 - shares) / agents)
    (note,) = notes
    assert note.startswith(f"the {agents} agents of the file stand for the whole population")
    assert f"standard errors of up to {errors.max():.1%}" in note
    notes.clear()
    mass = write(tmp_path / "mass.csv", mass_rows(asked.problem.grid, episode.mass))
    read_episode(told, asked, mass_path=mass, notes=notes)
    assert notes == []
    # Nothing to note about a million agents.
    assert notes_on_sample(np.full((4, 2), 0.5), np.full(4, 1_000_000)) == []


def test_an_episode_that_can_be_gets_no_note(tmp_path, asked, episode, rows):
    grid, asked = asked.problem.grid, with_start(asked)
    mass = write(tmp_path / "mass.csv", mass_rows(grid, episode.mass))
    told = write(tmp_path / "e.csv", rows)
    assert notes_of(told, asked) == []
    assert notes_of(told, asked, mass_path=mass) == []


def test_what_cannot_be_is_noted(tmp_path, asked, episode, rows):
    grid, asked = asked.problem.grid, with_start(asked)
    path = write(tmp_path / "e.csv", rows)
    elsewhere = np.roll(asked.start, 1)
    (note,) = notes_of(path, with_start(asked, elsewhere))
    assert "100.0% of the population started where the plan expected nobody" in note
    thin = 0.999 * elsewhere + 0.001 * asked.start
    (note,) = notes_of(path, with_start(asked, thin))
    assert note.startswith("100% of the population started elsewhere than the plan expected")
    masses = write(tmp_path / "mass.csv", mass_rows(grid, np.tile(elsewhere, (5, 1))))
    (note,) = notes_of(path, asked, mass_path=masses)
    assert "started where the plan expected nobody" in note
    paid = write(tmp_path / "e.csv", [row | {"reward": 1e30} for row in rows])
    (note,) = notes_of(paid, asked)
    assert "not what the problem's reward pays: at step 0 the mean is 1e+30" in note
