"""What the page gets of a run."""

import base64
import json
import shutil

import numpy as np
import pytest
from report_runs import LINE, SMALL, add_episode, begin

from mufield import Box, Grid, Problem, uniform
from mufield.io.sealed import read_sealed, write_sealed
from mufield.report import data
from mufield.report.data import RunReader, collect, make_readers, snapshot
from mufield.report.flows import MOST_BYTES, encode_actions, encode_masses, that_fit
from mufield.runs.layout import LAYOUT


def decode_masses(found, cells):
    codes = np.frombuffer(base64.b64decode(found["codes"]), dtype="<u2")
    return found["scale"] * (codes.reshape(-1, cells) / 65535) ** 2


def decode_actions(found, shape):
    codes = np.frombuffer(base64.b64decode(found["codes"]), dtype="i1")
    return found["scale"] * codes.reshape(shape) / 127


def test_masses_keep_their_size_even_beside_a_crowd():
    masses = np.array([[1.0, 0.0, 1e-3, 1e-4]])
    np.testing.assert_allclose(decode_masses(encode_masses(masses), 4), masses, rtol=0.01)
    assert decode_masses(encode_masses(np.zeros((1, 2))), 2).tolist() == [[0.0, 0.0]]


def test_actions_keep_a_percent():
    actions = np.random.default_rng(0).uniform(-3, 3, size=(2, 4, 2))
    found = decode_actions(encode_actions(actions), actions.shape)
    np.testing.assert_allclose(found, actions, atol=0.015)


def test_a_run_comes_with_its_figures_flows_and_settings(run, small_rooms):
    masses, actions = add_episode(run, small_rooms, 3)
    (found,) = collect([RunReader(run)])["runs"]

    assert found["name"] == "run"
    assert [row["episode"] for row in found["rows"]] == [1, 2, 3]
    assert found["rows"][1]["notes"] == ["the band is <b>narrow</b>"]
    assert found["moves"] == [5, 5, 5]  # of three moves on two axes a wall stopped one
    assert found["seconds"]["2"] == {"fit": 0.5, "plan": 1.25, "run": 0.25}
    assert found["config"] == SMALL.document()
    assert found["versions"]["mufield"] == "0.1.0"
    assert found["space"]["shape"] == [3, 3]
    assert found["space"]["walls"] == "000010000"
    assert set(found["flows"]) == {1, 2, 3}
    assert (found["message"], found["flow_note"]) == ("", "")
    flow = found["flows"][3]
    np.testing.assert_allclose(decode_masses(flow["mass"], 8), masses, atol=1e-4)
    np.testing.assert_allclose(decode_actions(flow["actions"], (3, 8, 2)), actions, atol=0.01)


def test_margins_are_of_runs_that_have_limits(run, small_rooms):
    margins = {"a door": [0.5, None, -0.1]}
    add_episode(run, small_rooms, 3, margin=-0.1, assured=0.2, margins=margins)
    found = snapshot([RunReader(run)])
    first, _, last = found["runs"][0]["rows"]
    assert "margins" not in first
    assert (last["margins"], last["margin"]) == (margins, -0.1)


def test_a_line_has_actions_too(tmp_path, corridor):
    directory = begin(tmp_path / "line", LINE)
    _, actions = add_episode(directory, corridor, 1)
    flow = RunReader(directory).flow(1)
    assert flow["space"]["dim"] == 1
    np.testing.assert_allclose(decode_actions(flow["actions"], (4, 24, 1)), actions, atol=0.01)


def test_of_a_space_of_three_dimensions_only_the_figures_are_shown(tmp_path, monkeypatch):
    grid = Grid.from_map(["..\n.#", "..\n##"])
    problem = Problem(
        space=grid,
        actions=Box(-1.0, 1.0, dim=3),
        reward=lambda state, action, mu: state[0],
        horizon=2,
        initial=uniform(grid),
        noise=0.1,
        max_move=1.0,
    )
    directory = begin(tmp_path / "space", SMALL)
    add_episode(directory, problem, 1)
    monkeypatch.setattr(data, "build_problem", lambda config, imports: problem)
    (found,) = collect([RunReader(directory)])["runs"]
    assert (len(found["rows"]), found["flows"]) == (1, {})
    assert found["flow_message"] == "The flow cannot be drawn: the space has three dimensions."


