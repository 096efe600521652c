"""``train`` and ``new``: runs on simulators and of real systems, and their settings."""

import argparse
import json
import os
import secrets
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, ClassVar, NoReturn

import tyro

from ..errors import UserError
from ..runs.config import RunConfig, parse_config, read_settings
from .flags import Command, Environment, ImportFlag, Switch
from .output import Answer, metrics_answer, print_notes, say, waiting
from .sources import print_changes


@dataclass(frozen=True, kw_only=True)
class Configured(Command, RunConfig):
    """A command that begins a run. The fields of `RunConfig` are its flags, two of them changed.

    Attributes:
        config: JSON or TOML file with settings; flags override it. An example stands below.
        out: Directory of the run; new or empty.
    """

    example: ClassVar[str] = """\
settings may also stand in a file, which flags override:

  mufield train --config run.toml --seed 4 --out my-run

  # run.toml; or JSON, as `mufield train four-rooms --print-config` writes it
  seed = 3
  episodes = 20
  optimism = "hallucinated"

  [environment]
  name = "four-rooms"
  horizon = 10

  [model]
  name = "gp"
  beta = 2.0

  [planner]
  name = "mirror"
  sweeps = 60
"""

    environment: Environment = ""
    imports: ImportFlag = None
    label: Annotated[str, tyro.conf.arg(help_behavior_hint="")] = ""
    config: Path | None = None
    out: Path | None = None

    def __post_init__(self) -> None:
        """Leaves the checks to `run_config`, so that errors are one line for people."""

    @classmethod
    def settings(cls, config: Path | None, out: Path | None) -> dict[str, Any]:
        """What stands in files about the run to be; flags override it."""
        return {} if config is None else read_settings(config)

    @classmethod
    def defaults(cls, arguments: Sequence[str]) -> dict[str, Any]:
        """The values of flags that are not given: the settings in files."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for name in ("--config", "--out"):
            parser.add_argument(name, type=Path, nargs="?")
        given = parser.parse_known_args(arguments)[0]
        settings = {"precision": _precision()} | cls.settings(given.config, given.out)
        # The command line may name the environment, so files need not.
        where = str(given.config or given.out)
        config = parse_config({"environment": ""} | settings, where)
        return {each.name: getattr(config, each.name) for each in fields(config)}

    def directory(self) -> Path:
        """The run's directory; raises if the user gave none."""
        if self.out is None:
            raise UserError("expected a directory for the run, got none; add --out my-run")
        return self.out

    def run_config(self) -> RunConfig:
        """Checks the configuration, and sets JAX to its number format."""
        flags = {each.name: getattr(self, each.name) for each in fields(RunConfig)}
        if not self.environment:
            raise UserError("expected an environment's name, got none; `mufield list` shows them")
        settings = _over(self.settings(self.config, self.out), flags)
        config = parse_config(settings, "the command line")
        from ..runs.surroundings import set_precision

        set_precision(config.precision)
        return config


@dataclass(frozen=True, kw_only=True)
class Train(Configured):
    """Learn on a simulator, episode by episode; everything is kept in the run's directory.

    If that holds the run already, go on with it, however it ended; the result is as if it never
    stopped. Its settings are known then: `mufield train --out my-run` is enough, and --episodes
    says how many there are to be in all.

    Attributes:
        out: Directory of the run: new, empty, or that of the run to go on with.
        print_config: Only print all settings, as JSON that --config reads; --out is not needed.
    """

    out: Path | None = None
    print_config: Switch = False

    @classmethod
    def settings(cls, config: Path | None, out: Path | None) -> dict[str, Any]:
        """The settings of a run that has begun; then those of a file."""
        begun = dict(read_settings(out / "config.json")) if _holds_run(out) and out else {}
        begun.pop("imports", None)  # it is executed only if the user asked for that
        return _over(begun, super().settings(config, out))

    def __call__(self) -> Answer:
        if self.print_config:
            config = self.run_config()
            from ..runs.build import resolve

            document = resolve(config).document()
            return Answer(document, [json.dumps(document, indent=2)])
        run = self.directory()
        begun, done = _holds_run(run), None
        with _resumable(run) as check:
            config = self.run_config()
            from ..runs.files import RunFiles
            from ..runs.learn import check_settings, learn_run, new_run

            setup = None
            with waiting("preparing the run"):
                if begun:
                    check_settings(run, config, self.imports)
                    print_changes(run)
                    done = RunFiles(run).episodes
                else:
                    setup = new_run(run, config, simulated=True)
            rows = learn_run(run, config.episodes, setup=setup, imports=self.imports, check=check)
        if len(rows) == done:
            print_notes([f"complete already, with {done} episodes; --episodes N goes on to N"])
        return metrics_answer(rows, run)


@dataclass(frozen=True, kw_only=True)
class New(Configured):
    """Begin a run of a real system; then ask for a policy and tell what happened, in turn."""

    def __call__(self) -> Answer:
        run, config = self.directory(), self.run_config()
        config = replace(config, label=config.label or secrets.token_hex(4))
        from ..runs.learn import new_run

        setup = new_run(run, config)
        return Answer({"run": setup.config.identity, "directory": str(run)})


def _over(settings: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    """Settings with newer ones, which replace single options of a table, not all of them."""
    both = [n for n in newer if isinstance(newer[n], dict) and isinstance(settings.get(n), dict)]
    return settings | newer | {name: settings[name] | newer[name] for name in both}


def _holds_run(directory: Path | None) -> bool:
    return directory is not None and (directory / "config.json").exists()


def _precision() -> str:
    """The number format that JAX computes in, or would if it were imported."""
    if "jax" in sys.modules:
        from ..runs.surroundings import current_precision

        return current_precision()
    wanted = os.environ.get("JAX_ENABLE_X64", "").lower() in ("1", "true", "t", "yes", "y", "on")
    return "float64" if wanted else "float32"


@contextmanager
def _resumable(run: Path) -> Iterator[Callable[[], None]]:
    """After Ctrl-C, says how to go on with the run.

    Libraries that are interrupted at a bad moment may swallow the interrupt, and Python reports one
    that met a finaliser as a traceback. So the block gets a function to call now and then, which
    raises it again, and such reports are dropped.
    """
    asked, report = False, sys.unraisablehook

    def unless_interrupt(found: "sys.UnraisableHookArgs") -> None:
        if not issubclass(found.exc_type, KeyboardInterrupt):
            report(found)

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
            sys.unraisablehook = unless_interrupt
        yield check
    except KeyboardInterrupt:
        if _holds_run(run):  # or else the run has not begun
            say(f"stopped; go on with: mufield train --out {shlex.quote(str(run))}")
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = report
