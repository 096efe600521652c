"""``mufield compare`` as a user meets it."""

import json
import subprocess
import sys

import pytest
from contest import HORIZON, pretend

from mufield import cli
from mufield.compare.comparison import ComparisonConfig
from mufield.environments import registry
from mufield.jobs import compute

pytestmark = pytest.mark.slow

WORDS = (
    *("compare", "discrete-rooms", "--seeds", "0", "--episodes", "2"),
    *("--options", f'horizon={HORIZON},drawing="...\\n.#.\\n..."'),
    *("--model-options", "inducing=8,fit_kernel=false"),
    *("--planner-options", "points=3,sweeps=2"),
)


@pytest.fixture
def mufield(capsys, monkeypatch, tmp_path):
    """Runs the small comparison; returns the exit code, what was printed and what was said."""
    monkeypatch.chdir(tmp_path)
    pretend(monkeypatch)

    def run(*words):
        code = cli.main([*WORDS, "--workers", "0", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_all_files_are_written_and_the_table_is_printed(mufield, tmp_path):
    code, out, said = mufield("--contenders", "greedy,known, random,bonus")
    assert code == 0, said
    table = [line.split() for line in out.splitlines()]
    assert table[0][-6:] == ["95%", "from", "to", "episodes", "transitions", "seconds"]
    assert [line[0] for line in table[1:5]] == ["greedy", "known", "random", "bonus"]
    assert table[4][4:6] == ["2", "6"]
    assert "known: no policy on the learners' moves earns more than" in out
    assert out.count("J of a learner is") == 1
    assert "J of a learner is that of its last episode, 2" in out
    assert max(map(len, out.splitlines()[:5])) <= 80
    assert "[1/4] greedy-0: done" in said
    files = {path.name for path in (tmp_path / "comparison").iterdir()}
    assert files == {
        "jobs",
        "lock",
        "curves.csv",
        *(f"comparison.{kind}" for kind in ("json", "csv", "png", "pdf")),
    }
    assert (tmp_path / "comparison" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "comparison" / "comparison.pdf").read_bytes().startswith(b"%PDF")


def test_the_table_says_how_often_limits_were_broken(mufield, capsys):
    words = ("swarm-spread", "--options", "horizon=4,cells=6", "--contenders", "unsafe,random")
    code = cli.main(["compare", *words, *WORDS[2:6], "--workers", "0", "--out", "there"])
    out = capsys.readouterr().out
    assert code == 0
    head, unsafe, drawn = [line.split() for line in out.splitlines()[:3]]
    assert (head[-1], unsafe[-1], drawn[-1]) == ("violated", "100.0%", "–")


def test_json_is_all_that_stands_on_standard_output(mufield, tmp_path):
    code, out, _ = mufield("--contenders", "random,known", "--out", "there", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["contender"] for row in rows] == ["random", "known"]
    assert rows == json.loads((tmp_path / "there" / "comparison.json").read_text())["table"]
    names = {"mean", "low", "high", "seeds", "episodes", "transitions", "seconds", "note"}
    assert names < rows[0].keys()
    assert mufield("--contenders", "random,known", "--out", "there", "--json") == (0, out, "")


def test_the_usual_contenders_stand_beside_others():
    config = ComparisonConfig("four-rooms", contenders=("stay", "usual", "m3ucrl:ensemble"))
    usual = ("m3ucrl", "greedy", "thompson", "random", "known")
    assert config.contenders == ("stay", *usual, "m3ucrl:ensemble")
    assert ComparisonConfig("manhattan").contenders == (
        "stay",
        "demand",
        "m3ucrl",
        "known",
        "fluid",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--contenders", "random,alphago"), "no contender is named 'alphago'; there are m3ucrl"),
        (("--contenders", ","), "expected at least one contender, got none"),
        (("--seeds", "1,1"), "the seed 1 is named twice"),
        (("--import", "nowhere.py"), "there is no such file"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(mufield, tmp_path, words, message):
    code, out, said = mufield(*words)
    assert (code, out) == (2, "")
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_interrupted_comparison_says_how_to_go_on(mufield, monkeypatch):
    def stopped(settings, directory):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(compute.KINDS, "mirror", stopped)
        code, out, said = mufield("--contenders", "random,known")
    assert (code, out) == (130, "")
    assert "stopped; the same command goes on from what is in comparison" in said
    code, _, said = mufield("--contenders", "random,known")
    assert code == 0
    assert "[1/1] known: done" in said


def test_a_failure_is_told_and_gives_another_exit_code(mufield, monkeypatch):
    def fails(settings, directory):
        raise FloatingPointError("too much")

    monkeypatch.setitem(compute.KINDS, "mirror", fails)
    code, out, said = mufield("--contenders", "random,known")
    assert code == 1
    assert "random" in out
    assert "error: known failed: FloatingPointError: too much; see comparison/jobs/known-" in said


def test_your_own_system_can_be_imported(mufield, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    (tmp_path / "mine.py").write_text(
        "from mufield import make, register\n"
        "@register('my-rooms', 'rooms of my own')\n"
        "def rooms(*, horizon=2, drawing='..\\n..'):\n"
        "    return make('four-rooms', horizon=horizon, drawing=drawing)\n"
    )
    code = cli.main(
        [
            "compare",
            "my-rooms",
            "--import",
            "mine.py",
            "--contenders",
            "random",
            "--out",
            "there",
            "--workers",
            "0",
        ]
    )
    assert code == 0
    (job,) = (tmp_path / "there").glob("jobs/random-*/job.json")
    assert len(json.loads(job.read_text())["versions"]["imported"]) == 64


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
    flags = "contenders seeds episodes options model-options planner-options import out"
    for flag in (*flags.split(), "workers", "json"):
        assert f"--{flag}" in done.stdout
