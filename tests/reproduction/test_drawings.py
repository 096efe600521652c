"""Every figure says what it shows."""

import pytest
from tiny import TINY, pretend

from reproduction.items import ITEMS
from reproduction.results import Results

pytestmark = pytest.mark.slow

FIGURES = [item for item in ITEMS if "film" not in item.name and item.name != "numbers"]
FILMS = [item for item in ITEMS if "film" in item.name]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    results = Results(tmp_path_factory.mktemp("results"), TINY)
    pretend(results, ITEMS)
    return results


@pytest.mark.parametrize("item", FIGURES, ids=lambda item: item.name)
def test_figures_have_titles_labels_and_say_what_they_were_made_from(results, item, monkeypatch):
    figures = {}

    def keep(figure, name):  # files take longer than figures, and are tested elsewhere
        path = results.out / "figures" / f"{name}.png"
        path.touch()
        figures[name] = figure
        return (path,)

    monkeypatch.setattr(results, "save", keep)
    drawn = results.draw(item)

    assert figures
    assert [path.stem for path in drawn.files] == list(figures)
    for figure in figures.values():
        assert "(tiny)" in figure.get_suptitle()
        panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
        # Panels that share their axes are named at the outer ones.
        for axes in panels:
            place = axes.get_subplotspec()
            assert axes.get_xlabel() or not place.is_last_row()
            assert axes.get_ylabel() or not place.is_first_col()
        bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
        assert all(axes.get_ylabel() == "mass of a cell" for axes in bars)
        legends = figure.legends
        assert bars or all(text.get_text() for text in legends[0].get_texts())
    assert results.item_state(item) == "done"


@pytest.mark.nightly
def test_nothing_of_a_legend_is_cut_off(results, monkeypatch):
    figures = []
    monkeypatch.setattr(results, "save", lambda figure, name: figures.append(figure) or ())
    for item in FIGURES:
        if item.name in ("learning-curve", "convergence", "qlearning", "swarm-rewards"):
            item.draw(results)
    for figure in figures:
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1


@pytest.mark.nightly
@pytest.mark.parametrize("item", FILMS, ids=lambda item: item.name)
def test_films_have_the_papers_names(results, item):
    drawn = results.draw(item)
    names = {path.stem for path in drawn.files}
    assert names in (
        {"known_dynamics_animation"},
        {"m3_ucrl_animation_best", "m3_ucrl_animation_episode_1"},
    )
    assert all(path.stat().st_size for path in drawn.files)
    assert results.item_state(item) == "done"
