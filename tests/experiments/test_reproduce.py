"""Computing what is missing, and nothing else."""

import json
import shutil

import pytest
from experiments.tiny import TINY, pretend

from mufield import cli
from mufield._files import DirectoryInUse, locked
from mufield.cli import reproduce as command
from mufield.experiments import lanes, tasks
from mufield.experiments import reproduce as whole
from mufield.experiments.catalogue import ITEMS
from mufield.experiments.jobs import Job
from mufield.experiments.lanes import run_jobs
from mufield.experiments.reproduce import reproduce
from mufield.experiments.results import Drawn, Results
from mufield.experiments.table import DEPARTURES, table_rows
from mufield.runs.config import parse_config
from mufield.runs.session import learn_run, new_run

START = ITEMS[0]


def here(names, out, **options):
    return reproduce(names, out, TINY, workers=0, progress=False, **options)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """The cheapest item, computed and drawn; with what was said."""
    out, said = tmp_path_factory.mktemp("results"), []
    outcome = here([START.name], out, say=said.append)
    return out, said, outcome


def test_an_item_writes_its_figures_and_the_table(reproduced):
    out, said, outcome = reproduced
    assert outcome.problems == ()
    assert outcome.computed == 1
    assert {path.suffix for path in outcome.files} == {".png", ".pdf"}
    assert {path.name for path in outcome.table} == {"table.md", "table.json", "table.csv"}
    assert all(path.stat().st_size for path in (*outcome.files, *outcome.table))
    assert any("random-rooms: done" in line for line in said)
    assert Results(out, TINY).state(START) == "done"


def test_the_second_call_computes_and_draws_nothing(reproduced):
    out, _, first = reproduced
    before = [path.stat().st_mtime_ns for path in first.files]
    said = []
    again = here([START.name], out, say=said.append)
    assert again.computed == 0
    assert again.files == first.files
    assert [path.stat().st_mtime_ns for path in again.files] == before
    assert said == []


def test_a_figure_that_was_deleted_is_drawn_again_without_computing(
    reproduced, tmp_path, monkeypatch
):
    def draw(item, results):
        path = results.out / "figures" / "start.png"
        path.write_bytes(b"drawn again")
        return Drawn((path,))

    monkeypatch.setattr(type(START), "draw", draw)
    out = tmp_path / "copy"
    shutil.copytree(reproduced[0], out)
    (out / "figures" / "start.png").unlink()
    assert Results(out, TINY).state(START) == "partly"
    again = here([START.name], out)
    assert again.computed == 0
    assert (out / "figures" / "start.png").read_bytes() == b"drawn again"


def test_the_table_says_what_is_not_computed_yet(reproduced):
    rows = json.loads((reproduced[0] / "table.json").read_text())["rows"]
    by_name = {row["quantity"]: row for row in rows}
    random = by_name["four rooms, random policy: entropy at the end"]
    assert float(random["ours"]) > 0
    assert random["seconds"] is not None  # a fast one may be rounded to zero
    assert "jax" in random["versions"]
    assert sum(row["ours"] != "not computed" for row in rows) == 1
    assert all(row["budget"] == "tiny" for row in rows)
    text = (reproduced[0] / "table.md").read_text()
    assert "(tiny)" in text.splitlines()[0]
    assert all(departure in text for departure in DEPARTURES)


def test_numbers_are_compared_with_the_papers(tmp_path):
    results = Results(tmp_path, TINY)
    pretend(results, ITEMS, policies=False)
    rows = {row["quantity"]: row for row in table_rows(results)}
    last = rows["four rooms, networks: J after 2 episodes, median"]
    assert (last["paper"], last["ours"]) == ("77.86", "78.50")
    assert last["deviation"].startswith("+0.64 (+0.8%): ")
    assert last["seeds"] == "0 to 1"
    assert last["seconds"] == 3.0
    passed = rows["four rooms, networks: first episode whose median passes 77.86"]
    assert (passed["paper"], passed["ours"]) == ("30", "2")
    size = rows["U2-MF-QL-FH, Standard: entries of the Q-table"]
    assert (size["ours"], size["deviation"]) == ("10400", "none")
    other = rows["U2-MF-QL-FH, Extended: entries of the Q-table"]
    assert other["deviation"].startswith("-8320: ")


