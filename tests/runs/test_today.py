"""Runs that are asked for a plan from where the agents are today."""

import jax
import jax.numpy as jnp
import numpy as np
from fleet import rows_of, write

from mufield import cli
from mufield.observed.episode import read_positions
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
    episode = small.system.run(profile, jax.random.key(0), agents=4, initial=today)
    assert cli.main(["tell", str(run), str(write(told, rows_of(episode)))]) == 0
    with open_run(run, small) as session:
        first = session.store.records[0].arrays["mass"][0]
        assert first[small.problem.initial > 0].sum() == 0
        assert len(session.data) == 12
        # The next day starts where the problem says again.
        np.testing.assert_allclose(session.ask().mass[0], small.problem.initial)
