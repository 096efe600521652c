"""The command line: what stands after ``mufield``.

JAX is imported only by the commands that compute, so that help comes at once.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from .commands.compare import Compare
from .commands.fleet import Ask, New, Tell
from .commands.simulated import Learn, Resume, Show

USAGE_ERROR = 2
INTERRUPTED = 130

# The extra that brings each optional package.
EXTRAS = {"matplotlib": "viz", "imageio_ffmpeg": "viz", "PIL": "viz", "pyarrow": "parquet"}


@dataclass(frozen=True)
class List:
    """List the environments."""

    json: bool = False
    """Print JSON instead of a table."""

    def __call__(self) -> int:
        """Print each environment's name and summary."""
        from mufield.environments import catalogue

        rows = [{"name": entry.name, "summary": entry.summary} for entry in catalogue()]
        if self.json:
            print(json.dumps(rows, indent=2, ensure_ascii=False))
        else:
            _print_table(rows)
        return 0


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
            _print_table([{"name": key, "summary": str(value)} for key, value in row.items()])
        return 0


Command = (
    Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Learn, tyro.conf.subcommand("learn")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
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
        The exit code: 0 for success, 2 for a mistake of the user's.
    """
    # Must happen before NumPy is imported: on busy cores the threads of OpenBLAS only get in
    # each other's way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:  # the parser would ask for a command first
        return _print_version()
    try:
        parsed = _parse(arguments)
    except SystemExit as leave:  # after help, or after a mistake was reported
        return leave.code if isinstance(leave.code, int) else USAGE_ERROR
    return _run(parsed)


def _parse(arguments: list[str]) -> Arguments:
    return tyro.cli(
        Arguments,
        prog="mufield",
        description="Policies for a very large population whose law of motion is unknown.",
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
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, OSError, ImportError) as error:
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


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "summary", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], row["summary"])
    Console().print(table)
