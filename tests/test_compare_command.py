"""``mufield compare`` as a user meets it."""

import json
import subprocess
import sys

import pytest
from contest import HORIZON, pretend

from mufield import cli
from mufield.comparison.contenders import AbstractContender
from mufield.environments import registry

WORDS = (
    *("compare", "four-rooms", "--seeds", "1", "--episodes", "2", "--q-episodes", "100"),
    *("--options", f'horizon={HORIZON},drawing="...\\n.#.\\n..."'),
    *("--model-options", "members=2,width=4,steps=3"),
    *("--planner-options", "points=3,sweeps=2"),
)


@pytest.fixture
def mufield(capsys, monkeypatch, tmp_path):
    """Runs the small comparison; returns the exit code, what was printed and what was said."""
    monkeypatch.chdir(tmp_path)
    pretend(monkeypatch)

    def run(*words):
        code = cli.main([*WORDS, *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_all_files_are_written_and_the_table_is_printed(mufield, tmp_path):
    code, out, said = mufield("--contenders", "greedy,known, random,u2mfqlfh")
    assert code == 0, said
    table = [line.split() for line in out.splitlines()]
    assert table[0][-5:] == ["min", "max", "episodes", "transitions", "seconds"]
    assert [line[0] for line in table[1:5]] == ["greedy", "known", "random", "u2mfqlfh*"]
    assert table[4][4:6] == ["100", "300"]
    assert "u2mfqlfh*: not comparable: discrete rooms, other moves and noise" in out
    assert "known: comparable: no policy on the learners' moves earns more than" in out
    assert max(map(len, out.splitlines()[:5])) <= 80
    assert "greedy (1 of 4): plays" in said
    assert "u2mfqlfh, seeds 1/1  J" in said
    files = {path.name for path in (tmp_path / "comparison").iterdir()}
    assert files == {"cache", *(f"comparison.{kind}" for kind in ("json", "csv", "png", "pdf"))}
    assert (tmp_path / "comparison" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "comparison" / "comparison.pdf").read_bytes().startswith(b"%PDF")


def test_json_is_all_that_stands_on_standard_output(mufield, tmp_path):
    code, out, _ = mufield("--contenders", "random,known", "--out", "there", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["contender"] for row in rows] == ["random", "known"]
    assert rows == json.loads((tmp_path / "there" / "comparison.json").read_text())["table"]
    assert {"mean", "min", "max", "episodes", "transitions", "seconds", "note"} < rows[0].keys()
    code, again, said = mufield("--contenders", "random,known", "--out", "there", "--json")
    assert (code, again) == (0, out)
    assert "known (2 of 2): taken from" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--contenders", "random,alphago"), "no contender is named 'alphago'; there are m3ucrl"),
        (("--contenders", ","), "expected at least one contender, got none"),
        (("--seeds", "0"), "seeds must be 1 or more, got 0; correct it"),
        (("--q-episodes", "7"), "q_episodes must be a positive multiple of 10"),
        (("--import", "nowhere.py"), "there is no such file"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(mufield, tmp_path, words, message):
    code, out, said = mufield(*words)
    assert (code, out) == (2, "")
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_interrupted_comparison_says_how_to_go_on(mufield, tmp_path, monkeypatch):
    play = AbstractContender.timed

    def stopped(self, **options):
        if self.name == "known":
            raise KeyboardInterrupt
        return play(self, **options)

    monkeypatch.setattr(AbstractContender, "timed", stopped)
    code, out, said = mufield("--contenders", "random,known")
    assert (code, out) == (130, "")
    assert "stopped; the same command goes on from what is in comparison" in said
    monkeypatch.setattr(AbstractContender, "timed", play)
    code, _, said = mufield("--contenders", "random,known")
    assert code == 0
    assert "random (1 of 2): taken from" in said


def test_your_own_system_can_be_imported(mufield, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    (tmp_path / "mine.py").write_text(
        "from mufield import make, register\n"
        "@register('my-rooms', 'rooms of my own')\n"
        "def rooms(*, horizon=2, drawing='..\\n..'):\n"
        "    return make('four-rooms', horizon=horizon, drawing=drawing)\n"
    )
    code = cli.main(
        ["compare", "my-rooms", "--import", "mine.py", "--contenders", "random", "--out", "there"]
    )
    assert code == 0
    kept = json.loads((tmp_path / "there" / "cache" / "random.json").read_text())
    assert kept["settings"]["versions"]["imported"]["sha256"]


def test_help_explains_every_flag_and_imports_no_jax():
    script = (
        "import sys\nfrom mufield.cli import main\ncode = main(['compare', '--help'])\n"
        "assert 'jax' not in sys.modules\nassert 'matplotlib' not in sys.modules\nsys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    flags = (
        "contenders seeds episodes q-episodes options model-options planner-options import out json"
    )
    for flag in flags.split():
        assert f"--{flag}" in done.stdout
