"""Pictures of calibration: what is on them, and what is refused."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection, PolyCollection

from mufield.viz.calibration import calibration_figure, slice_figure

LEVELS = np.array([0.1, 0.5, 0.9])
PLACES = np.linspace(-1.0, 1.0, 20)
LABELS = {"x_label": "action", "y_label": "displacement"}


def legend_of(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_coverage_is_drawn_beside_the_diagonal():
    figure = calibration_figure(
        {"ensemble": (LEVELS, LEVELS**2), "GP": (LEVELS, LEVELS)}, title="four rooms"
    )
    (axes,) = figure.axes
    diagonal, ensemble, process = axes.lines
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]
    np.testing.assert_allclose(ensemble.get_xydata(), np.stack([LEVELS, LEVELS**2], axis=1))
    assert ensemble.get_color() != process.get_color()
    assert legend_of(figure) == ["calibrated", "ensemble", "GP"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("expected coverage", "observed coverage")
    assert axes.get_title() == "four rooms"
    # A square, so that the diagonal is one; with room for markers at the corners.
    assert axes.get_aspect() == 1.0
    assert axes.get_xlim() == axes.get_ylim()
    assert axes.get_xlim()[0] < 0 < 1 < axes.get_xlim()[1]


@pytest.mark.parametrize(
    ("curves", "said"),
    [
        ({}, "at least one curve"),
        ({"a": (LEVELS, LEVELS[:2])}, r"'a' must be two vectors of one length.*\(3,\) and \(2,\)"),
        ({"a": (LEVELS, 100 * LEVELS)}, "'a' runs from 0.1 to 90; divide percentages by 100"),
    ],
)
def test_curves_that_are_no_coverages_are_refused(curves, said):
    with pytest.raises(ValueError, match=said):
        calibration_figure(curves)


def test_a_slice_shows_mean_band_truth_and_moves_of_each_model():
    models = {
        "ensemble": (PLACES, np.full(20, 0.5)),
        "GP": (0.5 * PLACES, np.full(20, 0.2)),
    }
    seen = (np.array([0.0, 0.3, 0.5]), np.array([0.1, 0.2, 0.4]))
    figure = slice_figure(PLACES, PLACES**2, models, points=seen, title="a slice", **LABELS)

    assert len(figure.axes) == 2
    assert figure.get_suptitle() == "a slice"
    for axes, (name, (mean, half)) in zip(figure.axes, models.items(), strict=True):
        assert axes.get_title() == name
        assert axes.get_xlabel() == "action"
        drawn, truth = axes.lines
        np.testing.assert_allclose(drawn.get_ydata(), mean)
        np.testing.assert_allclose(truth.get_ydata(), PLACES**2)
        (band,) = (c for c in axes.collections if isinstance(c, PolyCollection))
        heights = band.get_paths()[0].vertices[:, 1]
        assert heights.min() == pytest.approx((mean - half).min())
        assert heights.max() == pytest.approx((mean + half).max())
        (dots,) = (c for c in axes.collections if isinstance(c, PathCollection))
        np.testing.assert_allclose(dots.get_offsets(), np.stack(seen, axis=1))
    assert sorted(legend_of(figure)) == ["mean and band", "moves seen nearby", "truth"]
    first, second = figure.axes
    assert first.get_ylabel() == "displacement"
    assert first.get_ylim() == second.get_ylim()


def test_a_slice_needs_no_moves():
    figure = slice_figure(PLACES, PLACES, {"GP": (PLACES, np.ones(20))}, **LABELS)
    assert sorted(legend_of(figure)) == ["mean and band", "truth"]


@pytest.mark.parametrize(
    ("truth", "models", "said"),
    [
        (PLACES, {}, "at least one model"),
        (PLACES[:5], {"GP": (PLACES, PLACES**2)}, r"truth must be a vector of 20 values"),
        (PLACES, {"GP": (PLACES, PLACES[:3])}, r"the band of 'GP' must be a vector of 20 values"),
        (PLACES, {"GP": (PLACES, PLACES)}, "the band of 'GP' must not be negative, got -1"),
    ],
)
def test_slices_that_do_not_fit_together_are_refused(truth, models, said):
    with pytest.raises(ValueError, match=said):
        slice_figure(PLACES, truth, models, **LABELS)
