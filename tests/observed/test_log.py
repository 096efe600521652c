"""Logs from files: loose rows become the transitions that they show, or are refused by name."""

import jax
import numpy as np
import pytest
from fleet import mass_rows, rows_of, write

from mufield import UserError, make, random_policy, read_log
from mufield.io.checks import Asked
from mufield.io.episode import read_episode
from mufield.models.data import Transitions
from mufield.policies.base import as_profile

pytestmark = pytest.mark.slow

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def system():
    return make("four-rooms", horizon=4, drawing="....\n.##.\n....")


@pytest.fixture(scope="module")
def problem(system):
    return system.problem


@pytest.fixture(scope="module")
def episode(system):
    return system.run(random_policy(system.problem), jax.random.key(3), agents=12)


@pytest.fixture
def rows(episode):
    return rows_of(episode)


@pytest.fixture
def read(tmp_path, problem):
    def read(rows, name="log.csv", **more):
        return read_log(write(tmp_path / name, rows), problem, **more)

    return read


def same(one: Transitions, other: Transitions, atol=0.0):
    """Whether both hold the same transitions in the same order."""
    for name in ("states", "actions", "next_states", "observed"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=atol)
    np.testing.assert_allclose(one.mass[one.moment], other.mass[other.moment], atol=atol)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_an_episode_told_as_a_log_is_the_same_data(tmp_path, problem, episode, rows, read, suffix):
    profile = as_profile(random_policy(problem), 4)
    told = read_episode(write(tmp_path / "e.csv", rows), Asked(problem, profile, "r", 1, "p"))
    data = Transitions.of(problem, [told])
    log = read(rows, f"log.{suffix}")
    assert log.notes == ()
    by_time = np.lexsort((np.repeat(np.arange(12), 4), data.moment))
    same(log.data, data.rows(by_time))
    masses = write(tmp_path / "mass.csv", mass_rows(problem.grid, episode.mass))
    whole = Transitions.of(problem, [episode]).rows(by_time)
    same(read(rows, mass_path=masses).data, whole, atol=1e-12)


def test_the_order_of_rows_does_not_matter(rows, read):
    sound = read(rows).data
    np.random.default_rng(0).shuffle(rows)
    same(read(rows).data, sound)


def followed(rows, clock=lambda step: {"step": step}):
    """The same without next positions: each agent has one row more, in which it does nothing."""
    found = []
    for row in rows:
        ends = {f"state_{i}": row[f"next_{i}"] for i in range(2)}
        lasts = (
            [] if row["step"] < 3 else [row | ends | {"step": 4, "action_0": "", "action_1": ""}]
        )
        found += [row, *lasts]
    kept = ("agent", "state_0", "state_1", "action_0", "action_1")
    return [{name: row[name] for name in kept} | clock(row["step"]) for row in found]


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        (lambda step: {"step": 7 + step}, None),
        (lambda step: {"time": 0.1 * step}, "a step is 0.1 of the column time"),
        (lambda step: {"time": f"2026-03-01 08:{15 + step}:00"}, "a step is 60 of"),
    ],
)
def test_the_next_row_of_an_agent_says_where_it_went(rows, read, clock, said):
    log = read(followed(rows, clock))
    same(log.data, read(rows).data, atol=1e-12)
    assert (len(log.notes) == 1 and log.notes[0].startswith(said)) if said else log.notes == ()


def test_moves_with_a_gap_are_left_out(rows, read):
    """Agent 0 misses step 2, agent 1 joins at 3, agent 2 leaves after 1."""
    lost = {(0, 2), (1, 0), (1, 1), (1, 2), (2, 2), (2, 3), (2, 4)}
    kept = [r for r in followed(rows) if (r["agent"], r["step"]) not in lost]
    log = read(kept)
    assert len(log.data) == 48 - 2 - 3 - 3  # a move needs both of its ends
    gap, few = log.notes
    assert gap == "1 of 41 moves were left out, because the agent's next row is not 1 later"
    assert few.startswith("at 1 of 4 times fewer than 10 agents")  # at step 2 there are nine


def test_episodes_of_any_length_and_start_stay_apart(rows, read):
    """Agents 0 to 5 in one short episode, the others in another that begins later."""
    parts = [row | {"episode": "late", "step": row["step"] + 5} for row in rows if row["agent"] > 1]
    parts += [row | {"episode": "early"} for row in rows if row["agent"] <= 1 and row["step"] < 2]
    log = read(parts)
    assert len(log.data) == 10 * 4 + 2 * 2
    assert len(log.data.mass) == 4 + 1
    assert log.notes[0].startswith("at 2 of 6 times fewer than 10 agents have a row")
    joined = [row | {"episode": row["agent"] % 2} for row in rows]
    assert len(read(joined).data) == 48  # nobody goes on in another episode
    assert "fewer than 10" in read(joined).notes[0]


