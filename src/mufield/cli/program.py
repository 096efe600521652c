"""The command line: what stands after ``mufield``.

JAX is imported only by the commands that compute, so that help comes at once.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from .._runtime import enable_compilation_cache
from ..errors import UserError
from .catalogue import List
from .compare import Compare
from .evaluate import Evaluate
from .export import Export
from .fleet import Ask, New, Tell
from .overview import Runs
from .pictures import Animate, Plot
from .printing import print_table
from .report import Report, Watch
from .reproduce import Reproduce
from .settings import EXAMPLE
from .simulated import Resume, Show, Train
from .theory import Theory

USAGE_ERROR = 2
INTERRUPTED = 130
PIPE_CLOSED = 141

# The extra that brings each optional package.
EXTRAS = {
    "matplotlib": "viz",
    "imageio_ffmpeg": "viz",
    "PIL": "viz",
    "pyarrow": "parquet",
    "tensorboardX": "tensorboard",
    "numba": "qlearning",
    "gymnasium": "gymnasium",
    "pettingzoo": "pettingzoo",
    "onnx": "deploy",
    "onnxruntime": "deploy",
}


@dataclass(frozen=True)
class Demo:
    """Show a population flow through four rooms, and draw what happened."""

    output_dir: Path = Path("demo")
    """Directory for the pictures; made if it does not exist."""

    def __call__(self) -> int:
        """Run it."""
        from mufield.demo import run

        return run(output_dir=self.output_dir)


@dataclass(frozen=True)
class Run:
    """Run one episode of an environment under the uniform random policy."""

    name: Annotated[str, tyro.conf.Positional]
    """Name of the environment; `mufield list` shows them."""

    seed: int = 0
    """Seed of the tracked agents."""

    agents: int = 1
    """Number of tracked agents."""

    json: bool = False
    """Print JSON instead of a table."""

    def __call__(self) -> int:
        """Run it and print what the population earned."""
        import jax

        from mufield import entropy, make
        from mufield.policies.randomised import random_policy

        system = make(self.name)
        episode = system.run(
            random_policy(system.problem), jax.random.key(self.seed), agents=self.agents
        )
        row = {
            "name": self.name,
            "J": round(float(episode.value), 6),
            "moves": system.problem.horizon,
            "cells": system.problem.grid.n_cells,
            "entropy at the end": round(float(entropy(episode.mass[-1])), 6),
            "share of tracked moves that a wall stopped": round(
                float(episode.stopped.any(axis=-1).mean()), 6
            ),
        }
        if self.json:
            print(json.dumps(row, indent=2))
        else:
            print_table(
                [{"name": key, "value": value} for key, value in row.items()],
                texts=("name", "value"),
            )
        return 0


Command = (
    Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Runs, tyro.conf.subcommand("runs")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Plot, tyro.conf.subcommand("plot")]
    | Annotated[Animate, tyro.conf.subcommand("animate")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Watch, tyro.conf.subcommand("watch")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Theory, tyro.conf.subcommand("theory")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[New, tyro.conf.subcommand("new")]
    | Annotated[Ask, tyro.conf.subcommand("ask")]
    | Annotated[Tell, tyro.conf.subcommand("tell")]
)


@dataclass(frozen=True)
class Arguments:
    """What stands on the command line."""

    command: Command

    debug: bool = False
    """Show the traceback of an error."""

    version: bool = False
    """Print the version and leave."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments after the program's name; those of the process by default.

    Returns:
        The exit code: 0 for success, 2 for what the user can mend, 130 after Ctrl-C. A fault of
        ours is raised; Python then exits with 1.
    """
    # Must happen before NumPy is imported: on busy cores the threads of OpenBLAS only get in
    # each other's way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    enable_compilation_cache()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:  # the parser would ask for a command first
        return _print_version()
    try:
        code = _run(_parse(arguments))
        sys.stdout.flush()
        return code
    except SystemExit as leave:  # after help, or after a mistake was reported
        left = leave.code or 0
        if left == 0 and arguments[0] in ("train", "new"):
            print(EXAMPLE, end="")
        return left if isinstance(left, int) else USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # such as `mufield list | head -1`
        # Or Python would complain when it empties its buffers at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _parse(arguments: list[str]) -> Arguments:
    return tyro.cli(
        Arguments,
        prog="mufield",
        description="Policies for a very large population whose law of motion is unknown. "
        "Exit codes: 0 success, 2 a mistake that the message says how to mend, 130 Ctrl-C.",
        args=arguments,
        # Flags may follow the command, `--debug` needs no `--no-debug`, and `demo` no prefix.
        config=(
            tyro.conf.CascadeSubcommandArgs,
            tyro.conf.FlagCreatePairsOff,
            tyro.conf.OmitSubcommandPrefixes,
        ),
    )


def _run(arguments: Arguments) -> int:
    """Run a command; what the user can mend is reported in one line."""
    try:
        return arguments.command()
    except BrokenPipeError:
        raise
    except (UserError, OSError, ImportError) as error:
        message = _explain(error)
        if arguments.debug or message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return USAGE_ERROR


def _explain(error: Exception) -> str | None:
    """One line for an error that the user can mend, None for one that is a fault of ours."""
    message = " ".join(str(error).split())
    if isinstance(error, ImportError) and error.name is not None:
        package = error.name.partition(".")[0]
        if package not in EXTRAS:
            return None
        return f"{message}; install it with: pip install 'mufield[{EXTRAS[package]}]'"
    return message


def _print_version() -> int:
    from importlib.metadata import version

    print(f"mufield {version('mufield')}")
    return 0
