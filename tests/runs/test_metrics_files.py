"""The metrics by columns and as events: what other programs read."""

import struct

import pytest
from pyarrow import parquet, types

from mufield.runs import metrics_files
from mufield.runs.files import RunFiles
from mufield.runs.learn import learn_run

ROWS = [
    {"episode": 1, "value": 1.5, "optimistic": None, "reference": None, "notes": []},
    {"episode": 2, "value": 2.0, "optimistic": 3.0, "reference": None, "notes": ["a", "b"]},
]


def test_columns_have_the_rows_and_types_even_without_values(tmp_path):
    path = tmp_path / "metrics.parquet"
    metrics_files.write_columns(path, ROWS)
    table = parquet.read_table(path)
    assert table.to_pylist() == ROWS
    assert types.is_int64(table.schema.field("episode").type)
    assert types.is_float64(table.schema.field("reference").type)
    assert types.is_list(table.schema.field("notes").type)


def test_margins_of_limits_are_lists_by_name(tmp_path):
    path = tmp_path / "metrics.parquet"
    rows = [
        row | {"margin": 0.1, "margins": {"a door": [0.5, 0.1], "at the end": [None, 0.25]}}
        for row in ROWS
    ]
    metrics_files.write_columns(path, rows)
    assert parquet.read_table(path).to_pylist() == rows


def test_the_same_rows_give_the_same_bytes_and_are_not_written_twice(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    metrics_files.write_columns(first, ROWS)
    metrics_files.write_columns(second, [dict(row) for row in ROWS])
    assert first.read_bytes() == second.read_bytes()
    before = first.stat()
    metrics_files.write_columns(first, ROWS)
    assert first.stat().st_mtime_ns == before.st_mtime_ns
    metrics_files.write_columns(first, ROWS[:1])
    assert parquet.read_table(first).num_rows == 1


def test_without_pyarrow_no_file_stays_that_nobody_keeps_in_step(tmp_path, monkeypatch):
    path = tmp_path / "metrics.parquet"
    metrics_files.write_columns(path, ROWS)
    monkeypatch.setattr(metrics_files, "_parquet", lambda rows: None)
    metrics_files.write_columns(path, ROWS)
    assert not path.exists()


def test_a_run_keeps_both_files_in_step(run, small):
    path = run / "metrics.parquet"
    assert parquet.read_table(path).to_pylist() == RunFiles(run).rows
    whole = path.read_bytes()
    for damage in (whole[:-5], b""):
        path.write_bytes(damage)
        learn_run(run, setup=small, progress=False)
        assert path.read_bytes() == whole


def test_pandas_reads_both_files(run):
    pandas = pytest.importorskip("pandas")
    columns = pandas.read_parquet(run / "metrics.parquet")
    lines = pandas.read_json(run / "metrics.jsonl", lines=True)
    assert columns["value"].tolist() == pytest.approx(lines["value"].tolist())


def test_duckdb_reads_both_files(run):
    duckdb = pytest.importorskip("duckdb")
    for name in ("metrics.parquet", "metrics.jsonl"):
        ((found,),) = duckdb.sql(f"select max(value) from '{run / name}'").fetchall()
        assert found == pytest.approx(max(row["value"] for row in RunFiles(run).rows))


def events_of(run):
    """The figures in a run's events: (name, episode, value)."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = (run / "tensorboard").iterdir()
    data, figures = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        event, data = Event.FromString(data[12 : 12 + size]), data[16 + size :]
        figures += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
    return figures


def test_events_hold_all_episodes_however_the_run_went_on(run, small):
    def check():
        rows = RunFiles(run).rows
        figures = events_of(run)
        values = [(step, value) for tag, step, value in figures if tag == "value"]
        assert values == [(row["episode"], pytest.approx(row["value"])) for row in rows]
        assert {"optimistic", "beta", "coverage"} <= {tag for tag, _, _ in figures}
        assert not {"notes", "reference", "episode"} & {tag for tag, _, _ in figures}

    learn_run(run, setup=small, tensorboard=True, progress=False)
    check()
    learn_run(run, 3, setup=small, progress=False)
    learn_run(run, 4, setup=small, tensorboard=True, progress=False)
    check()
