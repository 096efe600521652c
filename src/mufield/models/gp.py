"""Gaussian processes (App. "Gaussian Processes"): settings and fit."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Key
from ..errors import UserError
from ..policies.encoders import AbstractEncoder, Unseen
from ..space.grid import per_axis
from .base import AbstractModelFamily
from .data import PaddedTransitions, Transitions
from .factor import LOST_INFORMATION, ROUNDING, ExactFactor, InducingFactor, Rows
from .features import FeatureMap
from .hyperparameters import Hyperparameters, Limits, most_likely
from .kernels import AbstractKernel
from .posterior import ExactPosterior, Frame, InducingPosterior
from .priors import additive_kernel, joint_kernel, steered_kernel
from .units import Units, known_noise

LEAST_NOISE = 1e-4
"""Least lambda of scaled targets: below it single precision could not tell data apart."""

ROUNDINGS = 100.0
"""Inducing points of data without noise must differ from the others by so many roundings."""

PRIORS: dict[str, Callable[[FeatureMap], AbstractKernel]] = {
    "smooth": joint_kernel,
    "steered": steered_kernel,
    "additive": additive_kernel,
}

Factor = ExactFactor | InducingFactor


class TheoryBeta(eqx.Module):
    r"""The paper's scale of the confidence band (corollary ConfidenceInterval).

    $$\beta = B_f + \frac{\sigma}{\sqrt{\lambda}} \sqrt{2 (\log(1/\delta) + I)}$$

    with the information gain $I$ of the data so far, which the paper bounds by the greatest
    possible one.

    Attributes:
        norm_bound: B_f, bound of the scaled displacement's norm in the kernel's space.
        delta: Probability that the band fails.
    """

    norm_bound: float = eqx.field(static=True, default=1.0)
    delta: float = eqx.field(static=True, default=0.1)

    def __check_init__(self) -> None:
        if not (self.norm_bound >= 0 and 0 < self.delta < 1):
            raise UserError(
                "norm_bound must be 0 or more and delta between 0 and 1, got "
                f"{self.norm_bound} and {self.delta}"
            )

    def __call__(self, ratio: float, information_gain: float) -> float:
        """beta, with ``ratio`` the noise's standard deviation over the root of lambda."""
        inside = math.log(1 / self.delta) + information_gain
        return self.norm_bound + ratio * math.sqrt(2 * inside)


