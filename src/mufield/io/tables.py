"""Tables as columns by name, and what their values may be; `table_files` reads them."""

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from ..errors import UserError

Rows = Int[np.ndarray, "_rows"]
"""Numbers of rows, or one number for each of some rows."""


@dataclass(frozen=True)
class Table:
    """Columns of equal length.

    Attributes:
        columns: The values of each column, as they were written.
        first_row: Number of the first row in errors: lines of a CSV file count the header.
        word: What errors call a row: ``"line"`` or ``"row"``.
        shown: What errors call columns that the file has under another name.
        kept: Numbers of the rows in the file, if some were left out.
    """

    most_values: ClassVar[int] = 20_000_000
    most_line: ClassVar[int] = 1 << 20
    most_unpacked: ClassVar[int] = 1 << 28
    most_text: ClassVar[int] = 1 << 26
    """Larger tables would take gigabytes: values, characters of a line and of all lines once they
    are unpacked, and bytes of the different texts of a column."""

    path: Path
    columns: dict[str, list[Any]]
    first_row: int
    word: str
    shown: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[int, ...] | None = None

    def only(self, rows: Rows) -> "Table":
        """The table with some of its rows."""
        chosen = rows.tolist()
        columns = {name: [each[row] for row in chosen] for name, each in self.columns.items()}
        before = range(len(self)) if self.kept is None else self.kept
        return replace(self, columns=columns, kept=tuple(before[row] for row in chosen))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def where(self, row: int, column: str) -> str:
        """The place of a value, for errors; rows count from 0 here."""
        number = row if self.kept is None else self.kept[row]
        column = self.shown.get(column, column)
        return f"{self.path}, {self.word} {number + self.first_row}, column {column}"

    def require(self, names: Iterable[str]) -> None:
        """Raises unless there are these columns and at least one row."""
        wanted = list(names)
        missing = [name for name in wanted if name not in self.columns]
        if missing:
            what = f"{', '.join(missing)} is missing among {', '.join(self.columns)}; add it"
            raise UserError(f"{self.path}: expected the columns {', '.join(wanted)}, but {what}")
        if len(self) == 0:
            raise UserError(f"{self.path}: expected at least one row, got none; check the file")

    def refuse(self, bad: Any, column: str, expected: str, remedy: str = "repair it") -> None:
        """Raises if a row of a column is bad, and says what it holds."""
        if np.any(bad):
            row = int(np.argmax(bad))
            where, found = self.where(row, column), reprlib.repr(self.columns[column][row])
            raise UserError(f"{where}: expected {expected}, got {found}; {remedy}")

    def once(self, place: Rows, column: str, what: Callable[[int], str]) -> None:
        """Raises if two rows have the same place, of 0 or more; ``what`` puts a row into words."""
        order = np.argsort(place, kind="stable")
        again = order[1:][(np.diff(place[order]) == 0) & (place[order[1:]] >= 0)]
        if len(again):
            where = self.where(int(again[0]), column)
            raise UserError(f"{where}: {what(int(again[0]))} more than once; leave one out")

    def numbers(self, column: str, rows: Rows | None = None) -> np.ndarray:
        """A column, or some of its rows: finite numbers that single precision can hold."""
        values = np.zeros(len(self))
        chosen = np.arange(len(self)) if rows is None else rows
        values[chosen] = [as_number(self.columns[column][row]) for row in chosen.tolist()]
        bad = ~(np.abs(values) <= np.finfo(np.float32).max)
        self.refuse(bad, column, "a finite number", "repair it, or leave the row out")
        return values[chosen]

    def times(self, column: str) -> np.ndarray:
        """A column of times: numbers in any unit, or dates with times, which become seconds.

        Numbers, times with a zone and times without one cannot be compared, so a column has one of
        these kinds only.
        """
        stored, kinds = self.columns[column], dict[str, Any]()
        values = np.full(len(stored), np.nan)
        for row, value in enumerate(stored):
            number, when = as_number(value), None
            if math.isfinite(number):  # first, because 20260301 is a date, too
                values[row], kind = number, "number"
            elif (when := as_datetime(value)) is not None:
                kind = "zone" if when.tzinfo else "no zone"
                values[row] = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
            else:
                continue
            kinds.setdefault(kind, value)
        remedy = "repair it, or leave the row out"
        self.refuse(np.isnan(values), column, f"a number, or {DATES}", remedy)
        if len(kinds) > 1:
            one, other, *_ = map(repr, kinds.values())
            raise UserError(
                f"{self.path}, column {self.shown.get(column, column)}: expected times of one kind,"
                f" got {one} and {other}; write all as numbers, all with their zone, or all without"
            )
        return values

    def integers(self, column: str) -> np.ndarray:
        """A column of whole numbers."""
        values = self.numbers(column)
        # Beyond it, double precision skips whole numbers.
        odd = (values != np.round(values)) | (np.abs(values) > 2.0**53)
        self.refuse(odd, column, "a whole number")
        return values.astype(np.int64)

    def labels(self, column: str) -> list[str]:
        """A column of names, each as `label` gives it; none may be empty."""
        names = [label(value) for value in self.columns[column]]
        self.refuse([not name for name in names], column, "a name or number", "fill it in")
        return names

    def flags(self, column: str) -> np.ndarray:
        """A column of truth values: 0, 1, true or false."""
        words = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
        values = [words.get(label(each).lower(), -1) for each in self.columns[column]]
        self.refuse(np.less(values, 0), column, "0 or 1")
        return np.array(values, dtype=bool)


DATES = "a date and time such as 2026-03-01T08:15:00, 2026-03-01 08:15 or 03/01/2026 08:15:00 AM"
"""The dates that `as_datetime` reads, for errors."""


def as_number(value: Any) -> float:
    """A number from what a table holds; NaN if it is none."""
    if isinstance(value, str) and "_" in value:  # Python's own digits, as in 1_000
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def as_datetime(value: Any) -> datetime | None:
    """A date with a time, as ISO 8601 writes it or as in the United States; None if it is none."""
    if isinstance(value, datetime):
        return value
    text = str(value).strip()
    try:
        # Only with AM or PM is it certain that the month comes first.
        american = text[-2:].upper() in ("AM", "PM")
        form = "%m/%d/%Y %I:%M:%S %p" if text.count(":") == 2 else "%m/%d/%Y %I:%M %p"
        return datetime.strptime(text, form) if american else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None


def label(value: Any) -> str:
    """A name as text, however it was stored (3, 3.0 and "3" are the same); empty if missing."""
    if value is None or value != value:  # NaN stands for a missing value, too
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
