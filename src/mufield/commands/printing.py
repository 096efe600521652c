"""What all commands about runs begin and end with."""

import json
import sys
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


def prepare(directory: Path) -> None:
    """Sets JAX to the run's number format, before anything is computed."""
    config = read_config(directory)
    from ..runs.precision import set_precision

    set_precision(config.precision)


def print_changes(changes: list[str]) -> None:
    """Says what is installed otherwise than when the run began."""
    for change in changes:
        print(f"note: {change}", file=sys.stderr)


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
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print(f"{directory} has no episode yet")
        return 0
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "notes" else "right")
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in COLUMNS.values()))
    console = Console()
    console.print(table)
    console.print(
        f"policies: {directory / 'last.policy'}, {directory / 'best.policy'}", soft_wrap=True
    )
    return 0


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(value)
    if value is None:
        return "–"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
