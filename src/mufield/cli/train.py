"""``train`` and ``resume``: runs on simulators."""

import importlib
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from .flags import Switch
from .output import Answer, metrics_answer, print_notes, say, waiting
from .settings import Configured, as_toml
from .sources import OfRun, prepare


@dataclass(frozen=True, kw_only=True)
class Train(Configured):
    """Learn on a simulator, episode by episode; everything is kept in the run's directory."""

    tensorboard: Switch = False
    """Write the metrics as TensorBoard events, too, into the run's directory."""

    print_config: Switch = False
    """Only print all settings as TOML, with --json as JSON; --out is not needed."""

    def __call__(self) -> Answer:
        if self.print_config:
            config = self.run_config()
            from ..runs.build import resolve

            document = resolve(config).document()
            return Answer(document, [as_toml(document)])
        run = self.directory()
        with resumable(run) as check:
            config = self.run_config()
            _check_extra(self.tensorboard)
            from ..runs.learn import learn_run, new_run

            with waiting("preparing the run"):
                setup = new_run(run, config, simulated=True)
            rows = learn_run(run, setup=setup, tensorboard=self.tensorboard, check=check)
        return metrics_answer(rows, run)


@dataclass(frozen=True, kw_only=True)
class Resume(OfRun):
    """Go on with a run on a simulator, however it ended; the result is as if it never stopped."""

    episodes: int | None = None
    """Number of episodes in all; by default what the run was begun with."""

    tensorboard: Switch = False
    """Write the metrics of all episodes as TensorBoard events, too."""

    def __call__(self) -> Answer:
        with resumable(self.run) as check:
            prepare(self.run)
            _check_extra(self.tensorboard)
            from ..runs.files import RunFiles
            from ..runs.layout import read_versions
            from ..runs.learn import learn_run
            from ..runs.surroundings import changes_since

            print_notes(changes_since(read_versions(self.run)))
            done = RunFiles(self.run).episodes
            rows = learn_run(
                self.run,
                self.episodes,
                imports=self.imports,
                tensorboard=self.tensorboard,
                check=check,
            )
        if len(rows) == done:
            print_notes([f"complete already, with {done} episodes; --episodes N goes on to N"])
        return metrics_answer(rows, self.run)


def _check_extra(tensorboard: bool) -> None:
    """Raises if the package is not installed, before anything is computed."""
    if tensorboard:
        importlib.import_module("tensorboardX")


@contextmanager
def resumable(run: Path) -> Iterator[Callable[[], None]]:
    """After Ctrl-C, says how to go on with the run.

    Libraries that are interrupted at a bad moment may swallow the interrupt. So the block gets a
    function to call now and then, which raises it again.
    """
    asked = False

    def remember(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    # Only if Ctrl-C has its usual effect: scripts in the background ignore it, others handle it.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ours = ours and threading.current_thread() is threading.main_thread()
    try:
        if ours:
            signal.signal(signal.SIGINT, remember)
        yield check
    except KeyboardInterrupt:
        if (run / "config.json").exists():  # or else the run has not begun
            say(f"stopped; go on with: mufield resume {shlex.quote(str(run))}")
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
