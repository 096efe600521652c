"""Helpers that the benchmarks share: timing side by side, and the report at the end."""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table


def parse_quick(description: str | None) -> bool:
    """Reads the command line: whether ``--quick`` was given."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    return bool(parser.parse_args().quick)


def parser_of_sections(
    description: str | None, sections: Collection[str], *, quick: str
) -> argparse.ArgumentParser:
    """A parser for benchmarks of learners: ``--quick``, sections, episodes, seeds and ``--out``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, listed = parser.add_argument, ", ".join(sections)
    add("--quick", action="store_true", help=quick)
    add("--sections", type=names_of(sections), help=f"of {listed}, with commas; all by default")
    add("--episodes", type=int, help="of learners, in place of the sections' numbers")
    add("--seeds", type=int, help="likewise")
    add("--out", type=Path, metavar="DIR", help="keep results and pictures here")
    return parser


def names_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """The type of an option that takes some of these names, with commas."""

    def read(text: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in text.split(",") if part.strip())
        unknown = sorted(set(found) - set(known))
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown {unknown}; there are {', '.join(known)}")
        return found

    return read


@dataclass(frozen=True)
class Timing:
    """Seconds for one call, one entry for each round."""

    rounds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The fastest round, which the machine's other work disturbed least."""
        return min(self.rounds)

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.rounds)


def time_side_by_side(
    sides: Mapping[str, Callable[[], Any]], *, rounds: int, at_least: float = 0.02
) -> dict[str, Timing]:
    """Times functions in turns, so that a slow spell of the machine meets all of them.

    Args:
        sides: Functions that return only when their work is done.
        rounds: How often each gets its turn.
        at_least: Seconds that a turn lasts; short functions are called several times in it.
    """
    calls = {}
    for name, function in sides.items():
        function()  # Compiles, and fills caches.
        began = time.perf_counter()
        function()
        calls[name] = max(1, math.ceil(at_least / (time.perf_counter() - began)))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, function in sides.items():
            began = time.perf_counter()
            for _ in range(calls[name]):
                function()
            seconds[name].append((time.perf_counter() - began) / calls[name])
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


@dataclass
class Report:
    """Rows of figures for people, and claims for machines.

    Attributes:
        benchmark: Name of the benchmark.
        rows: Figures in the order of the table.
        claims: The claims, each with its bar and whether it holds.
    """

    benchmark: str
    rows: list[tuple[str, str]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)

    def row(self, what: str, figure: str) -> None:
        """Adds a figure to the table."""
        self.rows.append((what, figure))

    def claim(
        self, name: str, value: float, bar: float, *, side: Literal["at least", "at most"]
    ) -> None:
        """Adds a claim that ``value`` is at least, or at most, ``bar``."""
        holds = value >= bar if side == "at least" else value <= bar
        self.claims.append(
            {"name": name, "value": float(f"{value:.4g}"), "bar": bar, "holds": bool(holds)}
        )
        verdict = "holds" if holds else "FAILS"
        self.row(f"claim: {name}", f"{value:.4g} ({side} {bar:g}): {verdict}")

    def show(self) -> None:
        """Prints the table and, as the last line, the claims as JSON."""
        table = Table(title=self.benchmark, show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for what, figure in self.rows:
            table.add_row(what, figure)
        # A pipe has no width of its own; rich would take 80 columns and break most lines.
        Console(width=None if sys.stdout.isatty() else 140).print(table)
        print(json.dumps({"benchmark": self.benchmark, "claims": self.claims}), flush=True)


def duration(seconds: float) -> str:
    """A duration in a readable unit."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
