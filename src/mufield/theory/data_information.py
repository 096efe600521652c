"""The information of a run's data under a kernel, and the most that any data could have had."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..models.data import Transitions
from ..models.factor import InducingFactor, Rows
from ..models.kernels import AbstractKernel, covariances, variances
from ..policies.encoders import Unseen
from ..problem import Box, Problem
from .evidence import RunData
from .information import (
    Capacity,
    cover_allowance,
    gains,
    greedy,
    most_information,
    stale_variances,
)
from .prior import Prior

MOST_EXACT = 3000
"""Observations of which the information is computed exactly; of more through inducing points."""

MOST_CANDIDATES = 400
"""Points among which observations are chosen for the greatest information."""

ACTIONS = {1: 9, 2: 5, 3: 3}
"""Actions on each axis among the candidates, by the number of axes."""


class Gathered(NamedTuple):
    """What each episode brought, for each axis.

    Attributes:
        information: What its data add to those before.
        stale: Sum of the variances of its points before any of its data, in scaled units.
    """

    information: Float[np.ndarray, "dim episodes"]
    stale: Float[np.ndarray, "dim episodes"]


def gathered_by_episode(run: RunData, prior: Prior) -> Gathered:
    """Goes through the data of a run under one kernel; what a wall censored does not count."""
    rows = prior.family.rows(run.data)
    information, stale = [], []
    for axis, noise in enumerate(prior.noise.tolist()):
        seen = rows.observed[:, axis]
        ends = np.cumsum(seen)[np.asarray(run.ends) - 1]
        inputs = rows.inputs[seen]
        if len(inputs) <= MOST_EXACT:
            covariance = covariances(prior.kernel, inputs, inputs)
            each = gains(covariance, noise), stale_variances(covariance, noise, ends)
            sums = [np.concatenate([[0.0], np.cumsum(values)])[ends] for values in each]
            parts = [np.diff(total, prepend=0.0) for total in sums]
        else:
            parts = list(_through_points(prior.kernel, noise, inputs, ends))
        information.append(parts[0])
        stale.append(parts[1])
    return Gathered(np.asarray(information), np.asarray(stale))


@dataclass(frozen=True, eq=False)
class Capacities:
    """The greatest information of any data, for each axis with the same number of observations.

    Attributes:
        by_axis: What greedy choice found among the candidates.
        noise: Lambda of each axis.
        variance: Greatest prior variance.
        radius: Farthest, in the kernel metric, that a point is from a candidate; None if unknown.
    """

    by_axis: tuple[Capacity, ...]
    noise: tuple[float, ...]
    variance: float
    radius: float | None

    def lower(self, count: int) -> float:
        """Information that n observations on each axis can have: a lower bound of gamma."""
        return sum(replace(each, count=count).lower for each in self.by_axis)

    def upper(self, count: int) -> float:
        """The most that n observations on each axis of the candidates can have."""
        return sum(replace(each, count=count).upper for each in self.by_axis)

    def everywhere(self, count: int) -> float:
        """The most that n observations on each axis can have anywhere in the space."""
        total = 0.0
        for each, noise in zip(self.by_axis, self.noise, strict=True):
            most = most_information(count, self.variance, noise)
            if self.radius is not None:
                allowance = cover_allowance(count, self.radius, self.variance, noise)
                most = min(most, replace(each, count=count).upper + allowance)
            total += most
        return total


def capacities(run: RunData, prior: Prior, count: int) -> Capacities:
    """Chooses up to ``count`` observations greedily among points spread over the space."""
    inputs, radius = _candidates(run, prior)
    table = covariances(prior.kernel, inputs, inputs)
    by_noise = {noise: greedy(table, noise, count) for noise in set(prior.noise.tolist())}
    return Capacities(
        by_axis=tuple(by_noise[noise] for noise in prior.noise.tolist()),
        noise=tuple(prior.noise.tolist()),
        variance=prior.variance,
        radius=radius,
    )


def _through_points(
    kernel: AbstractKernel,
    noise: float,
    inputs: Float[np.ndarray, "rows features"],
    ends: Int[np.ndarray, "episodes"],
) -> tuple[Float[np.ndarray, "episodes"], Float[np.ndarray, "episodes"]]:
    """What each episode adds and its stale variances, through inducing points of all rows."""

    def some(start: int, end: int) -> Rows:
        part = inputs[start:end]
        return Rows(part, np.zeros((len(part), 1)), np.ones((len(part), 1), dtype=bool))

    full = InducingFactor.of(kernel, np.asarray([noise]), some(0, len(inputs)), 256)
    count = len(full.points)
    factor = replace(full, precision=np.eye(count)[None], pulled=np.zeros((1, count)))
    information, stale, before = [], [], 0
    for end in ends.tolist():
        new = some(before, end)
        known = factor.whitened()
        between = covariances(kernel, known.points, new.inputs)
        left = variances(kernel, new.inputs) - np.sum((known.whiten[0] @ between) ** 2, axis=0)
        stale.append(np.sum(np.maximum(left, 0.0)))
        after = factor.extend(new)
        information.append(after.information_gain - factor.information_gain)
        factor, before = after, end
    return np.asarray(information), np.asarray(stale)


def _candidates(
    run: RunData, prior: Prior
) -> tuple[Float[np.ndarray, "rows features"], float | None]:
    """Features of points spread over the space, and how far others are from them."""
    problem = run.setup.problem
    grid = problem.grid
    tried = _actions(problem)
    stride = max(1, -(-grid.n_cells * len(tried) // MOST_CANDIDATES))
    cells = grid.centres[::stride]
    states = np.repeat(cells, len(tried), axis=0)
    moments = np.resize(np.arange(len(run.data.mass)), len(states))
    spread = Transitions(
        problem=problem,
        states=states,
        actions=np.tile(tried, (len(cells), 1)),
        next_states=states,
        observed=np.ones(states.shape, dtype=bool),
        mass=run.data.mass,
        moment=moments,
    )
    inputs = prior.family.rows(spread).inputs
    if prior.slopes is None or prior.family.mu != Unseen():
        return inputs, None
    # A point is within half a diagonal of its cell's centre, and that is near one that was kept.
    far = 0.5 * float(np.linalg.norm(grid.cell_size))
    far += _farthest(grid.centres, cells) if stride > 1 else 0.0
    return inputs, prior.slopes["state"] * far + prior.slopes["action"] * _half_gap(problem)


def _actions(problem: Problem) -> Float[np.ndarray, "moves action_dim"]:
    actions = problem.actions
    points = actions.points(ACTIONS.get(actions.dim, 2), border=False)
    return np.asarray(points, dtype=float)


def _half_gap(problem: Problem) -> float:
    """Farthest that an action of the box is from a candidate's."""
    actions = problem.actions
    if not isinstance(actions, Box):
        return 0.0
    width = np.asarray(actions.upper) - np.asarray(actions.lower)
    return float(np.linalg.norm(width / ACTIONS.get(actions.dim, 2) / 2))


def _farthest(
    all_points: Float[np.ndarray, "cells dim"], kept: Float[np.ndarray, "some dim"]
) -> float:
    apart = np.linalg.norm(all_points[:, None] - kept[None], axis=-1)
    return float(apart.min(axis=1).max())
