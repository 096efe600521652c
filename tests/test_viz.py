"""Pictures: what is on them, and that films come out as files that play."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.quiver import Quiver
from PIL import Image

from mufield import FOUR_ROOMS, Grid
from mufield.viz import NamedFlow, animate_flow, curve_figure, draw_field, field_figure
from mufield.viz.fields import norm_of

ROOMS = Grid.from_map(FOUR_ROOMS)
LINE = Grid.from_map("...#..", cell_size=0.5)
STEPS = 3


def some_masses(grid: Grid, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(grid.n_cells), size=STEPS + 1)


def some_arrows(grid: Grid) -> np.ndarray:
    return np.random.default_rng(1).uniform(0.5, 1.0, size=(STEPS, grid.n_cells, 2))


def drawn(grid: Grid, mass: np.ndarray, **options: object) -> Axes:
    axes = Figure().subplots()
    draw_field(axes, grid, mass, **options)
    return axes


def artists(axes: Axes, kind: type) -> list:
    return [artist for artist in axes.get_children() if isinstance(artist, kind)]


def colour_bars(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_ylabel() == "mass of a cell"]


def test_neither_the_package_nor_its_pictures_touch_the_global_state_of_matplotlib() -> None:
    script = (
        "import sys, mufield\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import mufield.viz\n"
        "assert 'matplotlib' in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert 'imageio_ffmpeg' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=120)


def test_a_plane_shows_x_to_the_right_and_y_upwards() -> None:
    mass = np.zeros(ROOMS.n_cells)
    mass[ROOMS.index_at(7, 1)] = 1.0
    axes = drawn(ROOMS, mass, title="one cell")

    (image,) = axes.images
    pixels = image.get_array()
    assert pixels[1, 7] == 1.0
    assert image.origin == "lower"
    assert image.get_extent() == [0.0, 11.0, 0.0, 11.0]
    assert axes.get_aspect() == 1.0
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("x", "y", "one cell")
    assert len(colour_bars(axes.figure)) == 1


def test_each_wall_is_drawn_over_the_colours() -> None:
    axes = drawn(ROOMS, some_masses(ROOMS)[0])

    (walls,) = artists(axes, PatchCollection)
    assert walls.get_label() == "walls"
    corners = {tuple(path.vertices.min(axis=0).astype(int)) for path in walls.get_paths()}
    assert corners == {tuple(cell) for cell in np.argwhere(ROOMS.walls)}


def test_a_line_shows_densities_and_walls() -> None:
    mass = np.array([0.1, 0.2, 0.3, 0.3, 0.1])
    axes = drawn(LINE, mass)

    stairs = next(patch for patch in axes.patches if patch.get_label() != "wall")
    np.testing.assert_allclose(stairs.get_data().values, [0.2, 0.4, 0.6, np.nan, 0.6, 0.2])
    assert [patch.get_label() for patch in axes.patches].count("wall") == 1
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "density")
    assert axes.get_xlim() == (0.0, 3.0)


def test_arrows_stand_only_where_there_is_mass() -> None:
    mass = np.zeros(ROOMS.n_cells)
    cells = [ROOMS.index_at(0, 0), ROOMS.index_at(8, 8)]
    mass[cells] = 0.5
    axes = drawn(ROOMS, mass, arrows=np.ones((ROOMS.n_cells, 2)))

    (arrows,) = artists(axes, Quiver)
    np.testing.assert_allclose(arrows.XY, ROOMS.centres[cells])


def test_no_arrows_are_drawn_where_nobody_acts() -> None:
    axes = drawn(ROOMS, some_masses(ROOMS)[0], arrows=np.zeros((ROOMS.n_cells, 2)))

    assert artists(axes, Quiver) == []


def test_fine_grids_show_some_of_their_arrows() -> None:
    fine = Grid.box(0.0, 1.0, (50, 50))
    axes = drawn(fine, np.full(2500, 1 / 2500), arrows=np.ones((2500, 2)))

    (arrows,) = artists(axes, Quiver)
    assert 100 <= arrows.N <= 16**2


def test_a_log_scale_leaves_range_for_thin_cells() -> None:
    mass = np.zeros(ROOMS.n_cells)
    mass[0] = 1.0
    axes = drawn(ROOMS, mass, norm=norm_of(ROOMS, 1.0, log=True))

    norm = axes.images[0].norm
    assert isinstance(norm, LogNorm)
    np.testing.assert_allclose((norm.vmin, norm.vmax), (0.1 / 104, 10 / 104))


@pytest.mark.parametrize("grid", [ROOMS, LINE], ids=["plane", "line"])
def test_the_panels_of_a_figure_share_one_scale(grid: Grid) -> None:
    masses = some_masses(grid)
    figure = field_figure(grid, masses, [0, STEPS])

    panels = [axes for axes in figure.axes if axes.get_xlabel() == "x"]
    assert [axes.get_title() for axes in panels] == ["h = 0", f"h = {STEPS}"]
    if grid.dim == 2:
        assert len(colour_bars(figure)) == 1
        assert panels[0].images[0].norm is panels[1].images[0].norm


def test_a_figure_of_two_flows_has_a_row_for_each() -> None:
    flows = [
        NamedFlow("first", some_masses(ROOMS), some_arrows(ROOMS)),
        NamedFlow("second", some_masses(ROOMS, seed=2)),
    ]
    figure = field_figure(ROOMS, flows, [0, STEPS], titles=["start", "end"])

    panels = [axes for axes in figure.axes if axes.get_xlabel() == "x"]
    assert [axes.get_title() for axes in panels] == [
        "first, start",
        "first, end",
        "second, start",
        "second, end",
    ]
    # At the end nobody acts any more, and the second flow has no arrows.
    assert [len(artists(axes, Quiver)) for axes in panels] == [1, 0, 0, 0]
    assert "the longest has size" in figure.get_supxlabel()


def test_mean_actions_that_are_only_rounding_are_no_arrows() -> None:
    tiny = NamedFlow("random", some_masses(ROOMS), 1e-9 * some_arrows(ROOMS))
    figure = field_figure(ROOMS, [tiny], [0])
    assert not artists(figure.axes[0], Quiver)
    assert not figure.get_supxlabel()


def test_a_cuboid_asks_for_a_slice_and_the_advice_works() -> None:
    grid = Grid.box(0.0, 1.0, (3, 4, 2))
    mass = np.full(24, 1 / 24)
    with pytest.raises(ValueError, match="pass a slice"):
        drawn(grid, mass)

    plane = Grid.box(grid.lower[:2], grid.upper[:2], grid.shape[:2], walls=grid.walls[:, :, 1])
    axes = drawn(plane, plane.from_array(grid.to_array(mass)[:, :, 1]))
    assert axes.images[0].get_array().shape == (4, 3)


def test_mistakes_are_named() -> None:
    masses = some_masses(ROOMS)
    with pytest.raises(ValueError, match="104 free cells"):
        field_figure(ROOMS, masses[:, :-1], [0])
    with pytest.raises(ValueError, match="between 0 and 3, got \\[4\\]"):
        field_figure(ROOMS, masses, [4])
    with pytest.raises(ValueError, match="a title for each of 1 steps"):
        field_figure(ROOMS, masses, [0], titles=[])
    with pytest.raises(ValueError, match="share their steps"):
        field_figure(ROOMS, [NamedFlow("a", masses), NamedFlow("b", masses[1:])], [0])
    with pytest.raises(ValueError, match="at least one flow"):
        field_figure(ROOMS, [], [0])
    with pytest.raises(ValueError, match="into each NamedFlow"):
        field_figure(ROOMS, [NamedFlow("a", masses)], [0], arrows=some_arrows(ROOMS))
    with pytest.raises(ValueError, match="2 dimensions only"):
        drawn(LINE, some_masses(LINE)[0], arrows=np.ones((LINE.n_cells, 2)))


def test_curves_have_labels_a_legend_and_reference_lines() -> None:
    figure = curve_figure(
        {"random": np.array([0.0, 1.0, 1.5]), "planned": np.array([0.0, 2.0, 3.0])},
        x_label="step h",
        y_label="entropy",
        reference={"maximum": 4.0},
    )

    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step h", "entropy")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "random",
        "planned",
        "maximum",
    ]
    reference = axes.lines[-1]
    assert reference.get_linestyle() == "--"
    np.testing.assert_array_equal(reference.get_ydata(), [4.0, 4.0])
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [0, 1, 2])


def test_no_curves_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one curve"):
        curve_figure({}, x_label="x", y_label="y")


@pytest.mark.parametrize("grid", [ROOMS, LINE], ids=["plane", "line"])
def test_an_mp4_is_written(tmp_path: Path, grid: Grid) -> None:
    pytest.importorskip("imageio_ffmpeg")
    seen: list[tuple[int, int]] = []
    flows = [NamedFlow("one", some_masses(grid)), NamedFlow("two", some_masses(grid))]
    path = animate_flow(
        tmp_path / "flow.mp4",
        grid,
        flows,
        progress=lambda done, total: seen.append((done, total)),
    )

    assert path == tmp_path / "flow.mp4"
    data = path.read_bytes()
    assert data[4:8] == b"ftyp"
    # The index before the data, so that browsers start at once.
    assert 0 < data.index(b"moov") < data.index(b"mdat")
    assert seen == [(done, STEPS + 1) for done in range(1, STEPS + 2)]


def test_a_figure_of_odd_size_makes_an_mp4_with_all_its_frames(tmp_path: Path) -> None:
    reader = pytest.importorskip("imageio_ffmpeg")
    tower = Grid.box(0.0, (1.0, 1.337), (3, 4))
    path = animate_flow(str(tmp_path / "flow.mp4"), tower, some_masses(tower))

    frames, seconds = reader.count_frames_and_secs(str(path))
    assert frames == STEPS + 1
    assert seconds == pytest.approx((STEPS + 1) / 3, abs=0.01)


def test_without_ffmpeg_a_gif_is_written_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    path = animate_flow(tmp_path / "flow.mp4", ROOMS, some_masses(ROOMS), arrows=some_arrows(ROOMS))

    assert path == tmp_path / "flow.gif"
    assert not (tmp_path / "flow.mp4").exists()
    with Image.open(path) as film:
        assert film.format == "GIF"
        assert film.n_frames == STEPS + 1
        assert film.info["duration"] == pytest.approx(333, abs=10)


@pytest.mark.parametrize("name", ["flow.avi", "flow"])
def test_an_unknown_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"\.mp4 or \.gif"):
        animate_flow(tmp_path / name, ROOMS, some_masses(ROOMS))


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        animate_flow(tmp_path / "nowhere" / "flow.mp4", ROOMS, some_masses(ROOMS))


def test_what_ffmpeg_complains_about_is_passed_on(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    (tmp_path / "flow.mp4").mkdir()

    with pytest.raises(OSError, match=r"(?i)is a directory"):
        animate_flow(tmp_path / "flow.mp4", LINE, some_masses(LINE))