class GaussianProcess(AbstractModelFamily):
    """Independent Gaussian processes for the axes of the displacement, or one for the reward.

    Targets are displacements over the problem's ``max_move``, or rewards from their mean in
    standard deviations, so that they are of the order of one.

    Attributes:
        kernel: The kernel on features; none takes that of ``prior``.
        prior: What is known beforehand: ``"smooth"`` (`joint_kernel`); ``"steered"``
            (`steered_kernel`), moves nearly proportional to the action; ``"additive"``
            (`additive_kernel`), rewards that are nearly sums.
        mu: How the population enters the features.
        noise: ``"known"`` takes the noise's standard deviation from the problem where that says
            it and else learns it; ``"learned"`` fits it; ``"theory"`` sets lambda = p H of
            the scaled targets, as in the paper; a number, or one for each axis, is the standard
            deviation.
        hyperparameters: ``"marginal likelihood"`` fits the kernel, ``"fixed"`` keeps it.
        length_scales: Least and greatest length scale of a fit.
        variances: Least and greatest multiple of the kernel's other parameters.
        exact_points: Most transitions for which the exact posterior is used where inducing
            points would not say the same.
        inducing: Most inducing points; 0 for none, then all fits are exact.
        beta: Scale of the confidence band: a number, a `TheoryBeta`, or ``"empirical"``.
    """

    kernel: AbstractKernel | None = None
    prior: str = eqx.field(static=True, default="smooth")
    mu: AbstractEncoder = eqx.field(static=True, default=Unseen())
    noise: str | float | tuple[float, ...] = eqx.field(static=True, default="known")
    hyperparameters: str = eqx.field(static=True, default="marginal likelihood")
    length_scales: tuple[float, float] = eqx.field(static=True, default=(0.1, 30.0))
    variances: tuple[float, float] = eqx.field(static=True, default=(0.25, 4.0))
    exact_points: int = eqx.field(static=True, default=2000)
    inducing: int = eqx.field(static=True, default=256)
    beta: float | str | TheoryBeta = 3.0

    def __check_init__(self) -> None:
        if self.prior not in PRIORS:
            raise UserError(f"prior must be one of {tuple(PRIORS)}, got {self.prior!r}")
        if isinstance(self.noise, str) and self.noise not in ("known", "learned", "theory"):
            raise UserError(
                "noise must be 'known', 'learned', 'theory' or a standard deviation, got "
                f"{self.noise!r}"
            )
        if not isinstance(self.noise, str) and np.any(np.asarray(self.noise) < 0):
            raise UserError(f"the noise's standard deviation must be 0 or more, got {self.noise}")
        if self.hyperparameters not in ("marginal likelihood", "fixed"):
            raise UserError(
                "hyperparameters must be 'marginal likelihood' or 'fixed', got "
                f"{self.hyperparameters!r}"
            )
        if isinstance(self.beta, str) and self.beta != "empirical":
            raise UserError(
                f"beta must be a number, a TheoryBeta or 'empirical', got {self.beta!r}"
            )
        for name in ("length_scales", "variances"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise UserError(f"{name} must be two positive numbers in order, got {low}, {high}")

    def fit(self, data: Transitions, key: Key) -> ExactPosterior | InducingPosterior:
        """The posterior of the transitions so far."""
        features = FeatureMap(data.problem, self.mu)
        factor, noise_std = self._factor(data, features, key)
        units, dtype = Units.of(data), data.problem.initial.dtype
        frame = Frame(features, units.cast(dtype), jnp.asarray(noise_std, dtype))
        ratio = float(np.max(noise_std / units.scale / np.sqrt(factor.noise)))
        beta = self._beta(data, ratio, factor.information_gain, key)
        if isinstance(factor, ExactFactor):
            model: ExactPosterior | InducingPosterior = ExactPosterior.of(factor, frame, beta)
        else:
            model = InducingPosterior.of(factor, frame, beta)
        _check_finite(model)
        return model

    def factor(self, data: Transitions, key: Key) -> Factor:
        """The factor behind `fit`, to which rows can be added with `extend`."""
        return self._factor(data, FeatureMap(data.problem, self.mu), key)[0]

    def rows(self, data: Transitions) -> Rows:
        """Features and scaled targets of the transitions."""
        return _rows(data, FeatureMap(data.problem, self.mu))

    def _factor(
        self, data: Transitions, features: FeatureMap, key: Key
    ) -> tuple[Factor, Float[np.ndarray, "dim"]]:
        rows, scale = _rows(data, features), np.asarray(Units.of(data).scale)
        noise_std = self._noise_std(data, len(scale))
        scaled = None if noise_std is None else noise_std / scale
        found = self._hyperparameters(features, rows, scaled, key)
        if noise_std is None:
            noise_std = np.sqrt(found.noise) * scale
        if self.noise == "theory":
            every = float(len(scale) * data.problem.horizon)
            found = dataclasses.replace(found, noise=np.full(len(scale), every))
        return self._factorise(found, rows), noise_std

    def _hyperparameters(
        self,
        features: FeatureMap,
        rows: Rows,
        scaled: Float[np.ndarray, "dim"] | None,
        key: Key,
    ) -> Hyperparameters:
        kernel = PRIORS[self.prior](features) if self.kernel is None else self.kernel
        _check_kernel(kernel, features.size)
        kernel = jax.tree.map(lambda leaf: np.asarray(leaf, dtype=float), kernel)
        noise = None if scaled is None else np.maximum(scaled**2, LEAST_NOISE)
        if self.hyperparameters == "fixed" and noise is not None:
            return Hyperparameters(kernel, noise)
        fitted = self.hyperparameters == "marginal likelihood"
        limits = Limits(self.length_scales, self.variances) if fitted else None
        return most_likely(kernel, noise, rows, limits, key)

    def _factorise(self, found: Hyperparameters, rows: Rows) -> Factor:
        """Inducing points where they say what all data say, or where there are too many data."""
        count = len(rows.inputs)
        if self.inducing > 0:
            factor = InducingFactor.of(
                found.kernel, found.noise, rows, self.inducing, distinct=_distinct(found.noise)
            )
            if factor.lost <= LOST_INFORMATION or count > self.exact_points:
                return factor
        elif count > self.exact_points:
            raise UserError(
                f"{count} transitions are more than exact_points = {self.exact_points}; raise it, "
                "or allow inducing points"
            )
        return ExactFactor.of(found.kernel, found.noise, rows)

    def _noise_std(self, data: Transitions, outputs: int) -> Float[np.ndarray, "dim"] | None:
        """The noise's standard deviation on each axis, or none if it must be learned."""
        if not isinstance(self.noise, str):
            return np.asarray(per_axis(self.noise, outputs, float))
        return None if self.noise == "learned" else known_noise(data)

    def _beta(self, data: Transitions, ratio: float, gain: float, key: Key) -> float:
        if isinstance(self.beta, TheoryBeta):
            return self.beta(ratio, gain)
        if isinstance(self.beta, str):
            from .calibration import empirical_beta

            return float(empirical_beta(dataclasses.replace(self, beta=1.0), data, key))
        return float(self.beta)


def _rows(data: Transitions, features: FeatureMap) -> Rows:
    count = len(data)
    inputs = np.asarray(_inputs(features, data.padded()), dtype=float)[:count]
    observed = data.told
    with jax.enable_x64(True):
        targets = np.asarray(Units.of(data).targets(data.problem.grid, data))
    return Rows(inputs, np.where(observed, targets, 0.0), observed)


def _distinct(noise: Float[np.ndarray, "dim"]) -> float:
    """Share of its prior variance that an inducing point must have left, given the others.

    Data without noise are worth ever more points. Those that single precision can hardly tell
    apart would bring more rounding into the mean than the band is wide.
    """
    if np.min(noise) > LEAST_NOISE:
        return ROUNDING
    return max(ROUNDING, ROUNDINGS * float(jnp.finfo(jnp.result_type(float)).eps))


@eqx.filter_jit
def _inputs(features: FeatureMap, data: PaddedTransitions) -> Array:
    return features.rows(data)


def _check_kernel(kernel: AbstractKernel, size: int) -> None:
    point = jax.ShapeDtypeStruct((size,), jnp.result_type(float))
    try:
        shape = jax.eval_shape(kernel, point, point).shape
    except Exception as error:
        raise UserError(
            f"the kernel could not be evaluated for vectors of {size} features, which state, "
            f"action and mu have here; give it one length scale, or {size} of them: {error}"
        ) from error
    if shape != ():
        raise UserError(f"a kernel must return one number for a pair of points, got {shape}")


def _check_finite(model: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(model):
        if not np.isfinite(np.asarray(leaf)).all():
            raise FloatingPointError(
                f"the fit is not finite in {jax.tree_util.keystr(path)}; raise the noise, or give "
                "the kernel longer length scales"
            )
