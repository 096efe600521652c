"""Gaussian processes (App. "Gaussian Processes"): settings and fit."""

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._arrays import Key, device_array
from ..errors import UserError, explained, is_a, number
from ..policies import encoders
from ..policies.encoders import AbstractEncoder, LogHere, Unseen, check_encoder, joined
from ..problem import Problem
from .base import AbstractModelFamily
from .data import Transitions
from .features import FeatureMap, Rows, Units, with_stopped_moves
from .kernels import AbstractKernel, AbstractPrior, Additive, Structured
from .likelihood import LEAST_NOISE, Limits, Search, most_likely
from .posterior import ROUNDING, Factor, Posterior, Process


class TheoryBeta(eqx.Module):
    r"""The paper's scale of the confidence band (corollary ConfidenceInterval).

    $$\beta = B_f + \frac{\sigma}{\sqrt{\lambda}} \sqrt{2 (\log(1/\delta) + I)}$$

    with the information gain $I$ of the data so far, which the paper bounds by the greatest
    possible one.

    Attributes:
        norm_bound: B_f, a bound of the scaled displacement's norm in the kernel's space.
        delta: Probability with which the band may fail.
    """

    norm_bound: float = eqx.field(static=True, default=1.0)
    delta: float = eqx.field(static=True, default=0.1)

    def __check_init__(self) -> None:
        number(self.norm_bound, "norm_bound", 0.0)
        number(self.delta, "delta", 1e-300, 1.0)

    def __call__(self, ratio: float, information_gain: float) -> float:
        """Beta; ``ratio`` is the noise's standard deviation over the root of lambda."""
        inside = math.log(1 / self.delta) + information_gain
        return self.norm_bound + ratio * math.sqrt(2 * inside)


