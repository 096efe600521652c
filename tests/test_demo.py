"""The demonstration as a user meets it."""

from pathlib import Path

import pytest

from mufield import M3UCRL, DeepEnsemble, MirrorPlanner, make
from mufield.demo import run


@pytest.mark.slow
def test_the_demonstration_learns_writes_its_pictures_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "made" / "for it"
    quick = M3UCRL(
        make("four-rooms").problem,
        DeepEnsemble(members=3, steps=50),
        MirrorPlanner(points=3, sweeps=10),
    )
    written = run(output_dir=target, episodes=2, learner=quick)
    assert all(path.is_file() for path in written)

    pictures = sorted(path.name for path in target.iterdir())
    stills = ["entropy.png", "fields.png", "learning.png"]
    assert pictures in (
        sorted([*stills, "flow.mp4"]),
        sorted([*stills, "flow.gif"]),
    )
    assert all(path.stat().st_size > 1000 for path in target.iterdir())
    printed = capsys.readouterr().out
    for name in pictures:
        assert f"wrote {target / name}\n" in printed
    for words in ("learned in 2 episodes", "56.18", "77.86", "78.26", "79.2", "80.4", "doors"):
        assert words in printed
