"""Tables from Parquet and CSV; of commas, semicolons and tabs, what line 1 has most separates."""

import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError
from .atomic import check_file
from .tables import Table


def read_table(path: Path) -> Table:
    """Reads a .csv or .parquet file; commas, semicolons or tabs part the columns of a .csv."""
    if not path.is_file():
        raise UserError(f"there is no file {path}; name a .csv or .parquet file")
    check_file(path)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv") or path.name.lower().endswith((".csv.gz", ".tsv.gz")):
        return _read_csv(path)
    if suffix in (".parquet", ".pq"):
        return _read_parquet(path)
    raise UserError(f"expected a file .csv, .tsv or .parquet, got {path}; write one of these")


def _opened(path: Path) -> io.TextIOWrapper:
    file = gzip.GzipFile(path) if path.suffix.lower() == ".gz" else path.open("rb")
    return io.TextIOWrapper(file, newline="", encoding="utf-8-sig")


def _lines(path: Path, file: io.TextIOWrapper) -> Iterator[str]:
    """The lines of a file; raises if one is too long, or all together are."""
    total = 0
    while line := file.readline(Table.most_line):
        total += len(line)
        long = len(line) == Table.most_line and not line.endswith("\n")
        if long or total > Table.most_unpacked:
            raise UserError(
                f"{path}: expected lines of less than {Table.most_line:,} characters, and at most "
                f"{Table.most_unpacked:,} in all, got more; leave out what is not needed"
            )
        yield line


def _read_csv(path: Path) -> Table:
    try:
        # Spreadsheets begin files with a byte order mark.
        with _opened(path) as file:
            lines = _lines(path, file)
            first = next(lines, "")
            delimiter = max((",", ";", "\t"), key=first.count)
            reader = csv.reader(itertools.chain([first], lines), delimiter=delimiter, strict=True)
            names = [name.strip() for name in next(reader, [])]
            if not any(names):
                raise UserError(f"{path}: expected the columns' names, got an empty file or line")
            _check_names(path, names)
            columns: list[list[str]] = [[] for _ in names]
            empty = 0
            for row in reader:
                if not any(cell.strip() for cell in row) and empty < 1000:
                    empty += 1  # allowed at the end only, and not by the million
                    continue
                number = len(columns[0]) + 2
                if len(row) != len(names) or empty:
                    got = "an empty line" if empty else f"{len(row)}"
                    raise UserError(
                        f"{path}, line {number}: expected {len(names)} values separated by "
                        f"{_SEPARATORS[delimiter]}, got {got}; the file may be cut short"
                    )
                for column, cell in zip(columns, row, strict=True):
                    column.append(cell)
                _check_values(path, (number - 1) * len(names))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no CSV file in UTF-8: {error}; write it again") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked: {error}; copy it again") from error
    return Table(path, dict(zip(names, columns, strict=True)), first_row=2, word="line")


_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def _read_parquet(path: Path) -> Table:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError as error:
        message = "Parquet files need pyarrow (or write CSV): pip install 'mufield[parquet]'"
        raise ImportError(message, name=error.name) from error
    try:
        with parquet.ParquetFile(path) as file:
            known, rows = file.schema_arrow, file.metadata.num_rows
        _check_names(path, known.names)
        # Others could hold anything, in any amount; there is no use for them here.
        plain = [field.name for field in known if _is_plain(field.type)]
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


def _is_plain(kind: Any) -> bool:
    """Whether values of a type are numbers, truth values, dates or texts."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return _is_text(kind) or any(is_it(kind) for is_it in (*tests, types.is_temporal))


def _values(path: Path, column: Any) -> list[Any]:
    """The values of a column; equal texts are one object."""
    from pyarrow import DictionaryArray, timestamp, types

    values: list[Any] = []
    if types.is_timestamp(column.type):  # Python's times have no nanoseconds
        column = column.cast(timestamp("us", column.type.tz), safe=False)
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
