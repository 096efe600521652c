"""The demonstrations as a user meets them."""

import pytest

from mufield.demo import run

pytestmark = pytest.mark.slow

SMALL = {
    "rooms": {"horizon": 3, "drawing": "...\n.#.\n..."},
    "fleet": {"horizon": 3},
}


@pytest.mark.parametrize(
    ("what", "pictures", "words"),
    [
        ("rooms", {"learning", "fields", "film"}, ("uniform random", "earns more than")),
        ("fleet", {"served", "fleet", "film"}, ("go towards demand", "passengers")),
    ],
)
def test_a_demonstration_says_what_it_does_and_leaves_pictures(
    tmp_path, capsys, what, pictures, words
):
    out = tmp_path / "made" / "for it"
    written = run(what, out, episodes=1, **SMALL[what])
    assert {path.stem for path in written} == pictures
    assert all(path.stat().st_size > 1000 for path in written)
    assert sorted(out.iterdir()) == sorted(written)
    printed = capsys.readouterr().out
    for each in (*words, "episode 1 of 1 ... J = ", "1,000 agents", "100.0%", "s in all"):
        assert each in printed
