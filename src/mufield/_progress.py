"""Progress of long computations: a bar on a terminal, elsewhere a line when something changed."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.text import Text

Share = Callable[[float], None]
"""Takes the share that is done of something, from 0 to 1."""

Report = Callable[..., None]
"""``report(done, **figures)`` shows the number of finished steps, and figures."""


@dataclass(eq=False)
class Stage:
    """Something that takes long: since when, and if that is known, how much of it is done."""

    name: str
    began: float
    share: float = 0.0

    @property
    def text(self) -> str:
        """Its seconds so far, and by its share about how many there will be."""
        seconds = time.monotonic() - self.began
        # From less than 2% nothing is concluded about the whole; a few seconds are not worth it.
        known = self.share > 0.02 and seconds / self.share > 5.0
        total = f" of about {seconds / self.share:.0f} s" if known else ""
        return f"{self.name} {seconds:.0f} s{total}"

    def span(self, first: float, last: float) -> Share:
        """For a part of it that leads from one share of the whole to another: takes its share."""

        def done(share: float) -> None:
            self.share = first + (last - first) * share

        return done


@dataclass(eq=False)
class Progress:
    """What this process does now, and how it shows that.

    Attributes:
        line_seconds: Least seconds between lines where there is no terminal.
        stages: What is being done now; the innermost stage comes last.
        displays: Number of bars and spinners that show stages at the moment.
    """

    line_seconds: float = 5.0
    stages: list[Stage] = field(default_factory=list)
    displays: int = 0


PROGRESS = Progress()


@contextmanager
def stage(name: str, *, alone: bool = False) -> Iterator[Stage]:
    """Says what is being done, such as planning; whichever bar is shown says so with the time.

    If it is ``alone`` and no bar is shown, a line is printed now and then.
    """
    entry = Stage(name, time.monotonic())
    PROGRESS.stages.append(entry)

    def say() -> None:
        if not PROGRESS.displays:
            sys.stderr.write(f"{entry.text}\n")

    try:
        with every(PROGRESS.line_seconds, say) if alone else nullcontext():
            yield entry
    finally:
        PROGRESS.stages.remove(entry)


def stage_text() -> str:
    """The current stage and its seconds; empty outside all stages."""
    return PROGRESS.stages[-1].text if PROGRESS.stages else ""


@contextmanager
def displaying() -> Iterator[None]:
    """While the block runs, stages are shown by something else."""
    PROGRESS.displays += 1
    try:
        yield
    finally:
        PROGRESS.displays -= 1


@contextmanager
def progress_bar(title: str, total: int, *, shown: bool) -> Iterator[Report]:
    """Yields a function that reports progress; it does nothing unless ``shown``."""
    if not shown:
        yield lambda *_, **__: None
    else:
        shape = _terminal_bar if sys.stderr.isatty() else _line_printer
        with displaying(), shape(title, total) as report:
            yield report


def _text(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())


@contextmanager
def _terminal_bar(title: str, total: int) -> Iterator[Report]:
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class StageColumn(progress.ProgressColumn):
        def render(self, task: "Task") -> "Text":
            return Text("" if task.finished else stage_text())

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        StageColumn(),
        progress.TextColumn("{task.fields[figures]}"),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, figures="")
        yield lambda done, **figures: bar.update(task, completed=done, figures=_text(figures))


@contextmanager
def _line_printer(title: str, total: int) -> Iterator[Report]:
    """A line when something changed, at most one in `Progress.line_seconds`, and at the end."""
    last, finished, said = time.monotonic(), 0, ""

    def say(what: str, text: str, *, now: bool = False) -> None:
        nonlocal last, said
        if what != said and (now or time.monotonic() - last > PROGRESS.line_seconds):
            last, said = time.monotonic(), what
            sys.stderr.write(f"{title} {finished}/{total}  {text}\n")

    def report(done: int, /, **figures: float) -> None:
        nonlocal finished
        ended, finished = done == total and finished < total, done
        say(f"{done} {_text(figures)}", _text(figures), now=ended)

    def tick() -> None:
        # That the seconds of a stage changed is not worth a line.
        if stages := list(PROGRESS.stages):
            say(f"{finished} {stages[-1].name}", stages[-1].text)

    with every(PROGRESS.line_seconds, tick):
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
