"""Progress of long computations: a bar on a terminal, elsewhere a line of text now and then."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.text import Text

LINE_SECONDS = 5.0
"""How often a line is printed where there is no terminal."""

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


@runtime_checkable
class Report(Protocol):
    """Shows the number of finished steps, and figures beside it."""

    def __call__(self, done: int, **figures: float) -> None: ...


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


def _silent(done: int, **figures: float) -> None:
    pass


def _text(figures: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())


@contextmanager
def _terminal_bar(title: str, total: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
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

        def report(done: int, **figures: float) -> None:
            bar.update(task, completed=done, figures=_text(figures))

        yield report


@contextmanager
def _line_printer(title: str, total: int) -> Iterator[Report]:
    last, finished = time.monotonic(), 0

    def report(done: int, **figures: float) -> None:
        nonlocal finished
        finished = done
        if done == total or time.monotonic() - last > LINE_SECONDS:
            write(_text(figures))

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