def test_few_agents_are_no_population(problem, rows, read):
    alone = read([row for row in rows if row["agent"] < 2])
    np.testing.assert_allclose(alone.data.mass, 1 / problem.grid.n_cells)
    assert alone.notes[0].startswith("at 4 of 4 times fewer than 10 agents have a row, so the")
    # But all of them are, where only some are learned from.
    chosen = read(rows, agents=["1", "0"])
    assert (len(chosen.data), chosen.notes) == (8, ())
    assert (chosen.data.mass == read(rows).data.mass).all()


def test_masses_come_by_time_and_episode(tmp_path, problem, episode, rows, read):
    two = [row | {"episode": number} for number in (3, 12) for row in rows]
    masses = [
        row | {"episode": number, "step": row["step"]}
        for number, flow in ((12, episode.mass), (3, episode.mass[::-1]))
        for row in mass_rows(problem.grid, flow)
    ]
    path = write(tmp_path / "mass.csv", masses)
    data = read(two, mass_path=path).data
    np.testing.assert_allclose(data.mass[data.moment[0]], episode.mass[4], atol=1e-12)
    np.testing.assert_allclose(data.mass[data.moment[48]], episode.mass[0], atol=1e-12)
    without = write(path, [row for row in masses if (row["episode"], row["step"]) != (12, 2)])
    with pytest.raises(UserError, match=r"at step 2, episode 12, as of .* line 52"):
        read(two, mass_path=without)
    with pytest.raises(UserError, match="episode is missing among step, mass"):
        read(two, mass_path=write(path, mass_rows(problem.grid, episode.mass)))


def changed(row, **values):
    def change(rows):
        rows[row] |= values

    return change


def without(*columns):
    def change(rows):
        for row in rows:
            for column in columns:
                del row[column]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("agent"), "agent is missing among step"),
        (without("step"), "expected a column time or step, got agent, state_0"),
        (without("state_1"), "state_1 is missing among"),
        (without("action_0"), "action_0 is missing among"),
        (without("next_1"), "next_1 is missing among"),
        (changed(5, step="x"), "line 7, column step: expected a finite number"),
        (changed(5, step=0.5), "line 7, column step: expected a whole number"),
        (lambda rows: [r.update(time=r["step"]) for r in rows] and rows[5].update(time="noon"),
         "line 7, column time: expected a number, or a date and time such as .* got 'noon'"),
        (changed(5, state_0="nan"), "line 7, column state_0: expected a finite number"),
        (changed(5, action_1=""), "line 7, column action_1: expected a finite number"),
        (changed(5, next_0="inf"), "line 7, column next_0: expected a finite number"),
        (changed(5, state_0=41.0), "line 7, column state_0: expected a position between"),
        (changed(5, state_0=1.5, state_1=1.5), r"line 7, .*\(1.5, 1.5\) is inside a wall"),
        (changed(5, next_0=1.5, next_1=1.5), r"line 7, .*\(1.5, 1.5\) is inside a wall"),
        (changed(5, action_0=1.2), "line 7, column action_0: the action .* is outside the box"),
        (changed(3, next_0=3.9), "line 5, column next_0: the agent moved by"),
        (lambda rows: rows.append(dict(rows[5])),
         "line 50, column step: agent 1 has step 1 more than once; leave one out"),
        (lambda rows: [r.update(state_2=0.0) for r in rows], "got state_2 as well"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(rows, read, change, message):
    change(rows)
    with pytest.raises(UserError, match=message):
        read(rows)


def test_what_cannot_be_right_is_refused_also_without_next_positions(rows, read):
    steps = followed(rows)
    far = [
        row | ({"state_0": 3.9, "state_1": 2.9} if i == 4 else {}) for i, row in enumerate(steps)
    ]
    with pytest.raises(UserError, match=r"line 5, column state_0: the agent moved by"):
        read(far)
    with pytest.raises(UserError, match="no agent has two rows one step apart"):
        read(steps[::2])
    steps[0]["action_0"] = ""
    with pytest.raises(UserError, match="line 2, column action_0: expected a finite number"):
        read(steps)
