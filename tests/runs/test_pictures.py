"""`mufield show --out`: the pictures and films of runs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.quiver import Quiver
from PIL import Image

from mufield import cli
from mufield._style import DIAGNOSTICS
from mufield.runs.files import RunFiles
from mufield.viz.groups import RunMetrics, group_runs
from mufield.viz.runs import diagnostics_figure, flow_figure, learning_figure, run_flow

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(finished):
    return finished


def metrics(config, values, **changes):
    rows = [
        {"value": v, "optimistic": v + 1, "optimism": 1.0, "spread": 0.1, "coverage": None}
        | {"w1_end": 0.5}
        for v in values
    ]
    return RunMetrics(Path("elsewhere"), replace(config, **changes), rows)


def bands(axes):
    return [artist for artist in axes.collections if isinstance(artist, PolyCollection)]


def names(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_seeds_share_a_curve_as_far_as_all_of_them_go(small):
    runs = [metrics(small.config, range(seed, seed + 4), seed=seed) for seed in (0, 1, 5)]
    runs[2] = replace(runs[2], rows=runs[2].rows[:3])
    runs.append(metrics(small.config, (4.0,), optimism="greedy"))
    groups = group_runs(runs)
    assert [group.name for group in groups] == ["hallucinated", "greedy"]
    figure = learning_figure(groups)
    (axes,) = figure.axes
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [1, 2, 3])
    (band,) = bands(axes)
    assert (band.get_paths()[0].vertices[:, 1].min(), axes.get_xlabel()) == (0.0, "episode")
    assert names(figure) == ["hallucinated: median and range of 3 seeds", "greedy"]


def test_runs_that_were_judged_have_a_second_curve(small):
    def judged(seed):
        run = metrics(small.config, (1.0, 2.0, 3.0), seed=seed)
        later = [row | {"greedy": row["value"] + 0.5} for row in run.rows[1:]]
        return replace(run, rows=[run.rows[0], *later])

    alone = learning_figure(group_runs([judged(0)]))
    wanted = ["realised while exploring", "expected by the optimistic plan"]
    assert names(alone) == [*wanted, "realised without optimism"]
    np.testing.assert_array_equal(alone.axes[0].lines[2].get_ydata(), [np.nan, 2.5, 3.5])
    assert names(learning_figure(group_runs([metrics(small.config, (1.0,))]))) == wanted
    several = learning_figure(group_runs([judged(0), judged(1)]))
    assert names(several)[1].endswith("2 seeds, realised without optimism")


def test_a_single_run_stands_beside_its_plans_and_the_reference(small):
    groups = group_runs([metrics(small.config, (1.0, 2.0), reference=2.5)])
    figure = learning_figure(groups)
    assert len(figure.axes[0].lines) == 3
    assert names(figure)[-1] == "reference plan"
    assert figure.axes[0].get_title() == "four-rooms"


def test_groups_are_called_by_what_differs(small):
    def called(*changes):
        runs = [metrics(small.config, (1.0,), **change) for change in changes]
        return [group.name for group in group_runs(runs)]

    more = small.config.model_options | {"beta": 9.0}
    assert called({}, {"model": "gp", "model_options": {}}) == ["ensemble", "gp"]
    assert called({}, {"model_options": more}) == ["beta = 4.0", "beta = 9.0"]
    many = {"optimism": "bonus", "scale": 1.0, "first": "random", "agents": 5}
    assert called({}, many) == ["elsewhere"] * 2


def test_diagnostics_have_the_panels_of_the_page_with_units(small):
    figure = diagnostics_figure(group_runs([metrics(small.config, (1.0, 2.0))]))
    usual = [diagnostic for diagnostic in DIAGNOSTICS if not diagnostic.rare]
    for axes, diagnostic in zip(figure.axes, usual, strict=True):
        assert (axes.get_title(), axes.get_ylabel()) == (diagnostic.title, diagnostic.unit)
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), [1.0, 1.0])
    assert names(figure)[0] == "four-rooms"


def test_limits_have_a_panel_with_a_line_at_zero_if_a_run_has_them(small):
    limited = metrics(small.config, (1.0, 2.0))
    rows = [row | {"margin": 0.5, "assured": 0.25, "coverage": 0.9} for row in limited.rows]
    other = metrics(small.config, (1.0, 2.0), optimism="greedy")
    figure = diagnostics_figure(group_runs([replace(limited, rows=rows), other]))
    assert [axes.get_title() for axes in figure.axes] == [each.title for each in DIAGNOSTICS]
    panel = figure.axes[-1]
    lines = {line.get_label(): list(line.get_ydata()) for line in panel.lines}
    assert lines["hallucinated, realised"] == [0.5, 0.5]
    assert lines["hallucinated, assured"] == [0.25, 0.25]
    assert lines["the limit"] == [0.0, 0.0]


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
    names = ("learning", "diagnostics", "population")
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
    assert "expected one run to show the film of, got 2" in capsys.readouterr().err
    assert cli.main(["show", str(run), "--out", "a.svg"]) == 2
    assert "expected a file .html, .mp4, .gif, .png, .pdf, got a.svg" in capsys.readouterr().err
    for which in ("9", "0", "first"):
        assert cli.main(["show", str(run), "--episode", which, *out]) == 2
        assert "best-episode or last or a number from 1 to 2" in capsys.readouterr().err
