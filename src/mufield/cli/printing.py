"""What all commands about runs begin and end with."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..runs.config import read_config

COLUMNS = {
    "episode": "episode",
    "J": "value",
    "optimistic": "optimistic",
    "beta": "beta",
    "spread": "spread",
    "W1 end": "w1_end",
    "coverage": "coverage",
    "best": "best",
    "notes": "notes",
}
"""What the table shows of the metrics."""

WIDE = 1000
"""Characters in a line where there is no terminal."""

GAP = 2
"""Characters between columns."""


def prepare(directory: Path) -> None:
    """Sets JAX to the run's number format, before anything is computed."""
    config = read_config(directory)
    from ..runs.precision import set_precision

    set_precision(config.precision)


def print_notes(notes: list[str]) -> None:
    """Says what people should know, beside the answer."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def print_answer(answer: dict[str, Any], *, as_json: bool) -> int:
    """Prints named values; returns the exit code."""
    if as_json:
        print(json.dumps(answer, indent=2))
    else:
        for name, value in answer.items():
            if value not in (None, ""):
                print(f"{name}: {value}")
    return 0


def print_rows(rows: list[dict[str, Any]], directory: Path, *, as_json: bool) -> int:
    """Prints the metrics of a run; returns the exit code."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    if not rows:
        print(f"{directory} has no episode yet")
        return 0
    print_table(
        [{name: row[key] for name, key in COLUMNS.items()} for row in rows], texts=("notes",)
    )
    print(f"policies: {directory / 'last.policy'}, {directory / 'best.policy'}")
    return 0


def print_table(
    rows: Sequence[dict[str, Any]], *, texts: Sequence[str], spare: Sequence[str] = ()
) -> None:
    """Prints a table.

    Where there is no terminal, lines are as long as they need to be, so that programs can read
    them.

    Args:
        rows: The values by the names of the columns.
        texts: Columns that stand to the left; others stand to the right.
        spare: Columns that are left out, from the first on, where a terminal is too narrow.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else WIDE)
    cells = [{name: _cell(value) for name, value in row.items()} for row in rows]
    columns = _fitting(cells, console.width, spare)
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in texts else "right", overflow="fold")
    for row in cells:
        # Brackets in names are no markup.
        table.add_row(*(escape(row[name]) for name in columns))
    console.print(table, highlight=False)


def _fitting(cells: Sequence[dict[str, str]], width: int, spare: Sequence[str]) -> list[str]:
    """The columns that are shown."""
    widths = {name: max(len(name), *(len(row[name]) for row in cells)) for name in cells[0]}
    for name in spare:
        if sum(widths.values()) + GAP * (len(widths) - 1) <= width:
            break
        del widths[name]
    return list(widths)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(value)
    if value is None:
        return "–"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
