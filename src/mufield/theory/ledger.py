"""The information that a run gathered, episode by episode, and what bounds it and follows of it."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from .bounds import Log
from .complexity import log_stale_factor, stale_bound
from .data_information import capacities, gathered_by_episode
from .evidence import RunData
from .information import most_information
from .prior import Prior

PerEpisode = Float[np.ndarray, "episodes"]


@dataclass(frozen=True, eq=False)
class Ledger:
    r"""Information in nats after each episode, summed over the axes.

    Attributes:
        gathered: Of the run's data.
        least: Of as many observations, chosen greedily: a lower bound of $\gamma$.
        most: Upper bound of $\gamma$ among the candidates.
        everywhere: Upper bound of $\gamma$ over the whole space.
        prior_most: What observations without anything in common would give.
        ratio: Standard deviation of the noise over the root of lambda.
        own: Whether the process is the run's own model.
        stale: $I_t$ of the data under this one kernel, in squared units of the space.
        complexity: Bounds of $I_t$ by the data's information, in the same units.
        prior_complexity: What the prior variance alone says of $I_t$.
        factor: Logarithm of C with $I_T \le C \gamma$, in the same units.
    """

    gathered: PerEpisode
    least: PerEpisode
    most: PerEpisode
    everywhere: PerEpisode
    prior_most: PerEpisode
    ratio: float
    own: bool
    stale: PerEpisode
    complexity: PerEpisode | None
    prior_complexity: PerEpisode
    factor: Log | None


def ledger_of(run: RunData, prior: Prior) -> Ledger:
    """Adds everything up."""
    told = gathered_by_episode(run, prior)
    by_axis = told.information
    found = capacities(run, prior, run.ends[-1])
    points = max(np.diff(run.ends, prepend=0).tolist())
    scales = np.asarray(run.setup.problem.max_move)
    complexity, factor = None, None
    if math.isfinite(prior.variance):
        axes = list(zip(scales.tolist(), prior.noise.tolist(), by_axis, strict=True))
        bounds = [s**2 * stale_bound(n, prior.variance, points, own) for s, n, own in axes]
        complexity = np.sum(bounds, axis=0)
        factor = max(
            2 * math.log(s) + log_stale_factor(n, prior.variance, points) for s, n, _ in axes
        )
    noises = prior.noise.tolist()
    prior_most = [
        sum(most_information(n, prior.variance, each) for each in noises) for n in run.ends
    ]
    return Ledger(
        gathered=np.cumsum(by_axis.sum(axis=0)),
        least=np.asarray([found.lower(n) for n in run.ends]),
        most=np.asarray([found.upper(n) for n in run.ends]),
        everywhere=np.asarray([found.everywhere(n) for n in run.ends]),
        prior_most=np.asarray(prior_most),
        ratio=prior.ratio,
        own=prior.own,
        stale=np.cumsum(scales**2 @ told.stale),
        complexity=complexity,
        prior_complexity=np.sum(scales**2) * prior.variance * np.asarray(run.ends),
        factor=factor,
    )
