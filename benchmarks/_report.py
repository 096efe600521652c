"""Helpers that the benchmarks share: timing side by side, and the report at the end."""

import argparse
import json
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from mufield import M3UCRL, enable_compilation_cache, learn
from mufield.learning import LearnResult

# Some benchmarks use `reproduction`, which is not installed.
sys.path.append(str(Path(__file__).parents[1]))


def learn_many(
    system: Any,
    learner: Any = None,
    *,
    seeds: Sequence[int],
    watch: Callable[..., Any] | None = None,
    **settings: Any,
) -> list[LearnResult]:
    """`mufield.learn` for several seeds, in threads on all cores; ``watch`` gets the seed first."""
    learner = M3UCRL(system.problem) if learner is None else learner

    def one(seed: int) -> LearnResult:
        own = None if watch is None else partial(watch, seed)
        return learn(system, learner, seed=seed, progress=False, watch=own, **settings)

    # The first alone, so that programs are compiled only once.
    found = [one(seeds[0])]
    with ThreadPoolExecutor() as cores:
        return found + list(cores.map(one, seeds[1:]))


Section = Callable[["Report", argparse.Namespace], None]
"""Part of a benchmark: adds rows and claims to the report."""


def options_of(description: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller; ends within a minute")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep results and pictures here")
    return parser


def run_sections(
    name: str,
    parser: argparse.ArgumentParser,
    sections: Mapping[str, Section],
    *,
    quick: Collection[str] = (),
) -> None:
    """Runs the sections that the command line names, and prints the report.

    Args:
        name: Name of the benchmark.
        parser: Of `options_of`, perhaps with further options.
        sections: All sections, in their order.
        quick: Those of the quick form; all by default.
    """
    listed = ", ".join(sections)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {listed}")
    given = parser.parse_args()
    unknown = sorted(set(given.sections) - set(sections))
    if unknown:
        parser.error(f"unknown sections {unknown}; there are {listed}")
    enable_compilation_cache()
    report, spent = Report(name), []
    for each in given.sections or ((given.quick and quick) or sections):
        began = time.perf_counter(), processor_seconds()
        sections[each](report, given)
        wall, processor = time.perf_counter() - began[0], processor_seconds() - began[1]
        spent.append(f"{each} {wall:.0f} ({processor:.0f})")
        print(f"{name}, {spent[-1]}", file=sys.stderr, flush=True)
    report.row("seconds (of processor time)", ", ".join(spent))
    report.show()


def processor_seconds() -> float:
    """What this process and its children that have ended took."""
    own, others = (resource.getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


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

    def __str__(self) -> str:
        return f"{duration(self.best)} (median {duration(self.median)})"


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
        about = {"name": name, "value": float(f"{value:.4g}"), "bar": float(f"{bar:.4g}")}
        self.claims.append({**about, "side": side, "holds": bool(holds)})
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
