"""Runs that are asked for a plan from where the agents are today."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
from fleet import rows_of, write

from mufield import cli
from mufield.io.observed import read_positions
from mufield.io.policies import read_info
from mufield.runs.files import RunFiles, summarise
from mufield.runs.session import open_run


def test_a_run_is_asked_for_a_start_of_today(begin, tmp_path, capsys):
    run, places = tmp_path / "run", tmp_path / "today.csv"
    begin(run)
    write(places, [{"agent": i, "state_0": 2.5, "state_1": 0.5 + i % 2} for i in range(4)])
    assert cli.main(["ask", str(run), "--start", str(places)]) == 0, capsys.readouterr().err
    with open_run(run) as session:
        expected, _ = read_positions(places, session.setup.problem)
        assert float(jnp.max(expected)) == 0.5
        np.testing.assert_allclose(session.ask().mass[0], expected)
    write(places, [{"agent": 0, "state_0": 0.5, "state_1": 0.5}])
    assert cli.main(["ask", str(run), "--start", str(places)]) == 2
    assert "planned from another distribution already" in " ".join(capsys.readouterr().err.split())
    write(places, [{"agent": 0, "state_0": 1.5, "state_1": 1.5}])
    assert cli.main(["ask", str(run), "--start", str(places)]) == 2
    assert "is inside a wall" in " ".join(capsys.readouterr().err.split())


def test_an_episode_from_today_is_told(begin, small, tmp_path, capsys):
    run, places, told = tmp_path / "run", tmp_path / "today.csv", tmp_path / "day.csv"
    begin(run)
    write(places, [{"agent": i, "state_0": 2.5, "state_1": 0.5 + i % 2} for i in range(4)])
    assert cli.main(["ask", str(run), "--start", str(places)]) == 0, capsys.readouterr().err
    with open_run(run, small) as session:
        profile, today = session.ask().profile, session.ask().mass[0]
    episode = small.system.from_step(0, today).run(profile, jax.random.key(0), agents=4)
    assert cli.main(["tell", str(run), str(write(told, rows_of(episode)))]) == 0
    with open_run(run, small) as session:
        first = session.store.records[0].arrays["mass"][0]
        assert first[small.problem.initial > 0].sum() == 0
        assert len(session.data) == 12
        # The next day starts where the problem says again.
        np.testing.assert_allclose(session.ask().mass[0], small.problem.initial)


def tell_a_day(run, small, directory, start=None, key=0):
    """Asks, runs and tells one day of four agents, from where they are today; returns its row."""
    directory.mkdir(exist_ok=True)
    places, told = directory / "today.csv", directory / "day.csv"
    asked = ["ask", str(run)]
    if start is not None:
        write(places, [{"agent": i, "state_0": start[0], "state_1": start[1]} for i in range(4)])
        asked += ["--start", str(places)]
    assert cli.main(asked) == 0
    with open_run(run, small) as session:
        plan = session.ask()
    today = plan.mass[0]
    episode = small.system.from_step(0, today).run(plan.profile, jax.random.key(key), agents=4)
    rows = rows_of(episode)
    for row in rows:  # so that a day from elsewhere is the best by far
        row["reward"] = -5.0 if start is None else -1.0
    assert cli.main(["tell", str(run), str(write(told, rows))]) == 0
    with open_run(run, small) as session:
        return session.store.rows[-1]


def test_an_episode_from_elsewhere_is_not_the_luckiest(begin, small, tmp_path, capsys):
    run, days = tmp_path / "run", tmp_path / "days"
    begin(run)
    first = tell_a_day(run, small, days, start=(2.5, 0.5))
    # As long as there is no other, it counts, but not with what it earned.
    assert RunFiles(run).best_episode == 1
    assert first["best"] == first["value"]
    with open_run(run, small) as session:
        assert "by what it earned" not in session.best(cautious=True).how
    second = tell_a_day(run, small, days, key=1)
    third = tell_a_day(run, small, days, start=(2.5, 0.5), key=2)
    assert first["value"] > second["value"] < third["value"]
    assert first["elsewhere"] == third["elsewhere"] == 1.0
    assert "elsewhere" not in second
    assert second["best"] == third["best"] == second["value"]
    files = RunFiles(run)
    assert files.best_episode == files.episode_number("best-episode") == 2
    assert summarise(run)["best"] == second["value"]
    copied = (run / "best_episode.policy").read_bytes()
    assert copied == (run / "policies" / "0002.policy").read_bytes()
    with open_run(run, small) as session:
        chosen = session.best(cautious=True)
    if "by what it earned" in chosen.how:
        assert chosen.expected == second["value"]
    capsys.readouterr()
    assert cli.main(["show", str(run)]) == 0
    assert "100.0%" in capsys.readouterr().out


def test_plans_from_different_starts_have_different_ids(begin, small, tmp_path, capsys):
    runs, places = (tmp_path / "a", tmp_path / "b"), tmp_path / "today.csv"
    begin(runs[0])
    shutil.copytree(runs[0], runs[1])
    write(places, [{"agent": 0, "state_0": 2.5, "state_1": 0.5}])
    policies = [tmp_path / "a.policy", tmp_path / "b.policy"]
    asked = (["ask", str(runs[0])], ["ask", str(runs[1]), "--start", str(places)])
    for arguments, out in zip(asked, policies, strict=True):
        assert cli.main([*arguments, "--out", str(out)]) == 0
    names = [RunFiles(run).policy_id(1) for run in runs]
    assert names == [read_info(each)["id"] for each in policies]
    assert names[0] != names[1]
    with open_run(runs[0], small) as session:
        episode = small.system.run(session.ask().profile, jax.random.key(0), agents=2)
    rows = [row | {"policy": names[0]} for row in rows_of(episode)]
    wrong = write(tmp_path / "wrong.csv", [row | {"policy": names[1]} for row in rows])
    capsys.readouterr()
    assert cli.main(["tell", str(runs[0]), str(wrong)]) == 2
    assert f"expected {names[0]}, got {names[1]!r}" in " ".join(capsys.readouterr().err.split())
    assert cli.main(["tell", str(runs[0]), str(write(tmp_path / "day.csv", rows))]) == 0
