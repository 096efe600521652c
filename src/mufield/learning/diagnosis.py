"""Why a confidence band was too narrow, and which setting to change.

Four causes look alike in the coverage: the motion depends on mu, or on the step, which the model
does not see; the noise was given too small; the model is too sure of itself. The errors tell them
apart.
"""

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ..models.base import AbstractModel
from ..models.calibration import HeldOut, predict_rows
from ..models.data import Transitions
from .coverage import COVERAGE_LEVEL, SIGNIFICANCE, band_widening, too_narrow

EXPLAINED = 0.05
"""Share of the errors that a cause must explain to be one."""

FEWEST = 30
"""Errors that are needed to say more than that they are too wide."""


def diagnosis(model: AbstractModel, fresh: Transitions, known: Transitions) -> str:
    """What to change, in words, if the band was too narrow for ``fresh`` moves or rewards.

    ``known`` are all data, the fresh ones included: what the model could have learned but did not
    shows its limits better than what it had not seen yet.
    """
    stride = -(-len(known) // 4000)  # more rows would take longer and tell no more
    some = known.rows(np.arange(0, len(known), stride))
    found = predict_rows(model, some)
    causes = _best([_causes(some, found, axis) for axis in range(found.error.shape[1])])
    cells, count = known.problem.grid.n_cells, len(some)
    even = {"mass": np.full((1, cells), 1.0 / cells), "moment": np.zeros(count, dtype=int)}
    if causes.mu >= max(EXPLAINED, causes.step) and not _sees(model, some, found, even):
        return (
            f"the errors follow the crowd (the mass in the agent's cell explains {causes.mu:.0%} "
            "of them), which the model does not see; set the model's mu=Here() (in a "
            "configuration, mu=local)"
        )
    if causes.step >= EXPLAINED and not _sees(model, some, found, {"step": 0 * some.step}):
        return (
            f"the errors follow the clock (the step explains {causes.step:.0%} of them), which the "
            "model does not see; set the model's mu=Seen(lambda state, mu: mu.step / "
            f"{known.problem.horizon})"
        )
    held, widening = predict_rows(model, fresh), band_widening(model)
    noise = _noise_needed(held, widening)
    if noise is not None and causes.place < 2 * EXPLAINED:
        given = ", ".join(f"{each:.3g}" for each in held.aleatoric.mean(axis=0))
        needed = ", ".join(f"{each:.3g}" for each in noise)
        setting = "Problem(reward_noise=...)" if known.of_reward else "Problem(noise=...)"
        return (
            f"the errors are as wide where the model is sure: the noise is {given}, but {needed} "
            f"would fit; correct {setting}, or set the model's noise=LearnedNoise() (in a "
            "configuration, noise=learned)"
        )
    factors = np.geomspace(1.0, 10.0, 93) * widening
    wide = [c for c in factors if _share(held, held.quantiles(float(c))) >= COVERAGE_LEVEL]
    if not wide:
        return (
            "a band ten times as wide would not hold them: the model cannot follow the motion; "
            "choose another, such as GaussianProcess() with all defaults"
        )
    return (
        f"set the model's beta={2 * float(wide[0]):.2g}, which would have held them, or "
        "beta=EmpiricalBeta() (in a configuration, beta=empirical)"
    )


class _Causes(NamedTuple):
    """Shares of the errors that place and action explain, and that crowd or step do besides."""

    place: float
    mu: float
    step: float


def _best(each: list[_Causes]) -> _Causes:
    return _Causes(*(max(shares) for shares in zip(*each, strict=True)))


def _causes(data: Transitions, found: HeldOut, axis: int) -> _Causes:
    """Explains the errors on one axis; shares that may be chance are zero."""
    rows = np.flatnonzero(found.observed[:, axis])
    error = found.error[rows, axis]
    problem, count = data.problem, len(rows)
    low, high = (np.asarray(bound) for bound in (problem.actions.lower, problem.actions.upper))
    actions = 2 * (data.actions[rows] - low) / np.where(high > low, high - low, 1.0) - 1
    steers = np.concatenate([np.ones((count, 1)), actions], axis=1)
    place = _waves(data, rows, (count // 8) // steers.shape[1])
    own = (place[:, :, None] * steers[:, None]).reshape(count, -1)
    grid = problem.grid
    here = data.mass[data.moment[rows], grid.index_of(data.states[rows])] * grid.n_cells
    crowds = np.log1p(here)
    crowds = (crowds - crowds.mean()) / max(float(crowds.std()), 1e-9)
    half_waves = 2  # over an episode
    when = np.cos(np.pi * np.arange(1, half_waves + 1) * (data.step[rows, None] / problem.horizon))
    clock = (when[:, :, None] * steers[:, None]).reshape(count, -1)
    total = float(np.sum(error**2))
    if count < max(FEWEST, 2 * (own.shape[1] + clock.shape[1])) or total == 0:
        return _Causes(0.0, 0.0, 0.0)
    left = _residual(own, error)

    def besides(inputs: np.ndarray) -> float:
        least, used = _residual(np.concatenate([own, inputs], axis=1), error), inputs.shape[1]
        return _share_explained(left, least, used, count - own.shape[1] - used)

    place_explains = _share_explained(total, left, own.shape[1], count - own.shape[1])
    hours = besides(clock) if len(np.unique(data.step[rows])) > half_waves else 0.0
    return _Causes(place_explains, besides(crowds[:, None] * steers), hours)


def _waves(data: Transitions, rows: np.ndarray, most: int) -> Float[np.ndarray, "rows waves"]:
    """Slow waves over the space, as many as the data allow, at least a constant."""
    grid = data.problem.grid
    share = (data.states[rows] - np.asarray(grid.lower)) / np.asarray(grid.extent)
    each = next(n for n in (4, 3, 2, 1) if n**grid.dim <= max(most, 1))
    # Half waves serve both kinds of axes well enough for an explanation.
    axes = [np.cos(np.pi * share[:, i, None] * np.arange(each)) for i in range(grid.dim)]
    picks = itertools.product(range(each), repeat=grid.dim)
    found = [np.prod([axes[i][:, k] for i, k in enumerate(pick)], axis=0) for pick in picks]
    return np.stack(found, axis=-1)


def _residual(inputs: np.ndarray, error: np.ndarray) -> float:
    solution = np.linalg.lstsq(inputs, error, rcond=None)[0]
    return float(np.sum((error - inputs @ solution) ** 2))


def _share_explained(before: float, after: float, used: int, free: int) -> float:
    """The share that further inputs explain, beyond what as many random ones would (F test)."""
    from scipy.special import fdtrc  # slow to import

    if before <= 0 or free < 1:
        return 0.0
    ratio = ((before - after) / used) / max(after / free, 1e-300)
    if fdtrc(used, free, ratio) > SIGNIFICANCE:
        return 0.0
    return max(0.0, (before - after - used * after / free) / before)


def _sees(model: AbstractModel, data: Transitions, found: HeldOut, other: dict[str, Any]) -> bool:
    """Whether the model predicts anything else where the data have other fields."""
    changed = predict_rows(model, replace(data, **other))
    size = 1e-6 + np.abs(found.error).max()
    return bool(np.abs(changed.error - found.error).max() > 1e-5 * size)


def _noise_needed(held: HeldOut, widening: float) -> Float[np.ndarray, "outputs"] | None:
    """The noise that fits, if the band is too narrow also where the model is sure.

    It is sure where its band is narrower than half the noise.
    """
    sure: Bool[np.ndarray, "rows outputs"] = held.observed & (
        widening * held.epistemic <= 0.5 * held.aleatoric
    )
    counts = sure.sum(axis=0)
    inside = (held.quantiles(widening) <= COVERAGE_LEVEL) & sure
    if counts.sum() < FEWEST or not too_narrow(int(inside.sum()), int(counts.sum())):
        return None
    excess = np.where(sure, held.error**2 - held.epistemic**2, 0.0).sum(axis=0)
    found = np.sqrt(np.maximum(excess / np.maximum(counts, 1), 0.0))
    return np.asarray(np.maximum(found, held.aleatoric.mean(axis=0)))


def _share(held: HeldOut, quantiles: np.ndarray) -> float:
    return float(((quantiles <= COVERAGE_LEVEL) & held.observed).sum() / held.observed.sum())
