"""Pictures of a fleet on a map."""

import numpy as np
import pytest

import mufield as mf
from mufield import viz

WALLS = np.zeros((3, 4), dtype=bool)
WALLS[0, 0] = True
GRID = mf.Grid.box(0.0, (1.5, 2.0), (3, 4), walls=WALLS)
CITY = mf.fleet.CityMap(-73.98, 40.75, 29.0, GRID)


def test_maps_share_their_colours_and_show_walls(tmp_path):
    shares = [np.full(GRID.n_cells, 0.01), np.full(GRID.n_cells, 0.04)]
    panels = [viz.MapPanel("few", shares[0]), viz.MapPanel("many", shares[1])]
    figure = viz.map_figure(CITY, panels, title="both")
    figure.savefig(tmp_path / "map.png")
    first, second, bar = figure.axes
    assert [each.get_title() for each in (first, second)] == ["few", "many"]
    assert bar.get_ylabel() == "number in a cell of 500 m, of 1,000 vehicles"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["water, or no trips"]
    assert first.get_ylabel() == "km (up is 29° from north)"
    (image,) = first.get_images()
    picture = np.ma.filled(image.get_array(), np.nan)
    assert np.isnan(picture[0, 0])
    np.testing.assert_allclose(picture[3, 2], 10.0)
    assert image.norm.vmax == pytest.approx(40.0)
    moving = viz.MapPanel("many", shares[1], np.ones((GRID.n_cells, 2)))
    (legend,) = viz.map_figure(CITY, [panels[0], moving]).legends
    assert legend.get_texts()[-1].get_text() == "mean drive of empty vehicles"
    with pytest.raises(mf.UserError, match="at least one map"):
        viz.map_figure(CITY, [])


def test_served_shares_by_the_clock():
    figure = viz.served_figure([7.0, 7.5], {"stay": np.array([0.5, 0.4])}, title="a day")
    (axes,) = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["stay"]
    assert axes.xaxis.get_major_formatter()(7.5, 0) == "7:30"
    assert [viz.clock(hour) for hour in (0.0, 7 + 1 / 6, 23.999)] == ["0:00", "7:10", "0:00"]


def test_films_of_maps_are_labelled(tmp_path):
    masses = np.full((2, GRID.n_cells), 1 / GRID.n_cells)
    path = viz.animate_flow(tmp_path / "film.gif", GRID, masses, labels=viz.map_labels(CITY))
    assert path.stat().st_size > 1000
