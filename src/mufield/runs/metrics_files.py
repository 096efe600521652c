"""The metrics for other programs, as Parquet and as TensorBoard events; mufield reads neither."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..io.atomic import write_changed
from ..io.sealed import is_a

COLUMNS: dict[str, type] = {"episode": int, "transitions": int, "notes": list, "margins": dict}
"""Columns that hold no floating-point numbers: whole numbers, lists of texts, numbers by name."""

Row = dict[str, Any]


def may_be(name: str, value: Any) -> bool:
    """Whether a figure of the metrics can have this value, whoever wrote it."""
    kind = COLUMNS.get(name, float)
    if kind is list:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if value is None:
        # Without these numbers a run cannot be gone on with, or drawn.
        return kind is not int and name not in ("value", "best")
    if kind is dict:
        return isinstance(value, dict) and all(
            isinstance(each, list) and all(m is None or is_a(m, float) for m in each)
            for each in value.values()
        )
    return is_a(value, kind)


def wanted(name: str) -> str:
    """What a figure of the metrics is, in words."""
    words: dict[type, str] = {list: "a list of texts", dict: "lists of numbers by name"}
    return words.get(COLUMNS.get(name, float), "a number")


def write_columns(path: Path, rows: Sequence[Row]) -> None:
    """Writes the metrics as Parquet, unless the file already holds them.

    Without pyarrow, a file that another computer wrote is removed, as it would become outdated.
    """
    data = _parquet(rows) if rows else None
    if data is None:
        path.unlink(missing_ok=True)
    else:
        write_changed(path, data)


def _parquet(rows: Sequence[Row]) -> bytes | None:
    """The file's contents, the same for the same rows; None without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        return None
    known = {int: pyarrow.int64(), list: pyarrow.list_(pyarrow.string())}
    types = {name: known[kind] for name, kind in COLUMNS.items() if kind in known}
    for column in (name for name, kind in COLUMNS.items() if kind is dict):
        inner = dict.fromkeys(name for row in rows for name in row.get(column) or {})
        types[column] = pyarrow.struct([(name, pyarrow.list_(pyarrow.float64())) for name in inner])
    names = dict.fromkeys(name for row in rows for name in row)
    # Not guessed from the values: a column without values would have no type.
    schema = pyarrow.schema([(name, types.get(name, pyarrow.float64())) for name in names])
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), file)
    return file.getvalue()


@contextmanager
def event_writer(directory: Path, rows: Sequence[Row]) -> Iterator[Callable[[Row], None]]:
    """Yields a function that writes an episode's figures as events.

    Old events are removed and all ``rows`` so far written again, because episodes that were run
    without this writer would be missing.
    """
    from tensorboardX import SummaryWriter

    for old in directory.glob("events.out.tfevents.*"):
        old.unlink()
    with SummaryWriter(logdir=str(directory)) as writer:

        def write(row: Row) -> None:
            for name, value in row.items():
                if name != "episode" and isinstance(value, int | float):
                    writer.add_scalar(name, value, row["episode"])
            writer.flush()

        for row in rows:
            write(row)
        yield write