class GaussianProcess(AbstractModelFamily):
    """Independent Gaussian processes for the axes of the displacement, or one for the reward.

    Targets are scaled to the order of one (`Units`).

    Attributes:
        prior: What is known beforehand: `Structured`, `ControlAffine`, `Additive`, or a kernel on
            features.
        mu: How the features show the population and the step. None: as the data need it, if the
            prior can tell. They may need the mass of the own cell (`Here`), which is seen from the
            first data on until they show that it does not matter; `Around`, `Centre` and `Clock`
            are seen once the data ask for them. With other priors, None is `Unseen`.
        search: What evidence decides that.
        learn_noise: Whether the noise is learned even if the problem says what it is.
        fit_kernel: Whether the kernel's parameters are fitted, by the marginal likelihood.
        length_scales: Least and greatest length scale of a fit.
        variances: Least and greatest factor by which a fit may change other parameters.
        inducing: Most inducing points; 0 for an exact posterior, whose cost grows with the cube of
            the number of transitions.
        beta: Scale of the confidence band: a number or `TheoryBeta`. The theory's scale grows with
            the information; deviations that are fitted to the data already do what that growth is
            for (`benchmarks/motions.py` shows how often the band holds).
    """

    prior: AbstractPrior | AbstractKernel = Structured()
    mu: AbstractEncoder | None = eqx.field(static=True, default=None)
    learn_noise: bool = eqx.field(static=True, default=False)
    fit_kernel: bool = eqx.field(static=True, default=True)
    search: Search = eqx.field(static=True, default=Search())
    length_scales: tuple[float, float] = eqx.field(static=True, default=(0.1, 30.0))
    variances: tuple[float, float] = eqx.field(static=True, default=(1e-3, 20.0))
    inducing: int = eqx.field(static=True, default=256)
    beta: float | TheoryBeta = 4.0

    def __check_init__(self) -> None:
        example = "for example Structured(); words are for configurations"
        is_a(self.prior, (AbstractPrior, AbstractKernel), "prior", example)
        if not isinstance(self.beta, TheoryBeta):
            number(self.beta, "beta", 0.0)
        if self.mu is not None:
            check_encoder(self.mu)
        for name in ("length_scales", "variances"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise UserError(f"{name} must be two positive numbers in order, got {low}, {high}")

    def check(self, problem: Problem) -> None:
        """Raises on nodes, which have no coordinates."""
        encoders.position_size(problem.grid)

    def fit(self, data: Transitions, key: Key) -> Posterior:
        """The posterior given the transitions so far."""
        features, std, factor, evidence = self.solve(data, key)
        dtype, units, beta = data.problem.initial.dtype, Units.of(data), self.beta
        if isinstance(beta, TheoryBeta):
            variance = np.asarray(std / units.scale) ** 2
            ratio = math.sqrt(np.max(variance / np.maximum(variance, LEAST_NOISE)))
            beta = beta(ratio, factor.information_gain)
        return Posterior(
            beta=device_array(beta, dtype),
            features=features,
            units=units.cast(dtype),
            noise_std=device_array(std, dtype),
            process=Process.of(factor, dtype),
            evidence=device_array(evidence, dtype),
            needed=self.search.needed,
        )

    def for_rewards(self) -> "GaussianProcess":
        """With an additive prior that sees the logarithm of mu, which suits most rewards.

        Few inducing points: a reward that depends on mu is evaluated anew for every cell, move and
        step of every sweep. Rewards are scaled by their own deviation, so that the kernel's
        parameters stay near one.
        """
        inducing = min(self.inducing, 64) or 64
        plain = replace(self, prior=Additive(), mu=LogHere(), learn_noise=False)
        return replace(plain, variances=(0.25, 4.0), inducing=inducing)

    def _inputs(self, problem: Problem) -> FeatureMap:
        """The features with all that may be seen."""
        mu = encoders.Here(), encoders.Around(), encoders.Centre(), encoders.Clock(problem.horizon)
        every = FeatureMap(problem, encoders.Joined(mu))
        if self.mu is None and isinstance(self.prior, AbstractPrior) and self.prior.parts(every):
            return every
        return FeatureMap(problem, Unseen() if self.mu is None else self.mu)

    def solve(self, data: Transitions, key: Key) -> "Solved":
        """Kernel, noise and inputs by the evidence, and the posterior's linear algebra."""
        features = self._inputs(data.problem)
        kernel = self.prior(features) if isinstance(self.prior, AbstractPrior) else self.prior
        _check_kernel(kernel, features.size)
        rows, scale = Rows.of(features, data), np.asarray(Units.of(data).scale)
        std = None if self.learn_noise else data.noise_std
        noise = None if std is None else np.maximum((std / scale) ** 2, LEAST_NOISE)
        limits = Limits(self.length_scales, self.variances) if self.fit_kernel else None
        settings, as_double = (noise, rows, limits, key), partial(np.asarray, dtype=float)
        if self.mu is None and features.inputs:
            assert isinstance(self.prior, AbstractPrior)
            parts = self.prior.parts(features)
            assert parts is not None
            found = self.search(jax.tree.map(as_double, parts), *settings)
            axes = [features.inputs[i - 1] for i in found.inputs]
            columns = [*range(features.own_size), *(axis for each in axes for axis in each)]
            rows = rows._replace(inputs=rows.inputs[:, columns])
            mu = joined([features.mu.inputs[i - 1] for i in found.inputs])
            features = FeatureMap(data.problem, mu)
            # The fitted parameters, with the indices that the features have now.
            structure = jax.tree.structure(self.prior(features))
            kernel = jax.tree.unflatten(structure, jax.tree.leaves(found.kernel))
        else:
            found = most_likely(jax.tree.map(as_double, kernel), *settings)
            kernel = found.kernel
        noise = found.noise
        if self.inducing > 0:
            distinct = ROUNDING
            if np.min(noise) <= LEAST_NOISE:
                # With little noise, points would be added that single precision can hardly tell
                # apart; they bring larger rounding errors into the mean than the band is wide.
                distinct = max(ROUNDING, 100.0 * float(jnp.finfo(jnp.result_type(float)).eps))
            factor = Factor.of(kernel, noise, rows, self.inducing, distinct=distinct)
        else:
            factor = Factor.of(kernel, noise, rows, len(data), tolerance=0.0)
        rows = with_stopped_moves(rows, factor.phi, noise)
        std = np.sqrt(noise) * scale if std is None else std
        return Solved(features, std, replace(factor, rows=rows), found.evidence)


class Solved(NamedTuple):
    """What a fit consists of.

    Attributes:
        std: Standard deviation of the noise, unscaled.
        evidence: Nats that each input of mu brings; empty if the inputs were given.
    """

    features: FeatureMap
    std: Float[np.ndarray, "outputs"]
    factor: Factor
    evidence: tuple[float, ...]


def _check_kernel(kernel: AbstractKernel, size: int) -> None:
    point = jax.ShapeDtypeStruct((size,), jnp.result_type(float))
    what = (
        f"the kernel could not be evaluated for vectors of {size} features, which state, action "
        f"and mu have here; give it one length scale, or {size} of them"
    )
    with explained(what, "(x, y)"):
        shape = jax.eval_shape(kernel, point, point).shape
    if shape != ():
        raise UserError(f"a kernel must return one number for a pair of points, got {shape}")
