"""What users see while something takes long."""

import io
import sys
import time

import pytest

from mufield import _progress
from mufield._progress import progress_bar, stage, stage_text
from mufield.cli.output import waiting


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(_progress.PROGRESS, "line_seconds", 0.02)


def test_a_bar_says_what_is_being_done_while_no_step_ends(capsys):
    with progress_bar("learning", 3, shown=True) as report:
        report(1, J=2.0)
        with stage("planning"):
            time.sleep(0.3)
        report(3, J=2.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("learning 1/3  planning 0 s") == 1  # once, however long it takes
    assert lines[-1] == "learning 3/3  J 2.5"


def test_nothing_is_said_unless_it_is_to_be_shown(capsys):
    with progress_bar("learning", 3, shown=False) as report, stage("planning"):
        report(1, J=2.0)
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_the_innermost_stage_is_shown_and_ends_also_with_an_error():
    @stage("fitting")
    def fit():
        assert stage_text() == "fitting 0 s"
        raise ValueError("no fit")

    with stage("planning"):
        with pytest.raises(ValueError, match="no fit"):
            fit()
        assert stage_text() == "planning 0 s"
    assert stage_text() == ""


def test_commands_that_wait_name_the_stage(capsys):
    with waiting("opening"):
        time.sleep(0.2)
        with stage("planning"):
            time.sleep(0.2)
    said = capsys.readouterr().err
    assert "opening 0 s" in said
    assert "planning 0 s" in said


def test_a_stage_whose_share_is_known_says_how_long_it_will_take():
    with stage("preparing") as now:
        now.share = 0.01
        assert stage_text() == "preparing 0 s"
        now.began -= 30.0
        now.share = 0.25
        assert stage_text() == "preparing 30 s of about 120 s"


def test_a_stage_alone_speaks_unless_a_bar_does(capsys):
    with stage("preparing", alone=True):
        time.sleep(0.1)
    assert "preparing 0 s" in capsys.readouterr().err.splitlines()
    with progress_bar("learning", 3, shown=True), stage("preparing", alone=True):
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert set(lines) == {"learning 0/3  preparing 0 s"}


def test_a_line_is_printed_when_something_changed_and_at_the_end(capsys):
    with progress_bar("work", 10, shown=True) as report:
        time.sleep(0.05)
        report(4, done=1, failed=0)
        report(10, done=3)
        report(10, done=3)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["work 4/10  done 1  failed 0", "work 10/10  done 3"]


def test_a_terminal_shows_a_bar_with_steps_stage_and_figures(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar("work", 10, shown=True) as report, stage("planning"):
        report(4, J=78.123)
        time.sleep(0.3)
    shown = sys.stderr.getvalue()
    assert "4/10" in shown
    assert "planning 0 s" in shown
    assert "J 78.12" in shown
