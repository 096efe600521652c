"""Whether a confidence band is as wide as its model's errors."""

from ..models.base import AbstractModel

COVERAGE_LEVEL = 0.95
"""Level of the intervals whose coverage is reported."""

SIGNIFICANCE = 1e-3
"""Significance level of the tests."""


def too_narrow(inside: int, count: int) -> bool:
    """Whether a coverage is too low to be chance, and low enough to matter.

    Half as many misses again as expected matter: errors are then a tenth wider than the band says.
    """
    from scipy.special import bdtr  # slow to import

    matters = count - inside > 1.5 * (1 - COVERAGE_LEVEL) * count
    return bool(matters and bdtr(inside, count, COVERAGE_LEVEL) < SIGNIFICANCE)


def band_widening(model: AbstractModel) -> float:
    """The factor on the epistemic deviation: a beta of 2 stands for two deviations, for 95%."""
    return max(1.0, float(model.beta) / 2.0)
