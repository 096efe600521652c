"""The demonstration as a user meets it."""

import pytest

from mufield.demo import run

pytestmark = pytest.mark.slow


def test_the_demonstration_says_what_it_does_and_leaves_pictures(tmp_path, capsys):
    out = tmp_path / "made" / "for it"
    written = run(out, episodes=1, horizon=3, drawing="...\n.#.\n...")
    assert {path.stem for path in written} == {"learning", "fields", "film"}
    assert all(path.stat().st_size > 1000 for path in written)
    assert sorted(out.iterdir()) == sorted(written)
    printed = capsys.readouterr().out
    for each in (
        *("uniform random", "earns more than", "episode 1 of 1 ... J = "),
        *("1,000 agents", "100.0%", "s in all"),
    ):
        assert each in printed