def test_a_run_that_was_interrupted_goes_on(tmp_path):
    job = tasks.rooms_runs(TINY, "mirror")[0]
    results = Results(tmp_path, TINY)
    run = results.jobs.begin(job) / "run"
    config = parse_config(job.settings, "the test")
    learn_run(run, 1, setup=new_run(run, config), progress=False)
    first = (run / "episodes" / "0001.safetensors").stat().st_mtime_ns
    assert results.jobs.state(job) == "partly"
    assert results.jobs.progress(job) == 0.5

    (finished,) = run_jobs([job], results.jobs, workers=0)

    assert finished.problem == ""
    assert len(results.figures_of(job)["values"]) == 2
    assert (run / "episodes" / "0001.safetensors").stat().st_mtime_ns == first
    assert results.jobs.progress(job) == 1.0


def test_helper_processes_report_failures_and_go_on(tmp_path):
    store = Results(tmp_path, TINY).jobs
    bad = Job("bad", "random", {"environment": "nowhere", "options": {}, "precision": "float64"})
    good = tasks.random_rooms(TINY)
    after = Job("after", "random", good.settings | {"precision": "float32"})
    found = run_jobs([bad, good, after], store, workers=1)
    first, second = next(found), next(found)
    found.close()  # as Ctrl-C does
    assert "bad failed: ValueError: no system is named 'nowhere'" in first.problem
    assert str(store.path(bad) / "log.txt") in first.problem
    assert "Traceback" in (store.path(bad) / "log.txt").read_text()
    assert second.problem == ""
    assert store.state(good) == "done"
    assert store.state(bad) == "partly"


def test_a_process_that_dies_is_a_failure_of_its_job(tmp_path, monkeypatch):
    monkeypatch.setattr(lanes.sys, "executable", "/bin/false")
    (finished,) = run_jobs([tasks.random_rooms(TINY)], Results(tmp_path, TINY).jobs, workers=1)
    assert "random-rooms failed: its process ended with code" in finished.problem


def test_failed_jobs_are_named_and_the_others_are_drawn(tmp_path, monkeypatch):
    def fail(jobs, store, **options):
        return iter([lanes.Finished(job, f"{job.name} failed: see its log") for job in jobs])

    monkeypatch.setattr(whole, "run_jobs", fail)
    outcome = here([START.name], tmp_path)
    assert outcome.problems == ("random-rooms failed: see its log",)
    assert outcome.files == ()
    assert Results(tmp_path, TINY).state(START) == "missing"


def test_two_reproductions_do_not_share_a_directory(tmp_path):
    with locked(tmp_path), pytest.raises(DirectoryInUse, match="in use"):
        here([START.name], tmp_path)


def test_quick_has_a_directory_of_its_own(tmp_path, monkeypatch, capsys):
    seen = {}

    def note(names, out, budget, **options):
        seen.update(names=names, out=out, budget=budget)
        return whole.Outcome((), (), (), 0)

    monkeypatch.setattr(whole, "reproduce", note)
    monkeypatch.setattr(command, "QUICK", TINY)
    arguments = ["reproduce", "start", "--quick", "--out", str(tmp_path / "mine"), "--json"]
    assert cli.main(arguments) == 0
    assert seen == {"names": ("start",), "out": tmp_path / "mine-quick", "budget": TINY}
    assert json.loads(capsys.readouterr().out)["problems"] == []


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(whole, "reproduce", stop)
    monkeypatch.setattr(command, "QUICK", TINY)
    assert cli.main(["reproduce", "start", "--quick", "--out", str(tmp_path / "mine")]) == 130
    said = capsys.readouterr().err
    assert f"go on with: mufield reproduce start --out {tmp_path / 'mine'} --quick" in said


def test_failures_are_told_and_give_another_exit_code(tmp_path, monkeypatch, capsys):
    failed = whole.Outcome((), (tmp_path / "table.md",), ("job failed: why; see log.txt",), 0)
    monkeypatch.setattr(whole, "reproduce", lambda *arguments, **options: failed)
    monkeypatch.setattr(command, "QUICK", TINY)
    assert cli.main(["reproduce", "start", "--quick", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "error: job failed: why; see log.txt" in told.err
    assert "table.md" in told.out
