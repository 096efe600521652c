"""Progress of long computations: a bar on a terminal, elsewhere a line of text now and then."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.text import Text

LINE_SECONDS = 5.0
"""How often a line is printed where there is no terminal."""

MOST_PARTS = 16
"""Parts that are shown one by one."""

SHORTEST_TOTAL = 5.0
"""Seconds from which on it is worth saying how long something will take."""

LEAST_SHARE = 0.02
"""From a smaller share that is done, nothing is concluded about the whole."""


Share = Callable[[float], None]
"""Takes the share that is done of something, from 0 to 1."""


@dataclass(eq=False)
class Stage:
    """Something that takes long: since when, and if that is known, how much of it is done."""

    name: str
    began: float
    share: float = 0.0

    @property
    def text(self) -> str:
        """Its seconds so far, and about how many there will be: by its share, or the last time."""
        seconds = time.monotonic() - self.began
        last = _TOOK.get(self.name, 0.0)
        whole = seconds / self.share if self.share > LEAST_SHARE else last
        # Past the last time's seconds, they are no estimate any more.
        known = whole > max(seconds, SHORTEST_TOTAL)
        total = f" of about {whole:.0f} s" if known else ""
        return f"{self.name} {seconds:.0f} s{total}"

    def span(self, first: float, last: float) -> Share:
        """For a part of it that leads from one share of the whole to another: takes its share."""

        def done(share: float) -> None:
            self.share = first + (last - first) * share

        return done


_STAGES: list[Stage] = []
"""What is being done now; the innermost stage comes last."""

_TOOK: dict[str, float] = {}
"""Seconds that each stage took the last time."""

_DISPLAYS: list[str] = []
"""Titles of what shows stages at the moment."""


@contextmanager
def stage(name: str, *, alone: bool = False) -> Iterator[Stage]:
    """Says what is being done, such as planning; whichever bar is shown says so with the time.

    If it is ``alone`` and no bar is shown, a line is printed now and then.
    """
    entry = Stage(name, time.monotonic())
    _STAGES.append(entry)

    def say() -> None:
        if not _DISPLAYS:
            sys.stderr.write(f"{entry.text}\n")

    try:
        if alone:
            with every(LINE_SECONDS, say):
                yield entry
        else:
            yield entry
        _TOOK[name] = time.monotonic() - entry.began
    finally:
        _STAGES.remove(entry)


def expect(name: str, seconds: float) -> None:
    """Says how long a stage took the last time, in another process."""
    _TOOK[name] = seconds


def stage_text() -> str:
    """The current stage and its seconds; empty outside all stages."""
    return _STAGES[-1].text if _STAGES else ""


@contextmanager
def displaying(title: str) -> Iterator[None]:
    """While the block runs, stages are shown by something else."""
    _DISPLAYS.append(title)
    try:
        yield
    finally:
        _DISPLAYS.remove(title)


class Part(NamedTuple):
    """One of several things that are done at the same time: its share so far, and its figures."""

    name: str
    share: float
    figures: Mapping[str, float]


@runtime_checkable
class Report(Protocol):
    """Shows the number of finished steps with figures beside it, and parts that are at work."""

    def __call__(self, done: int, parts: Sequence[Part] = (), /, **figures: float) -> None: ...


@contextmanager
def progress_bar(title: str, total: int, *, shown: bool) -> Iterator[Report]:
    """Yields a function that reports progress; it does nothing unless ``shown``."""
    if not shown:
        yield _silent
    else:
        shape = _terminal_bar if sys.stderr.isatty() else _line_printer
        with displaying(title), shape(title, total) as report:
            yield report


def _silent(done: int, parts: Sequence[Part] = (), /, **figures: float) -> None:
    pass


def _text(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())


@contextmanager
def _terminal_bar(title: str, total: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.text import Text

    class StageColumn(ProgressColumn):
        def render(self, task: "Task") -> "Text":
            return Text("" if task.finished else stage_text())

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        StageColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, figures="")

        rows: dict[str, TaskID] = {}

        def report(done: int, parts: Sequence[Part] = (), /, **figures: float) -> None:
            bar.update(task, completed=done, figures=_text(figures))
            shown = {part.name: part for part in parts[:MOST_PARTS]}
            for name in rows.keys() - shown.keys():
                bar.remove_task(rows.pop(name))
            for name, part in shown.items():
                if name not in rows:
                    rows[name] = bar.add_task(f"  {name}", total=100, figures="")
                percent, text = round(100 * part.share), _text(part.figures)
                bar.update(rows[name], completed=percent, figures=text)

        yield report


@contextmanager
def _line_printer(title: str, total: int) -> Iterator[Report]:
    last, finished = time.monotonic(), 0

    def report(done: int, parts: Sequence[Part] = (), /, **figures: float) -> None:
        nonlocal finished
        ended, finished = done == total and finished < total, done
        if ended or time.monotonic() - last > LINE_SECONDS:
            now = [f"{each.name} {each.share:.0%} {_text(each.figures)}" for each in parts]
            write(" | ".join([_text(figures), *(text.strip() for text in now[:MOST_PARTS])]))

    def write(text: str) -> None:
        nonlocal last
        last = time.monotonic()
        sys.stderr.write(f"{title} {finished}/{total}  {text}\n")

    def tick() -> None:
        if time.monotonic() - last > LINE_SECONDS and (text := stage_text()):
            write(text)

    with every(LINE_SECONDS, tick):
        yield report


@contextmanager
def every(seconds: float, function: Callable[[], None]) -> Iterator[None]:
    """Calls a function again and again in the background while the block runs."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(seconds):
            function()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
