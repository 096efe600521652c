"""The demonstration as a user meets it."""

from pathlib import Path

import numpy as np
import pytest

from mufield import UniformRandom, make, spread_actions
from mufield.demo import leave_the_crowd, run


@pytest.mark.slow
def test_the_demonstration_writes_its_pictures_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "made" / "for it"
    assert run(output_dir=target) == 0

    pictures = sorted(path.name for path in target.iterdir())
    assert pictures in (
        ["entropy.png", "fields.png", "flow.mp4"],
        ["entropy.png", "fields.png", "flow.gif"],
    )
    assert all(path.stat().st_size > 1000 for path in target.iterdir())
    printed = capsys.readouterr().out
    for name in pictures:
        assert f"wrote {target / name}\n" in printed
    for words in ("total J", "56.18", "maximum, log 104", "4.644", "upper right", "doors"):
        assert words in printed
    assert "-0.000" not in printed


def test_the_hand_made_policy_spreads_the_population_better_than_chance() -> None:
    system = make("four-rooms")
    box = system.problem.actions
    random = system.evaluate(UniformRandom(spread_actions(box.lower, box.upper, 9)))
    made = system.evaluate(leave_the_crowd)

    assert float(random.value) == pytest.approx(56.18, abs=0.01)
    assert float(made.value) > 69.0
    np.testing.assert_allclose(np.asarray(made.mass).sum(axis=1), 1.0, atol=1e-10)
