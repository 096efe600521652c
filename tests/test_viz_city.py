"""Pictures of a fleet on a map."""

import numpy as np
from matplotlib.colors import to_rgba

import mufield as mf
from mufield import viz
from mufield._style import STYLE

WALLS = np.zeros((3, 4), dtype=bool)
WALLS[0, 0] = True
GRID = mf.Grid.box(0.0, (1.5, 2.0), (3, 4), walls=WALLS)
CITY = mf.fleet.CityMap(-73.98, 40.75, 29.0, GRID)


def test_maps_are_labelled_in_kilometres_and_have_blue_walls():
    mass = np.full(GRID.n_cells, 1 / GRID.n_cells)
    figure = viz.field_figure(GRID, mass[None], [0], labels=viz.map_labels(CITY))
    panel, bar = figure.axes
    assert panel.get_ylabel() == "km (up is 29° from north)"
    assert bar.get_ylabel().startswith("share of the fleet in a cell")
    (walls,) = panel.collections
    np.testing.assert_allclose(walls.get_facecolor()[0], to_rgba(STYLE.water))
    assert [viz.time_of_day(hour) for hour in (0.0, 7 + 1 / 6, 23.999)] == ["0:00", "7:10", "0:00"]


def test_films_of_maps_are_labelled(tmp_path):
    masses = np.full((2, GRID.n_cells), 1 / GRID.n_cells)
    path = viz.animate_flow(tmp_path / "film.gif", GRID, masses, labels=viz.map_labels(CITY))
    assert path.stat().st_size > 1000


def test_what_the_colours_mean_fits_beside_a_map_that_is_wider_than_high():
    grid = mf.Grid.box(0.0, (9.1, 7.0), (13, 10))
    masses = np.full((4, grid.n_cells), 1 / grid.n_cells)
    arrows = np.full((4, grid.n_cells, 2), 0.1)
    labels = viz.map_labels(mf.fleet.CityMap(2.27, 48.82, 0.0, grid))
    figure = viz.field_figure(grid, masses, [0, 1, 2, 3], arrows=arrows, labels=labels)
    figure.suptitle("a day")
    figure.canvas.draw()
    label = figure.axes[-1].yaxis.label.get_window_extent()
    assert figure.bbox.y0 <= label.y0 < label.y1 <= figure.bbox.y1
    panels = [axes.get_window_extent() for axes in figure.axes[:4]]
    assert sum(panel.width for panel in panels) > 0.6 * figure.bbox.width
