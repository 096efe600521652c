"""The metrics by columns, in a Parquet file that pandas, DuckDB and others read."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._files import write_changed

INTEGERS = ("episode", "transitions")
TEXTS = ("notes",)
"""Lists of texts; all other columns are floating-point numbers."""


def write_columns(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes the metrics, unless the file says the same already.

    Without pyarrow there is no such file: one that another computer wrote is removed, because it
    could not be kept in step.
    """
    data = _parquet(rows) if rows else None
    if data is None:
        path.unlink(missing_ok=True)
    else:
        write_changed(path, data)


def _parquet(rows: Sequence[dict[str, Any]]) -> bytes | None:
    """The file's contents, the same for the same rows; None without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        return None
    types = dict.fromkeys(INTEGERS, pyarrow.int64()) | dict.fromkeys(
        TEXTS, pyarrow.list_(pyarrow.string())
    )
    names = dict.fromkeys(name for row in rows for name in row)
    # Not guessed from the values: a column without any would have no type.
    schema = pyarrow.schema([(name, types.get(name, pyarrow.float64())) for name in names])
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), file)
    return file.getvalue()
