r"""The network-flow programme of a fleet: who serves, and where idle vehicles drive.

A vehicle that is free in region i at step h either serves a trip to j, drives empty to j or stays.
It is free again in j after the steps that this takes, in i after one. With $s_h(i, j)$ vehicles
that serve and $x_h(i, j)$ that drive or stay, the plan is the network-flow programme

$$\max \sum_{h,i,j} p_h(i,j)\, s_h(i,j) - c_h(i,j)\, x_h(i,j),
\qquad 0 \le s_h \le d_h,\ x \ge 0,$$

$$m_h(i) := \sum_j s_h(i,j) + x_h(i,j) = a_h(i) + \sum_{h',j} s_{h'}(j,i) + x_{h'}(j,i),$$

where the last sum is over those who arrive in $i$ at step $h$, and $a_h$ are vehicles that were
under way before. Demand is random: of $m$ vehicles in a region
only $E \min(m, D)$ find somebody. $D$ is negative binomial, with more variance than the Poisson
numbers of requests, because the numbers of vehicles that arrive are random too. That is concave in
$m$, so a few tangents $\sum_j s_h(i,j) \le \alpha\, m_h(i) + \gamma$ state it in the programme;
plans then send some more vehicles than are expected to be needed.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Num

from ..errors import UserError

Pairs = Num[np.ndarray, "steps regions regions"]


class FleetState(NamedTuple):
    """What a dispatcher sees at a step: free vehicles, those under way, and requests.

    ``arriving[k]`` are free k + 1 steps later; ``requests`` are by origin and destination.
    """

    step: int
    free: Float[np.ndarray, "regions"]
    arriving: Float[np.ndarray, "later regions"]
    requests: Float[np.ndarray, "regions regions"]


class Orders(NamedTuple):
    """Whole numbers of vehicles that serve and that drive empty, by origin and destination."""

    serve: Float[np.ndarray, "regions regions"]
    drive: Float[np.ndarray, "regions regions"]


Dispatcher = Callable[[FleetState], Orders]


class RegionPlan(NamedTuple):
    """A solution of the programme; rows are the steps from ``first`` on.

    Attributes:
        first: The first planned step.
        value: Expected profit from there on, by the programme.
        served: Vehicles that serve.
        driven: Vehicles that drive empty, and on the diagonal those that stay.
    """

    first: int
    value: float
    served: Float[np.ndarray, "steps regions regions"]
    driven: Float[np.ndarray, "steps regions regions"]

    @property
    def orders(self) -> Orders:
        """The first step in whole vehicles: the largest remainders of each region round up."""
        both = whole(np.concatenate([self.served[0], self.driven[0]], axis=1))
        serve, drive = np.split(both, 2, axis=1)
        return Orders(serve, drive * (1 - np.eye(len(drive))))

    def follow(self, state: FleetState) -> Orders:
        """Orders of this plan at a later step, without planning again.

        Trips that the plan serves go first, then any; idle vehicles drive in its proportions.
        """
        row, stay = state.step - self.first, np.eye(len(state.free))
        serve = _fill(np.minimum(state.requests, np.floor(self.served[row])), state.free)
        serve += _fill(state.requests - serve, state.free - serve.sum(axis=1))
        idle, driven = state.free - serve.sum(axis=1), self.driven[row]
        total = driven.sum(axis=1, keepdims=True)
        shares = np.where(total > 1e-6, driven / np.maximum(total, 1e-6), stay)
        return Orders(serve, whole(idle[:, None] * shares) * (1 - stay))


def network_flow(
    demand: Pairs, pay: Pairs, trip_steps: Pairs, drive_steps: Pairs, drive_cost: Pairs, *,
    starts: Float[np.ndarray, "steps regions"],
    random: Float[np.ndarray, "steps regions"],
) -> tuple[float, np.ndarray, np.ndarray]:  # fmt: skip
    """Solves the programme: its optimum, vehicles that serve and vehicles that drive.

    Tables are those of `Regions`, of the planned steps. ``starts`` are vehicles that become free by
    themselves; ``random`` is the expected number of requests where that is unknown, else zero.
    """
    from scipy import sparse  # slow to import

    rows, count = demand.shape[:2]
    # Variables: trips that are asked for, then all pairs for empty vehicles.
    trips = np.nonzero(demand > 1e-9)
    step, origin, goal = (
        np.concatenate([one, other.reshape(-1)])
        for one, other in zip(trips, np.indices(demand.shape), strict=True)
    )
    served, each = len(trips[0]), np.arange(len(step))
    stay = (origin == goal) & (each >= served)
    lasts = np.concatenate([trip_steps[trips], drive_steps.reshape(-1)])
    end = step + np.where(stay, 1, lasts)
    cost = np.where(stay, 0.0, np.concatenate([-pay[trips], drive_cost.reshape(-1)]))
    most = np.concatenate([demand[trips], np.full(len(step) - served, np.inf)])
    inside, shape = end < rows, (rows * count, len(step))
    leave = sparse.csr_array((np.ones(len(step)), (step * count + origin, each)), shape=shape)
    ends = (end * count + goal)[inside], each[inside]
    arrive = sparse.csr_array((np.ones(inside.sum()), ends), shape=shape)
    limits: dict[str, Any] = {}
    cells = np.flatnonzero(random.reshape(-1) > 0.01)
    if len(cells):
        serves = (leave @ sparse.diags_array((each < served).astype(float)))[cells]
        # Tangents this many standard deviations from the mean.
        cuts = [_tangent(random.reshape(-1)[cells], z) for z in (-2, -1, -0.5, 0, 0.5, 1, 2)]
        above = [serves - sparse.diags_array(slope) @ leave[cells] for slope, _ in cuts]
        limits["A_ub"] = sparse.vstack(above)
        limits["b_ub"] = np.concatenate([constant for _, constant in cuts])
    found = least_cost(cost, leave - arrive, starts, most, **limits)
    table = np.zeros(demand.shape)
    table[trips] = np.maximum(found.x[:served], 0.0)
    return -float(found.fun), table, np.maximum(found.x[served:], 0.0).reshape(demand.shape)


def least_cost(
    cost: np.ndarray, balance: Any, starts: np.ndarray, most: np.ndarray, **settings: Any
) -> Any:
    """Flows x of least cost with balance @ x = starts and 0 <= x <= most, by HiGHS.

    ``settings`` are those of `scipy.optimize.linprog`, such as more constraints.
    """
    from scipy.optimize import OptimizeWarning, linprog  # slow to import

    bounds = np.stack([np.zeros_like(most), most], axis=1)
    settings = {"A_eq": balance, "b_eq": starts.reshape(-1), "bounds": bounds, **settings}
    with warnings.catch_warnings():
        # SciPy hands options on that it does not know, with a warning.
        warnings.simplefilter("ignore", OptimizeWarning)
        found = linprog(cost, **settings)
    if found.status != 0 and settings.pop("options", None):
        found = linprog(cost, **settings)
    if found.status != 0:
        raise UserError(f"HiGHS found no plan for the fleet: {found.message}")
    return found


def whole(table: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns"]:
    """Whole numbers with the sum of each row, rounded: the largest remainders round up."""
    down = np.floor(table + 1e-6)
    left = np.round(table.sum(axis=1) - down.sum(axis=1))
    order = np.argsort(np.argsort(down - table, axis=1, kind="stable"), axis=1)
    return np.asarray(down + (order < left[:, None]))


def _fill(wanted: Float[np.ndarray, "rows columns"], room: Float[np.ndarray, "rows"]) -> np.ndarray:
    """Of each row as much as there is room for, the first columns first."""
    before = np.cumsum(wanted, axis=1) - wanted
    return np.asarray(np.clip(room[:, None] - before, 0.0, wanted))


def _tangent(mean: Float[np.ndarray, "cells"], z: float) -> tuple[np.ndarray, np.ndarray]:
    """Slope and constant of a tangent to E min(m, D), at z deviations off the mean of D."""
    from scipy.special import betainc  # of the distribution function

    excess = 0.5  # D is negative binomial; its variance is one plus this times its mean
    at = np.maximum(np.floor(mean + z * np.sqrt((1 + excess) * mean)), 0.0)
    size, chance = mean / excess, 1 / (1 + excess)
    slope = 1.0 - betainc(size, at + 1, chance)
    below = np.where(at > 0, mean * betainc(size + 1, np.maximum(at, 1.0), chance), 0.0)
    return slope, below
