"""One table: every number of the paper, ours, and why they differ."""

import csv
import io
from itertools import chain
from pathlib import Path
from typing import Any

from .entries import Section
from .other_entries import q_entries, swarm_entries
from .results import Results
from .room_entries import room_entries

SECTIONS: tuple[Section, ...] = (room_entries, q_entries, swarm_entries)

DEPARTURES = (
    "Action box of the four rooms: [-1, 1]^2; printed is [0, 1]^2, with which the paper's own plan "
    "could not reach the greatest entropy.",
    "Noise of the four rooms: 0.25; the paper prints none.",
    "Doors of the four rooms: cells (5,2), (5,8), (2,5), (8,5), as in OpenSpiel's game of the same "
    "size; the paper shows them only in a figure.",
    "Walls: an agent slides along them; the paper says that mass is redistributed.",
    "Horizon of the four rooms: 20 moves, 21 paid distributions h = 0, ..., 20.",
    "M3-UCRL by default plans randomised policies by mirror ascent; the paper's class, one network "
    "for each step, stands beside it. The paper prints no beta: ours is 3, of which plans use two "
    "thirds with randomised policies and a tenth with networks.",
    "Swarm: effort a^2 / 2, printed |a| / 2; noise of the variance of a step; mu(s) in the "
    "congested motion is the mass of the cell; the reward's -ln mu takes the density.",
    "Extended Q-learning: nine options; the footnote lists ten, the table's size says nine.",
)


def write_table(results: Results) -> tuple[Path, ...]:
    """Writes the table as Markdown, JSON and CSV; returns the files."""
    from .._files import write_bytes, write_json

    rows = table_rows(results)
    markdown, document, comma = (results.out / f"table.{kind}" for kind in ("md", "json", "csv"))
    write_bytes(markdown, _markdown(results, rows).encode())
    write_json(
        document,
        {"budget": results.budget.name, "rows": rows, "departures": list(DEPARTURES)},
    )
    write_bytes(comma, _csv(rows).encode())
    return markdown, document, comma


def table_rows(results: Results) -> list[dict[str, Any]]:
    """All rows; numbers that are not computed yet say so."""
    entries = chain.from_iterable(section(results) for section in SECTIONS)
    return [entry.row(results) for entry in entries]


def _markdown(results: Results, rows: list[dict[str, Any]]) -> str:
    names = [name for name in rows[0] if name != "budget"]
    lines = [
        f"# {results.heading('The paper and our results')}",
        "",
        f"Budget: {results.budget.name}."
        + (
            " Small budgets show that everything runs; their numbers say little."
            if results.quick
            else ""
        ),
        "",
        _line(names),
        _line(["---"] * len(names)),
        *(_line([str(row[name]) for name in names]) for row in rows),
        "",
        "## What the paper leaves open or misprints, and what we do",
        "",
        *(f"- {departure}" for departure in DEPARTURES),
        "",
    ]
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
