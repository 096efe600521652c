"""Computing what is missing, and nothing else."""

import json
import shutil
from dataclasses import replace

import pytest
from tiny import TINY, pretend

from mufield.environments import registry
from mufield.io.atomic import DirectoryInUse, locked
from mufield.jobs import compute
from mufield.jobs.pool import SameProcess
from reproduction import reproduce as whole
from reproduction.__main__ import main
from reproduction.items import ITEMS
from reproduction.paper import QUICK
from reproduction.reproduce import reproduce
from reproduction.results import Drawn, Results
from reproduction.table import DEPARTURES, table_rows

pytestmark = pytest.mark.slow

START = ITEMS[0]


def here(names, out):
    return reproduce(names, out, TINY, SameProcess(), progress=False)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """The cheapest item, computed and drawn."""
    out = tmp_path_factory.mktemp("results")
    assert here([START.name], out) == []
    return out


def test_an_item_writes_its_figures_and_the_table(reproduced):
    figures = Results(reproduced, TINY).files(START)
    assert {path.suffix for path in figures} == {".png", ".pdf"}
    assert {path.name for path in reproduced.glob("table.*")} == {"table.md", "table.json"}
    assert all(path.stat().st_size for path in (*figures, *reproduced.glob("table.*")))
    assert Results(reproduced, TINY).item_state(START) == "done"


@pytest.mark.nightly
@pytest.mark.slow
def test_plans_and_brackets_with_known_motion_come_from_their_jobs(tmp_path):
    assert here(["numbers"], tmp_path) == []  # all items would take minutes to compile
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    found = [
        row["ours"] for row in rows if row["command"].startswith("python -m reproduction numbers")
    ]
    assert len(found) == 4
    assert "not computed" not in found


def test_the_second_call_computes_and_draws_nothing(reproduced, capsys):
    files = Results(reproduced, TINY).files(START)
    before = [path.stat().st_mtime_ns for path in files]
    assert here([START.name], reproduced) == []
    assert [path.stat().st_mtime_ns for path in files] == before
    assert capsys.readouterr().out == ""


def test_a_figure_that_was_deleted_is_drawn_again_without_computing(
    reproduced, tmp_path, monkeypatch, capsys
):
    def draw(results, item):
        path = results.out / "figures" / "start.png"
        path.write_bytes(b"drawn again")
        return Drawn((path,))

    monkeypatch.setattr(Results, "draw", draw)
    out = tmp_path / "copy"
    shutil.copytree(reproduced, out)
    (out / "figures" / "start.png").unlink()
    assert Results(out, TINY).item_state(START) == "partly"
    assert here([START.name], out) == []
    assert "random-rooms: done" not in capsys.readouterr().out
    assert (out / "figures" / "start.png").read_bytes() == b"drawn again"


def test_the_table_says_what_is_not_computed_yet(reproduced):
    rows = json.loads((reproduced / "table.json").read_text())["rows"]
    by_name = {row["quantity"]: row for row in rows}
    random = by_name["four rooms, random policy: entropy at the end"]
    assert float(random["ours"]) > 0
    assert random["seconds"] is not None  # a fast one may be rounded to zero
    assert "jax" in random["versions"]
    assert sum(row["ours"] != "not computed" for row in rows) == 1
    assert all(row["budget"] == "tiny" for row in rows)
    text = (reproduced / "table.md").read_text()
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
    networks = "four rooms, networks: "
    share = rows[
        f"{networks}percent of the plan with known motion in the same class, after 2 episodes, "
        "median"
    ]
    assert (share["paper"], share["ours"]) == ("99.49", "100.64")  # 78.5 of 78
    assert table_rows(results)[0] == share  # the fair comparison comes first
    near = rows[f"{networks}first episode whose median earns 99% of that plan"]
    assert (near["paper"], near["ours"]) == ("only a figure", "2")
    size = rows["U2-MF-QL-FH, Standard: entries of the Q-table"]
    assert (size["ours"], size["deviation"]) == ("10400", "none")
    other = rows["U2-MF-QL-FH, Extended: entries of the Q-table"]
    assert other["deviation"].startswith("-8320: ")


def test_failed_jobs_are_named_and_the_others_are_drawn(tmp_path, monkeypatch):
    def fail(settings, directory):
        raise FloatingPointError("too much")

    monkeypatch.setitem(compute.KINDS, "random", fail)
    (problem,) = here([START.name], tmp_path)
    assert problem.startswith("random-rooms failed: FloatingPointError: too much; see ")
    assert Results(tmp_path, TINY).files(START) == ()
    assert Results(tmp_path, TINY).item_state(START) == "partly"


def test_an_item_is_no_longer_done_when_a_default_changes(reproduced, monkeypatch):
    rooms = registry.find("four-rooms")

    def quieter(*, noise_std=0.2, **options):
        return rooms.build(noise_std=noise_std, **options)

    monkeypatch.setitem(registry._ENTRIES, "four-rooms", replace(rooms, function=quieter))
    results = Results(reproduced, TINY)
    assert results.item_state(START) == "partly"
    (job,) = results.missing(START)
    assert job.settings["options"]["noise_std"] == 0.2


def test_two_reproductions_do_not_share_a_directory(tmp_path):
    with locked(tmp_path), pytest.raises(DirectoryInUse, match="in use"):
        here([START.name], tmp_path)


def test_quick_has_a_directory_of_its_own_and_failures_another_exit_code(
    tmp_path, monkeypatch, capsys
):
    seen = {}

    def note(names, out, budget, pool):
        seen.update(names=names, out=out, budget=budget)
        return ["job failed: why; see log.txt"]

    monkeypatch.setattr(whole, "reproduce", note)
    assert main(["start", "--quick", "--out", str(tmp_path / "mine"), "--workers", "0"]) == 1
    assert seen == {"names": ["start"], "out": tmp_path / "mine-quick", "budget": QUICK}
    assert "error: job failed: why; see log.txt" in capsys.readouterr().err
