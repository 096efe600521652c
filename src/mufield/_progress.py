"""Progress of long computations: a bar on a terminal, elsewhere a line of text now and then."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

LINE_SECONDS = 10.0
"""How often a line is printed where there is no terminal."""


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
        yield _line_printer(title, total)


def _silent(done: int, **figures: float) -> None:
    pass


def _text(figures: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())


@contextmanager
def _terminal_bar(title: str, total: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, figures="")

        def report(done: int, **figures: float) -> None:
            bar.update(task, completed=done, figures=_text(figures))

        yield report


def _line_printer(title: str, total: int) -> Report:
    last = time.monotonic()

    def report(done: int, **figures: float) -> None:
        nonlocal last
        if done == total or time.monotonic() - last > LINE_SECONDS:
            last = time.monotonic()
            sys.stderr.write(f"{title} {done}/{total}  {_text(figures)}\n")

    return report
