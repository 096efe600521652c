"""`mufield show --out`: the pictures and films of runs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.quiver import Quiver
from PIL import Image

from mufield import cli
from mufield.runs.files import RunFiles
from mufield.viz.runs import flow_figure, learning_figure, run_flow

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(finished):
    return finished


def run_of(config, values, directory="elsewhere", more=lambda row: {}, **changes):
    """A run whose files nobody wrote."""
    rows = [
        {"value": v, "optimistic": v + 1, "optimism": 1.0, "spread": 0.1, "coverage": None}
        | {"w1_end": 0.5}
        for v in values
    ]
    rows = [row | more(row) for row in rows]
    run = object.__new__(RunFiles)
    run.directory, run.config = Path(directory), replace(config, **changes)
    run.records = [{"metrics": row} for row in rows]
    return run


def names(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_a_single_run_stands_beside_its_plans_and_the_reference(small):
    judged = run_of(
        small.config,
        (1.0, 2.0),
        more=lambda row: {"greedy": row["value"] + 0.5 if row["value"] > 1 else None},
        reference=2.5,
    )
    figure = learning_figure([judged])
    (axes,) = figure.axes
    wanted = ["realised", "expected by the optimistic plan", "realised without optimism"]
    assert names(figure) == [*wanted, "reference plan"]
    np.testing.assert_array_equal(axes.lines[2].get_ydata(), [np.nan, 2.5])
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1, 2])
    assert (axes.get_title(), axes.get_xlabel()) == ("four-rooms", "episode")
    assert names(learning_figure([run_of(small.config, (1.0,))])) == wanted[:2]


def test_several_runs_have_a_curve_each_called_by_their_directories(small):
    runs = [run_of(small.config, range(n), f"seed-{n}") for n in (2, 3)]
    figure = learning_figure(runs)
    assert names(figure) == ["seed-2, realised", "seed-3, realised"]
    assert [len(line.get_ydata()) for line in figure.axes[0].lines] == [2, 3]


def test_fields_show_the_stored_distributions_with_walls_and_arrows(run, small):
    store = RunFiles(run)
    flow = run_flow(store, small.problem, 2)
    np.testing.assert_array_equal(flow.masses, store.records[1].arrays["mass"])
    figure = flow_figure(small.problem, flow)
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == ["h = 0 of 3", "h = 1 of 3", "h = 3 of 3"]
    assert f"episode 2, J = {store.rows[1]['value']:.4g}" in figure.get_suptitle()
    assert all(any(c.get_label() == "walls" for c in axes.collections) for axes in panels)
    assert [any(isinstance(c, Quiver) for c in axes.collections) for axes in panels][-1] is False
    assert flow.arrows.shape == (3, small.problem.grid.n_cells, 2)


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_pictures_are_those_that_are_named(run, tmp_path, capsys, kind):
    out = tmp_path / "p" / f"mine.{kind}"
    assert cli.main(["show", str(run), "--out", str(out), "--json"]) == 0
    paths = json.loads(capsys.readouterr().out)["files"]
    assert sorted(paths) == sorted(str(path) for path in out.parent.iterdir())
    names = ("learning", "population")
    assert {path.name for path in out.parent.iterdir()} == {f"mine-{n}.{kind}" for n in names}
    for path in out.parent.iterdir():
        if kind == "pdf":
            assert path.read_bytes().startswith(b"%PDF")
            continue
        with Image.open(path) as picture:
            picture.verify()


def test_a_film_has_a_frame_for_each_step(run, small, tmp_path, capsys):
    out = tmp_path / "flow.gif"
    assert cli.main(["show", str(run), "--episode", "1", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    with Image.open(out) as film:
        assert film.n_frames == small.problem.horizon + 1


def test_what_cannot_be_drawn_is_said(run, begin, tmp_path, capsys):
    begin(tmp_path / "new")
    out = ("--out", str(tmp_path / "a.gif"))
    assert cli.main(["show", str(tmp_path / "new"), *out]) == 2
    assert "has no episode yet" in capsys.readouterr().err
    assert cli.main(["show", str(run), str(run), *out]) == 2
    assert "expected one run for the film, got 2" in capsys.readouterr().err
    assert cli.main(["show", str(run), "--out", "a.svg"]) == 2
    assert "expected a file .html, .mp4, .gif, .png, .pdf, got a.svg" in capsys.readouterr().err
    for which in ("9", "0", "first"):
        assert cli.main(["show", str(run), "--episode", which, *out]) == 2
        assert "best-episode or last or a number from 1 to 2" in capsys.readouterr().err
