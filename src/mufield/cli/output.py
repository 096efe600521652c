"""Everything that commands print: results, notes, and signs that they are at work."""

import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

from .._progress import PROGRESS, displaying, every, stage_text


def printable(text: str) -> str:
    """Text that cannot command a terminal, whatever directories and columns are called.

    Control characters, marks that turn the direction of writing, and bytes that are no UTF-8 are
    written as in JSON, so that JSON stays the same.
    """
    orders = (range(9), range(11, 32), range(127, 160), range(0x202A, 0x202F))
    every = itertools.chain(*orders, range(0x2066, 0x206A), range(0xD800, 0xE000))
    return text.translate({each: f"\\u{each:04x}" for each in every})


class ExitCode(IntEnum):
    """How a command ended."""

    SUCCESS = 0
    FAULT = 1
    MISTAKE = 2
    INTERRUPTED = 130
    PIPE_CLOSED = 141


@dataclass(frozen=True)
class Table:
    """Rows for people; if the output is no terminal, lines are never wrapped.

    Attributes:
        rows: The values by name.
        columns: Heads of the columns with the names of their values; by default all values.
        texts: Columns that are aligned to the left; others to the right.
    """

    rows: Sequence[dict[str, Any]]
    columns: Mapping[str, str] | None = None
    texts: Sequence[str] = ()

    piped_width: ClassVar[int] = 1000
    """Characters in a line if the output is no terminal."""

    def show(self) -> None:
        """Prints it."""
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table as RichTable

        console = Console(width=None if sys.stdout.isatty() else self.piped_width)
        keys = self.columns or {name: name for name in self.rows[0]}
        table = RichTable(box=None, pad_edge=False)
        for name in keys:
            side = "left" if name in self.texts else "right"
            table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
        for row in self.rows:
            cells = (printable(_cell(row.get(key))).replace("\n", "\\n") for key in keys.values())
            table.add_row(*map(escape, cells))  # brackets are no markup
        with console.capture() as text:  # printed by rich, a closed pipe would go unnoticed
            console.print(table, highlight=False)
        print(text.get(), end="")


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Answer:
    """What a command found, for programs and for people.

    Attributes:
        document: What ``--json`` prints: names in snake_case, numbers as numbers.
        shown: Tables and lines for people; the document's values by default.
        code: The exit code.
    """

    document: Any
    shown: Sequence[Table | str] | None = None
    code: int = 0

    def show(self, *, as_json: bool) -> None:
        """Prints it."""
        if as_json:
            text = json.dumps(self.document, indent=2, ensure_ascii=False, allow_nan=False)
            print(printable(text))
            return
        for part in self._lines() if self.shown is None else self.shown:
            if isinstance(part, Table):
                part.show()
            else:
                print(printable(part))

    def _lines(self) -> list[str]:
        known = {k: v for k, v in self.document.items() if v is not None and v != ""}
        return [f"{name.replace('_', ' ')}: {_cell(value)}" for name, value in known.items()]


def metrics_answer(rows: list[dict[str, Any]], run: Path) -> Answer:
    """The metrics of a run, one row for each episode."""
    if not rows:
        return Answer(rows, [f"{run} has no episode yet"])
    spread = ("std error", "5% to 95%")  # of what the plan expected, over the paths of shocks
    shown = [row | dict(zip(spread, _spread(row), strict=False)) for row in rows]
    names = (
        *("episode", "value", "optimistic", *spread, "greedy", "beta", "spread", "w1_end"),
        *("coverage", "served", "margin", "best", "elsewhere", "regret", "notes"),
    )
    heads = {"value": "J", "w1_end": "W1 end"}
    # These have no column if no episode has them.
    rare = ("greedy", *spread, "served", "margin", "elsewhere", "regret")
    columns = {
        heads.get(name, name): name
        for name in names
        if name not in rare or any(row.get(name) is not None for row in shown)
    }
    # No file is named: on a full disk the copies in the run may be missing or old.
    policies = (
        f"`mufield export {run} --out use.policy` writes the policy to use, with --episode "
        "best-episode the one with the highest J, with --episode last the last one"
    )
    if "elsewhere" in columns:
        policies += "; episodes that began elsewhere than the problem says do not compare"
    if "std error" in columns:
        policies += "; with shocks an episode may owe its J to its path"
    shown = in_percent(shown, "served", "margin", "elsewhere")
    return Answer(rows, [Table(shown, columns, texts=("notes",)), policies])


def _spread(row: dict[str, Any]) -> tuple[str, ...]:
    """The standard error of J over the paths of shocks in a plan, and J of 90% of them."""
    if not (paths := row.get("paths")):
        return ()
    low, _, high = paths["value"]
    return f"{paths['standard_error']:.2g}", f"{low:.4g} to {high:.4g}"


def in_percent(rows: Sequence[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """Rows for people, with shares of these names in percent."""
    return [
        row | {name: f"{row[name]:.1%}" for name in names if row.get(name) is not None}
        for row in rows
    ]


def say(line: str) -> None:
    """Prints a line to standard error; standard output is for the result alone."""
    print(printable(line), file=sys.stderr, flush=True)


def print_notes(notes: Iterable[str]) -> None:
    """Prints notes for people to standard error."""
    for note in notes:
        say(f"note: {note}")


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Shows that a command is at work, by a spinner or lines, where no progress can be counted."""
    began = time.monotonic()

    def text() -> str:
        return stage_text() or f"{title} {time.monotonic() - began:.0f} s"

    with displaying():
        if not sys.stderr.isatty():
            with every(PROGRESS.line_seconds, lambda: say(text())):
                yield
            return
        from rich.console import Console

        console = Console(stderr=True)
        with console.status(title) as spinner, every(1.0, lambda: spinner.update(text())):
            yield
