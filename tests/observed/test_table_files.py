"""Tables from strangers: what is read, what is refused, and how much memory that takes."""

import gzip
import time
import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pytest

from mufield.errors import UserError
from mufield.fleet import read_trips
from mufield.io.table_files import read_table

MEGABYTE = 1 << 20


def peak_of(action):
    """The most memory that an action took."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_blank_lines_take_neither_memory_nor_time(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n" + b"\n" * 20))
    assert read_table(path).columns == {"a": ["1"], "b": ["2"]}
    path.write_bytes(gzip.compress(b"a,b\n1,2\n" + b"\n" * 20_000_000))
    began = time.process_time()
    assert peak_of(lambda: refused(path)) < 8 * MEGABYTE
    assert time.process_time() - began < 5


def refused(path):
    with pytest.raises(UserError, match="got an empty line"):
        read_table(path)


def test_a_line_without_end_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"x" * 50_000_000))

    def read():
        with pytest.raises(UserError, match="lines of less than 1,048,576 characters"):
            read_table(path)

    assert peak_of(read) < 16 * MEGABYTE


def test_files_that_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("mufield.io.tables.Table.most_unpacked", 1000)
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 1000))
    with pytest.raises(UserError, match="at most 1,000 in all, got more"):
        read_table(path)


def test_an_empty_line_is_allowed_at_the_end_only(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n\n,\n")
    assert len(read_table(path)) == 1
    path.write_text("a,b\n1,2\n\n3,4\n")
    with pytest.raises(UserError, match=r"line 3: expected 2 values .* got an empty line"):
        read_table(path)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_first_line_says_how_columns_are_separated(tmp_path, delimiter):
    path = tmp_path / "rows.csv"
    path.write_text("agent,state_0,state_1\n7,0.5,1.5\n".replace(",", delimiter))
    assert read_table(path).columns == {"agent": ["7"], "state_0": ["0.5"], "state_1": ["1.5"]}


@pytest.mark.parametrize("text", ["-7_3.9", "1_000", "3,5", "", "nan", "inf"])
def test_only_plain_numbers_are_numbers(tmp_path, text):
    path = tmp_path / "rows.csv"
    path.write_text(f'x;y\n1;2\n"{text}";2\n')
    with pytest.raises(UserError, match="line 3, column x: expected a finite number, got"):
        read_table(path).numbers("x")


def test_a_missing_name_is_none(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("agent,x\na,1\n ,2\n")
    with pytest.raises(UserError, match="line 3, column agent: expected a name or number, got"):
        read_table(path).labels("agent")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2026-03-01T08:15:00", "2026-03-01T08:20:00+01:00"),
        ("12.5", "2026-03-01T08:20:00"),
    ],
)
def test_times_of_two_kinds_cannot_be_compared(tmp_path, first, second):
    path = tmp_path / "rows.csv"
    path.write_text(f"time\n{first}\n{second}\n")
    with pytest.raises(UserError, match=r"column time: expected times of one kind, got .* and "):
        read_table(path).times("time")


def test_usual_dates_are_read_and_others_refused_with_those_that_are(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("time\n2026-03-01T08:15:00\n2026-03-01 08:15\n03/01/2026 08:15:00 AM\n")
    moment = datetime(2026, 3, 1, 8, 15, tzinfo=UTC).timestamp()
    np.testing.assert_array_equal(read_table(path).times("time"), [moment] * 3)
    path.write_text("time\n01.03.2026 08:15\n")
    with pytest.raises(UserError, match="such as 2026-03-01T08:15:00, 2026-03-01 08:15 or 03/01/"):
        read_table(path).times("time")


@pytest.mark.parametrize(
    ("time", "message"),
    [
        ("01.03.2026 08:15", "such as 7.25, a date and time such as 2026-03-01T08:15:00"),
        ("1772352900", "or Unix seconds if zone is given"),
    ],
)
def test_trips_with_other_clocks_are_refused_with_those_that_are_read(tmp_path, time, message):
    path = tmp_path / "trips.csv"
    path.write_text(
        "time;pickup_longitude;pickup_latitude;dropoff_longitude;dropoff_latitude\n"
        f"{time};-73.99;40.73;-73.98;40.74\n"
    )
    with pytest.raises(UserError, match=message):
        read_trips(path)


def test_parquet_columns_of_usual_types_are_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    nanoseconds = pyarrow.array([1_772_352_900_000_000_001, None], pyarrow.timestamp("ns"))
    columns = {
        "agent": pyarrow.array(["a", None]).dictionary_encode(),
        "fare": pyarrow.array([Decimal("12.50"), Decimal("3.25")]),
        "time": nanoseconds,
        "route": pyarrow.array([[1.0], [2.0]]),
    }
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    table = read_table(path)
    np.testing.assert_array_equal(table.numbers("fare"), [12.5, 3.25])
    assert "route" not in table.columns
    assert table.columns["time"][0] == datetime(2026, 3, 1, 8, 15)
    with pytest.raises(UserError, match="row 2, column agent: expected a name or number, got None"):
        table.labels("agent")


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t")])
def test_columns_may_be_parted_by_commas_semicolons_or_tabs(tmp_path, name, mark):
    text = f"a{mark}b\n1{mark}2\n".encode()
    for path, data in ((tmp_path / name, text), (tmp_path / f"{name}.gz", gzip.compress(text))):
        path.write_bytes(data)
        assert read_table(path).columns == {"a": ["1"], "b": ["2"]}
