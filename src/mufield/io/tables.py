"""Tables from CSV and Parquet files, as columns by name."""

import csv
import gzip
import io
import math
import reprlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from ..errors import UserError
from .sealed import check_file

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
    most_text: ClassVar[int] = 1 << 26
    """Larger tables would take gigabytes: values, and bytes of the different texts of a column."""

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
            raise UserError(
                f"{self.path}: expected the columns {', '.join(wanted)}, but "
                f"{', '.join(missing)} is missing among {', '.join(self.columns)}; "
                "`mufield tell --help` lists all columns"
            )
        if len(self) == 0:
            raise UserError(f"{self.path}: expected at least one row, got none; check the file")

    def numbers(self, column: str, rows: Rows | None = None) -> np.ndarray:
        """A column, or some of its rows: finite numbers that single precision can hold."""
        stored = self.columns[column]
        chosen = np.arange(len(stored)) if rows is None else rows
        values = np.array([_number(stored[row]) for row in chosen.tolist()])
        largest = float(np.finfo(np.float32).max)
        bad = ~(np.abs(values) <= largest)
        if bad.any():
            row = int(chosen[np.argmax(bad)])
            raise UserError(
                f"{self.where(row, column)}: expected a finite number, got "
                f"{reprlib.repr(stored[row])}; repair it, or leave the row out"
            )
        return values

    def times(self, column: str) -> np.ndarray:
        """A column of times: numbers in any unit, or dates with times, which become seconds."""
        stored = self.columns[column]
        values = np.array([_time(value) for value in stored])
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise UserError(
                f"{self.where(row, column)}: expected a number, or a date and time such as "
                f"2026-03-01T08:15:00, got {reprlib.repr(stored[row])}; repair it, or leave the "
                "row out"
            )
        return values

    def integers(self, column: str) -> np.ndarray:
        """A column of whole numbers."""
        values = self.numbers(column)
        # Beyond it, double precision skips whole numbers.
        most = 2.0**53
        odd = (values != np.round(values)) | (np.abs(values) > most)
        if odd.any():
            row = int(np.argmax(odd))
            raise UserError(
                f"{self.where(row, column)}: expected a whole number, got "
                f"{self.columns[column][row]!r}; repair it"
            )
        return values.astype(np.int64)

    def labels(self, column: str) -> list[str]:
        """A column of names, each as `label` gives it."""
        return [label(value) for value in self.columns[column]]

    def flags(self, column: str, rows: Rows | None = None) -> np.ndarray:
        """A column, or some of its rows, of truth values: 0, 1, true or false."""
        chosen = range(len(self)) if rows is None else rows.tolist()
        names = [label(self.columns[column][row]).lower() for row in chosen]
        for row, name in zip(chosen, names, strict=True):
            if name not in ("0", "1", "0.0", "1.0", "true", "false"):
                raise UserError(
                    f"{self.where(row, column)}: expected 0 or 1, got "
                    f"{self.columns[column][row]!r}; repair it"
                )
        return np.array([name in ("1", "1.0", "true") for name in names])


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _time(value: Any) -> float:
    number = _number(value)  # first, because 20260301 is a date, too
    if math.isfinite(number):
        return number
    try:
        when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).strip())
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.nan


def label(value: Any) -> str:
    """A name as text, however it was stored: 3, 3.0 and "3" are the same."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def read_table(path: Path) -> Table:
    """Reads a .csv or .parquet file."""
    if not path.is_file():
        raise UserError(f"there is no file {path}; name a .csv or .parquet file")
    check_file(path)
    suffix = path.suffix.lower()
    if suffix == ".csv" or path.name.lower().endswith(".csv.gz"):
        return _read_csv(path)
    if suffix in (".parquet", ".pq"):
        return _read_parquet(path)
    raise UserError(
        f"expected a .csv, .csv.gz or .parquet file, got {path}; write it as one of them"
    )


def _opened(path: Path) -> io.TextIOWrapper:
    if path.suffix.lower() == ".gz":
        return io.TextIOWrapper(gzip.GzipFile(path), newline="", encoding="utf-8-sig")
    return path.open(newline="", encoding="utf-8-sig")


def _read_csv(path: Path) -> Table:
    lines: list[list[str]] = []
    try:
        # Spreadsheets begin files with a byte order mark.
        with _opened(path) as file:
            values = 0
            for line in csv.reader(file, strict=True):
                lines.append(line)
                values += len(line)
                _check_values(path, values)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no CSV file in UTF-8: {error}; write it again") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked: {error}; copy it again") from error
    while lines and not any(cell.strip() for cell in lines[-1]):
        lines.pop()
    if not lines:
        raise UserError(f"{path}: expected a line with the columns' names, got an empty file")
    names = [name.strip() for name in lines[0]]
    _check_names(path, names)
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(names):
            raise UserError(
                f"{path}, line {number}: expected {len(names)} values separated by commas, got "
                f"{len(line)}; the file may be cut short"
            )
    columns = {name: [line[i] for line in lines[1:]] for i, name in enumerate(names)}
    return Table(path, columns, first_row=2, word="line")


def _read_parquet(path: Path) -> Table:
    try:
        from pyarrow import ArrowException, parquet, types
    except ModuleNotFoundError as error:
        raise ImportError(
            "Parquet files need pyarrow; install it with: pip install 'mufield[parquet]', or "
            "write the episode as CSV"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            known, rows = file.schema_arrow, file.metadata.num_rows
        _check_names(path, known.names)
        # Others could hold anything, in any amount; there is no use for them here.
        plain = [f.name for f in known if types.is_primitive(f.type) or _is_text(f.type)]
        _check_values(path, rows * len(plain))
        # Texts as they are stored, each different one once, so that they take no more memory.
        texts = [field.name for field in known if _is_text(field.type)]
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            table = file.read(columns=plain)
        columns = {name: _values(path, table[name]) for name in table.column_names}
    except UserError:
        raise
    except (ArrowException, OSError, ValueError, OverflowError) as error:
        raise UserError(f"{path} is no Parquet file: {error}; write it again") from error
    return Table(path, columns, first_row=1, word="row")


def _check_names(path: Path, names: list[str]) -> None:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path}: the column {twice} appears more than once; leave one out")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _values(path: Path, column: Any) -> list[Any]:
    """The values of a column; equal texts are one object."""
    from pyarrow import DictionaryArray

    values: list[Any] = []
    for chunk in column.chunks:
        if not isinstance(chunk, DictionaryArray):
            values += chunk.to_pylist()
            continue
        if chunk.dictionary.nbytes > Table.most_text:
            raise UserError(
                f"{path}: expected names of at most {Table.most_text:,} bytes in all, got more; "
                "tell the columns of an episode only"
            )
        words = chunk.dictionary.to_pylist()
        values += [None if i is None else words[i] for i in chunk.indices.to_pylist()]
    return values


def _check_values(path: Path, count: int) -> None:
    if count > Table.most_values:
        raise UserError(
            f"{path}: expected at most {Table.most_values:,} values, got more; tell a sample of "
            "the agents, with --mass where everybody was, or leave out columns that are not needed"
        )
