"""Computing what is missing, and nothing else."""

import json
import shutil
from dataclasses import replace

import pytest
from tiny import TINY, pretend

from mufield import cli
from mufield.cli import reproduce as command
from mufield.environments import registry
from mufield.io.atomic import DirectoryInUse, locked
from mufield.jobs import compute
from mufield.paper import reproduce as whole
from mufield.paper.catalogue import ITEMS
from mufield.paper.reproduce import reproduce
from mufield.paper.results import Drawn, Results
from mufield.paper.table import DEPARTURES, table_rows

pytestmark = pytest.mark.slow

START = ITEMS[0]


def here(names, out, **options):
    return reproduce(names, out, TINY, progress=False, **options)


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
    assert Results(out, TINY).item_state(START) == "done"


@pytest.mark.slow
def test_plans_and_brackets_with_known_motion_come_from_their_jobs(tmp_path):
    outcome = here(["numbers"], tmp_path)  # all items would take minutes to compile
    assert outcome.problems == ()
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    found = [row["ours"] for row in rows if row["command"].startswith("mufield reproduce numbers")]
    assert len(found) == 4
    assert "not computed" not in found


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
    assert Results(out, TINY).item_state(START) == "partly"
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
    outcome = here([START.name], tmp_path)
    (problem,) = outcome.problems
    assert problem.startswith("random-rooms failed: FloatingPointError: too much; see ")
    assert outcome.files == ()
    assert Results(tmp_path, TINY).item_state(START) == "partly"


def test_an_item_is_no_longer_done_when_a_default_changes(reproduced, monkeypatch):
    rooms = registry.find("four-rooms")

    def quieter(*, noise_std=0.2, **options):
        return rooms.build(noise_std=noise_std, **options)

    monkeypatch.setitem(registry._ENTRIES, "four-rooms", replace(rooms, function=quieter))
    results = Results(reproduced[0], TINY)
    assert results.item_state(START) == "partly"
    (job,) = results.missing(START)
    assert results.why_anew(job) == "options.noise_std was 0.25 and is 0.2 now"


def test_two_reproductions_do_not_share_a_directory(tmp_path):
    with locked(tmp_path), pytest.raises(DirectoryInUse, match="in use"):
        here([START.name], tmp_path)


def test_quick_has_a_directory_of_its_own(tmp_path, monkeypatch, capsys):
    seen = {}

    def note(names, out, budget, **options):
        seen.update(names=names, out=out, budget=budget)
        return whole.Reproduction((), (), (), 0)

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
    failed = whole.Reproduction((), (tmp_path / "table.md",), ("job failed: why; see log.txt",), 0)
    monkeypatch.setattr(whole, "reproduce", lambda *arguments, **options: failed)
    monkeypatch.setattr(command, "QUICK", TINY)
    assert cli.main(["reproduce", "start", "--quick", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "error: job failed: why; see log.txt" in told.err
    assert "table.md" in told.out
