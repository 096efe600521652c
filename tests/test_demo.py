"""The demonstration as a user meets it."""

from pathlib import Path

import pytest

from mufield.cli.demo import Demo
from mufield.demo import run
from mufield.demo.fleet import run as run_fleet
from mufield.errors import UserError
from mufield.paper.budget import Budget

pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_the_demonstration_learns_writes_its_pictures_and_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "made" / "for it"
    quick = Budget(
        rooms_seeds=1,
        rooms_episodes=2,
        rooms_options={"points": 3, "sweeps": 10},
        precision="float64",
    )
    written = run(target, budget=quick)

    pictures = sorted(path.name for path in target.glob("*.*"))
    assert sorted(path.name for path in written) == pictures
    stills = ["entropy.png", "fields.png", "learning.png"]
    assert pictures in (
        sorted([*stills, "flow.mp4"]),
        sorted([*stills, "flow.gif"]),
    )
    assert all(path.stat().st_size > 1000 for path in target.glob("*.*"))
    printed = capsys.readouterr().out
    for words in ("learned in 2 episodes", "56.18", "79.2", "80.4", "99.49%", "doors"):
        assert words in printed
    assert "77.86" not in printed  # of another world: the paper prints no noise


def test_the_fleet_learns_and_draws_its_map(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = run_fleet(tmp_path / "fleet", episodes=1, agents=3, horizon=3)
    assert [path.stem for path in written] == ["fleet", "served", "fleet", "moves"]
    assert all(path.stat().st_size > 1000 for path in written)
    printed = capsys.readouterr().out
    for words in ("learned in 1 morning", "go towards demand", "100.0%", "1,000"):
        assert words in printed


def test_the_fleet_s_demonstration_has_no_jobs_to_hand_out() -> None:
    with pytest.raises(UserError, match="one computation in this process"):
        Demo(what="fleet", workers=2)()