def test_only_what_changed_is_read_again(run, small_rooms, monkeypatch):
    reader = RunReader(run)
    before = reader.fingerprint()
    reader.document()
    assert reader.fingerprint() == before
    add_episode(run, small_rooms, 3)
    assert reader.fingerprint() != before
    read = []
    from mufield.report import data

    plain = data.read_record
    monkeypatch.setattr(
        data, "read_record", lambda path, kind: read.append(path.name) or plain(path, kind)
    )
    assert len(reader.document()["rows"]) == 3
    assert read == ["0003.safetensors"]
    assert reader.flow(3) is reader.flow(3)


def test_a_run_that_is_not_there_not_begun_or_begun_anew(tmp_path, run, small_rooms):
    reader = RunReader(run)
    assert len(reader.document()["rows"]) == 2
    first = reader.flow(1)
    shutil.rmtree(run)
    assert reader.document()["message"] == "There is no run here yet."
    assert reader.flow(1)["message"] == "There is no run here yet."
    begin(run, SMALL)
    assert reader.document()["message"] == "There is no episode yet."
    assert collect([reader])["runs"][0]["flows"] == {}
    add_episode(run, small_rooms, 1)
    assert [row["episode"] for row in reader.document()["rows"]] == [1]
    assert reader.flow(1) is not first


def test_damage_is_said_and_the_rest_is_shown(run):
    (run / "episodes" / "0002.safetensors").write_bytes(b"torn")
    document = RunReader(run).document()
    assert "0002.safetensors" in document["message"]
    assert [row["episode"] for row in document["rows"]] == [1]
    assert "0002.safetensors" in RunReader(run).flow(2)["message"]
    (run / "episodes" / "0001.safetensors").unlink()
    assert "0001.safetensors is missing" in RunReader(run).document()["message"]
    (run / "config.json").write_text("{")
    assert "config.json" in RunReader(run).document()["message"]


def test_without_the_users_file_there_are_figures_but_no_flow(run):
    config = json.loads((run / "config.json").read_text()) | {"imports": "gone.py"}
    (run / "config.json").write_text(json.dumps(config))
    (found,) = collect([RunReader(run)])["runs"]
    assert len(found["rows"]) == 2
    assert found["flows"] == {}
    assert "cannot import" in found["flow_message"]


def test_runs_of_one_name_are_told_apart_by_their_place(tmp_path):
    readers = make_readers([tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "c"])
    assert [r.name for r in readers] == [f"{tmp_path}/a/run", f"{tmp_path}/b/run", "c"]
    assert [run["rows"] for run in snapshot(readers)["runs"]] == [[], [], []]
    with pytest.raises(ValueError, match="at least one run"):
        make_readers([])


@pytest.mark.parametrize("count", [1, 2, 7, 30, 500])
@pytest.mark.parametrize("size", [4_000, 400_000, 1_400_000, 20_000_000])
def test_what_is_kept_fits_and_holds_the_best(count, size):
    values = [float(-abs(number - count // 3)) for number in range(count)]
    kept = that_fit(values, size)
    assert len(kept) * size <= MOST_BYTES
    assert set(kept) <= set(range(1, count + 1))
    assert (count // 3 + 1 in kept) == (size <= MOST_BYTES)
    assert (len(kept) == count) == (count * size <= MOST_BYTES)


def test_a_run_of_a_real_system_says_so_and_how_many_agents_there_were(run):
    (found,) = collect([RunReader(run)])["runs"]
    assert (found["told"], found["agents"]) == (False, 1)
    path = run / "episodes" / "0002.safetensors"
    document, arrays = read_sealed(path, LAYOUT.episode)
    for name in ("states", "actions", "next_states", "stopped"):
        arrays[name] = np.repeat(arrays[name], 500, axis=0)
    write_sealed(path, document | {"source": {"file": "e.csv"}}, arrays, kind=LAYOUT.episode)
    (found,) = collect([RunReader(run)])["runs"]
    assert (found["told"], found["agents"]) == (True, 500)
