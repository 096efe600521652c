"""Small files with large costs, edited results, and figures that are no numbers."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from mufield import Grid, UserError
from mufield.environments.registry import make
from mufield.io import sealed, tables
from mufield.io.atomic import check_file
from mufield.io.sealed import read_json, read_lines, read_sealed, write_sealed
from mufield.io.table_files import read_table
from mufield.jobs.job import Job, JobResult, JobStore, write_result
from mufield.report.data import RunReader
from mufield.report.server import Watcher
from mufield.runs.build import build, resolve
from mufield.runs.config import RunConfig, parse_config, read_settings

JOB = Job("small", "random", {"steps": (1, 2)}, {"jax": "1"})


@pytest.fixture
def store(tmp_path):
    found = JobStore(tmp_path)
    write_result(found.begin(JOB), JOB, {"value": 1.5, "rewards": np.arange(3.0)}, 2.0)
    return found


def test_a_result_counts_only_for_its_own_job_and_unchanged(store):
    path = store.path(JOB) / JobResult.file
    assert store.figures(JOB)["value"] == 1.5
    other = replace(JOB, settings={"steps": (1, 3)})
    os.replace(path, store.begin(other) / JobResult.file)
    assert store.find(other) is None
    document, arrays = read_sealed(store.path(other) / JobResult.file, "job result")
    for wrong in ({"figures": [1]}, {"seconds": "x"}, {"computed_with": None}):
        write_sealed(path, document | wrong, arrays, kind="job result")
        assert store.find(JOB) is None
    write_sealed(path, document, arrays, kind="job result")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"1.5", b"9.5"))
    assert b"9.5" in path.read_bytes()
    assert store.find(JOB) is None


def test_huge_files_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "sparse.csv"
    with path.open("wb") as file:
        file.truncate(20 << 30)
    for read in (read_table, read_json, check_file, lambda path: read_sealed(path, "policy")):
        with pytest.raises(UserError, match=r"sparse.csv: expected at most"):
            read(path)
    with pytest.raises(UserError, match="expected at most 1,048,576 bytes"):
        read_settings(path.rename(tmp_path / "sparse.toml"))


def test_what_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(sealed, "MOST_BYTES", 100)
    with pytest.raises(UserError, match="at most 100 bytes"):
        write_sealed(tmp_path / "large", {}, {"a": np.zeros(1000)}, kind="test file")
    assert not (tmp_path / "large").exists()


def test_small_tables_that_unfold_to_large_ones_are_refused(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path, rows = tmp_path / "bomb.parquet", 30_000_000
    column = pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int8), pyarrow.array([1.0]))
    parquet.write_table(pyarrow.table({"agent": column}), path)
    assert path.stat().st_size < 2_000_000
    with pytest.raises(UserError, match=r"expected at most 20,000,000 values"):
        read_table(path)
    monkeypatch.setattr(tables.Table, "most_text", 1000)
    column = pyarrow.array(["x" * 2000] * 50)
    parquet.write_table(pyarrow.table({"agent": column}), path)
    with pytest.raises(UserError, match="expected names of at most"):
        read_table(path)
    # What nobody needs is not even read.
    parquet.write_table(pyarrow.table({"agent": ["a", None], "lists": [[1], [2]]}), path)
    assert read_table(path).columns == {"agent": ["a", None]}
    monkeypatch.setattr(tables.Table, "most_values", 5)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n5,6\n")
    with pytest.raises(UserError, match="at most 5 values"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("word", ["NaN", "-Infinity", "1e999"])
def test_figures_that_are_no_numbers_are_left_out_and_watch_goes_on(word, tmp_path):
    config = RunConfig("four-rooms", precision="float64")
    (tmp_path / "config.json").write_text(json.dumps(config.document()))
    timings = tmp_path / "timings.jsonl"
    timings.write_text(f'{{"episode": 1, "fit": {word}}}\n{{"episode": 2, "fit": 1.5}}\n')
    assert read_lines(timings) == [{"episode": 2, "fit": 1.5}]
    watcher = Watcher([RunReader(tmp_path)])
    (tmp_path / "versions.json").write_text(f'{{"jax": {word}}}')
    watcher._look()
    version, text = watcher.wait(0, 0.0)
    assert version == 2
    assert "versions.json" in json.loads(text)["runs"][0]["message"]


BAD = {
    "options": [3, {"horizon": [1]}, {"horizon": 1e39}, {"horizon": "x"}, {"noise": {}}],
    "model_options": [[], {"width": False}, {"steps": 1e39}, {"members": 10**40}, {"width": [1]}],
    "planner_options": [7, {"sweeps": True}, {"points": 1e300}],
    "seed": [10**40, -1, [], 1e39],
    "episodes": [10**40, "many"],
    "scale": ["x", []],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, many in BAD.items() for v in many])
def test_wrong_settings_are_refused_by_name(name, value, tmp_path):
    path = tmp_path / "config.json"
    small = {"environment": "four-rooms", "model": "ensemble", "precision": "float64"}
    path.write_text(json.dumps(small | {name: value}))
    with pytest.raises(UserError):
        build(resolve(parse_config(read_settings(path), str(path))))


def test_options_that_a_system_cannot_have_are_named():
    with pytest.raises(UserError, match=r"'four-rooms' cannot be built with the options"):
        make("four-rooms", horizon=[1])


def test_columns_that_appear_twice_are_named(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.Table.from_arrays([pyarrow.array([1.0])] * 2, names=["state_0", "state_0"])
    parquet.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(UserError, match="state_0 appears more than once"):
        read_table(tmp_path / "twice.parquet")


def test_positions_that_no_whole_number_holds_are_outside():
    grid = Grid.box(0.0, 3.0, (3, 3))
    points = np.array([[2.4e12, 0.5], [-1e30, 0.5], [0.5, 0.5]])
    assert (grid.index_of(points) >= 0).tolist() == [False, False, True]
