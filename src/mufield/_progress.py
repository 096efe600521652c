"""Progress of long computations: a bar on a terminal, elsewhere a line of text now and then."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.text import Text

LINE_SECONDS = 5.0
"""How often a line is printed where there is no terminal."""

MOST_PARTS = 16
"""Parts that are shown one by one."""

_STAGES: list[tuple[str, float]] = []
"""What is being done now, and since when; the innermost stage comes last."""


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Says what is being done, such as planning; whichever bar is shown says so with the time."""
    entry = (name, time.monotonic())
    _STAGES.append(entry)
    try:
        yield
    finally:
        _STAGES.remove(entry)


def stage_text() -> str:
    """The current stage and its seconds so far; empty outside all stages."""
    if not (last := _STAGES[-1:]):
        return ""
    name, began = last[0]
    return f"{name} {time.monotonic() - began:.0f} s"


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
    elif sys.stderr.isatty():
        with _terminal_bar(title, total) as report:
            yield report
    else:
        with _line_printer(title, total) as report:
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
