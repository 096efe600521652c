"""What is shown while nothing can be counted, and how a run that is stopped goes on."""

import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

LINE_SECONDS = 5.0
"""How often a line is printed where there is no terminal."""


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Shows that a command is at work: a spinner, or a line now and then."""
    if sys.stderr.isatty():
        with _spinner(title):
            yield
        return
    done = threading.Event()
    printer = threading.Thread(target=_print_lines, args=(title, done), daemon=True)
    printer.start()
    try:
        yield
    finally:
        done.set()
        printer.join()


@contextmanager
def _spinner(title: str) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task(title, total=None)
        yield


def _print_lines(title: str, done: threading.Event) -> None:
    began = time.monotonic()
    while not done.wait(LINE_SECONDS):
        sys.stderr.write(f"{title}, {time.monotonic() - began:.0f} s\n")


@contextmanager
def resumable(run: Path) -> Iterator[Callable[[], None]]:
    """Says how a run goes on that was stopped with Ctrl-C.

    Libraries that are interrupted at a bad moment may lose the interrupt. So it is remembered:
    the block gets a function that raises it again, to be called now and then.
    """
    asked = False

    def remember(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    # Not where Ctrl-C is ignored, as in the background of a script, or handled by somebody else.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ours = ours and threading.current_thread() is threading.main_thread()
    try:
        if ours:
            signal.signal(signal.SIGINT, remember)
        yield check
    except KeyboardInterrupt:
        if (run / "config.json").exists():  # else it has not begun
            command = f"mufield resume {shlex.quote(str(run))}"
            print(f"stopped; go on with: {command}", file=sys.stderr)
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
