"""The page as a file, and the command that writes it."""

import json
import os
import re
from html.parser import HTMLParser

import pytest
from report_runs import ROOMS, SMALL, add_episode, begin

from mufield import cli
from mufield.report.data import RunReader, collect
from mufield.report.page import build_page, embed

VOID = {"meta", "link", "input", "br"}


class Reader(HTMLParser):
    """Checks that elements close in order; keeps identifiers, and the data."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.loads, self.data = [], [], [], ""

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.loads += [found[name] for name in ("src", "href") if name in found]
        if tag not in VOID:
            self.open.append((tag, found.get("id")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == ("script", "data"):
            self.data += data


def parse(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert len(set(reader.ids)) == len(reader.ids)
    return reader


def test_the_page_is_well_formed_and_loads_nothing(run):
    document = collect([RunReader(run)])
    page = build_page(document)
    reader = parse(page)
    assert set(reader.loads) == {"data:,", "#flow"}
    # The only address is the name of SVG's elements, which nobody loads.
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"url\(|@import|\bimport\(", page)
    assert json.loads(reader.data) == json.loads(json.dumps(document))
    assert "connect-src 'none'" in page


def test_names_and_notes_cannot_become_markup(tmp_path, small_rooms):
    evil = "</script><script>alert(1)</script>{{script}}<!--\u2028"
    directory = begin(tmp_path / "run", SMALL)
    add_episode(directory, small_rooms, 1, notes=(evil,))
    page = build_page(collect([RunReader(directory, evil)]))
    reader = parse(page)
    assert json.loads(reader.data)["runs"][0]["name"] == evil
    assert "<script>alert" not in page
    assert page.count("</script>") == 2
    assert embed("<&>") == '"\\u003c\\u0026\\u003e"'


def test_thirty_episodes_of_the_four_rooms_make_a_small_file(tmp_path, rooms):
    directory = begin(tmp_path / "run", ROOMS)
    for number in range(1, 31):
        add_episode(directory, rooms, number)
    page = build_page(collect([RunReader(directory)]))
    assert len(json.loads(parse(page).data)["runs"][0]["flows"]) == 30
    assert len(page.encode()) < 1_000_000


def test_the_command_writes_the_file(tmp_path, run, capsys):
    out = tmp_path / "new" / "page.html"
    assert cli.main(["show", str(run), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    assert len(json.loads(parse(out.read_text()).data)["runs"]) == 1


def test_the_name_of_a_run_may_be_no_utf8(tmp_path, run):
    named = run.rename(tmp_path / os.fsdecode(b"caf\xe9"))
    out = tmp_path / "page.html"
    assert cli.main(["show", str(named), "--out", str(out)]) == 0
    page = parse(out.read_text(encoding="utf-8"))
    assert json.loads(page.data)["runs"][0]["name"] == named.name
    assert "caf? – mufield" in out.read_text(encoding="utf-8")


def test_a_run_without_episodes_says_so_on_the_page(tmp_path, run, capsys):
    empty, out = begin(tmp_path / "empty", SMALL), tmp_path / "page.html"
    assert cli.main(["show", str(run), str(empty), "--out", str(out)]) == 0
    runs = json.loads(parse(out.read_text()).data)["runs"]
    assert [r["message"] for r in runs] == ["", "There is no episode yet."]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "nowhere", "--out", "a.html"), "there is no run in nowhere"),
        (("show", "--out", "a.html"), "expected the directory of a run"),
        (("watch",), "at least one run"),
        (("watch", "nowhere", "--port", "99999"), "choose another with --port"),
    ],
)
def test_mistakes_are_reported_in_one_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(list(words)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
