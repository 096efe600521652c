r"""The fluid linear programme of a fleet: a plan with known motion, and a bound of all policies.

With $x_h(k, a)$ the empty vehicles of cell $k$ that choose move $a$, and $s_h(k)$ those that serve,

$$\max \sum_{h,k} w_h(k)\, s_h(k) - \sum_{h,k,a} c(a)\, x_h(k, a)
\quad\text{with}\quad 0 \le s_h(k) \le d_h(k),\ x \ge 0,$$
$$\sum_a x_h(k, a) + s_h(k) = \sum_{j,a} x_{h-1}(j, a)\, T(j, a, k) + \sum_j s_{h-1}(j)\, P(j, k).$$

Vehicles of the programme may refuse passengers, $s < \min(\mu, d)$; those of the problem serve whom
they can. So each policy's flow is a point of the programme, and no policy earns more than its
optimum.

The motion of the programme is that of empty streets, and its moves are few, so the optimum itself
bounds only policies over these moves, for a motion that does not see mu. But its dual has a value
$V_h(k)$ of a vehicle in each cell, and any such values give a bound, if in each cell

$$V_h(k) \ge \max_{a, m}\ \sum_j T_m(k, a, j)\, V_{h+1}(j) - c(a), \qquad
\lambda_h(k) = \max\Big(0,\ w_h(k) + \sum_j P(k, j)\, V_{h+1}(j) - V_h(k)\Big),$$

namely $\sum_k \mu_0(k) V_0(k) + \sum_{h,k} d_h(k) \lambda_h(k)$. There $m$ is the mass of the cell
that the motion sees. The values are raised where that is needed, from the last step to the first.
The bound holds whatever the solver's tolerance, for all moves that are tried there. If the motion
sees mu, crowds of `CROWDS` sizes are tried; then it is a bound as far as these stand for all sizes,
and no proof between them.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Mass, Step
from ..errors import UserError
from ..flow import kernels
from ..flow.moves import MoveFlow, Weights
from ..flow.sight import sight
from ..passengers import Earnings, Passengers, by_step
from ..policies.base import Profile
from ..problem import Problem

CROWDS = 8
"""Masses of a cell at which a motion is tried that sees it, from none to the whole fleet."""

SMALLEST = 1e-3
"""Probabilities of landing below this are left out of the programme, which makes it several times
faster; the bound knows them."""

NO_VEHICLE = 1e-7
"""Mass of empty vehicles below which a solution has none: as small as the solver's tolerance."""


class FluidPlan(eqx.Module):
    """What the programme found.

    Attributes:
        moves: The flow over the moves that the policy draws from.
        weights: The policy's weights.
        optimum: Optimum of the programme, which lets vehicles refuse passengers and knows no
            crowds.
        upper: No policy over the moves earns more.
        value: J of the policy, where vehicles serve whom they can and crowds are as they are.
        served: Vehicles that serve in the programme, by step and cell.
        refused: Passengers that the programme's vehicles refuse, although there is a vehicle in
            the cell, as a share of all that it serves. If there are none, the bound is tight for a
            motion that does not see mu.
    """

    moves: MoveFlow
    weights: Weights
    optimum: float
    upper: float
    value: float
    served: Float[np.ndarray, "steps cells"]
    refused: float

    @property
    def profile(self) -> Profile:
        """The randomised policy profile."""
        return self.moves.profile(self.weights)


def fluid_plan(moves: MoveFlow, *, tried: MoveFlow | None = None) -> FluidPlan:
    """Solves the fluid linear programme with known motion, by HiGHS.

    Args:
        moves: The flow, the motion and the moves of the plan. The problem must have trips with the
            chance `Passengers`, and the reward `Earnings`.
        tried: More moves, for which the bound is to hold as well; by default the plan's.
    """
    problem = moves.flow.problem
    earnings, passengers = of_fleet(problem)
    if sight(problem, moves.motion) == "more":
        raise UserError(
            "the fluid programme needs a motion that sees of mu no more than mu.here, so that all "
            "crowds can be tried; plan with MirrorAscent"
        )
    programme = Programme(moves, earnings, passengers)
    found = programme.solve()
    upper = raised_bound(tried or moves, earnings, passengers, found.values)
    weights = jnp.asarray(found.weights, dtype=problem.initial.dtype)
    value = float(moves.rollout(weights).value)
    return FluidPlan(
        moves=moves,
        weights=weights,
        optimum=found.optimum,
        upper=upper,
        value=value,
        served=found.served,
        refused=found.refused,
    )


def for_fleet(problem: Problem, vehicles: int, *, seen: int = -1) -> Problem:
    """The problem to plan in for a fleet of so many vehicles; see `Passengers.for_fleet`.

    Run the plan in the problem as it is. ``seen`` is the step at which the fleet was observed, if
    the plan is for the rest of an episode; there chance has no say.
    """
    earnings, passengers = of_fleet(problem)
    assert problem.trips is not None
    finite = passengers.for_fleet(vehicles, seen)
    trips = eqx.tree_at(lambda t: t.chance, problem.trips, finite)
    changed: Problem = eqx.tree_at(lambda p: p.trips, problem, trips)
    return changed.with_reward(Earnings(finite, earnings.pay, earnings.cost))


class Cap(NamedTuple):
    """At most ``height + slope * mass`` vehicles of a cell serve, by step and cell."""

    slope: Float[np.ndarray, "steps cells"]
    height: Float[np.ndarray, "steps cells"]


class _Solution(eqx.Module):
    """A solution of the programme: values of its dual, and the policy."""

    optimum: float
    values: Float[np.ndarray, "steps cells"]
    weights: Float[np.ndarray, "steps cells moves"]
    served: Float[np.ndarray, "steps cells"]
    refused: float


def of_fleet(problem: Problem) -> tuple[Earnings, Passengers]:
    """The reward and the chance of a fleet's problem; raises if it is no such problem."""
    chance = None if problem.trips is None else problem.trips.chance
    reward = problem.reward
    if (
        not isinstance(chance, Passengers)
        or not isinstance(reward, Earnings)
        or not np.array_equal(chance.wanted, reward.passengers.wanted)
        or chance.vehicles is not None
    ):
        raise UserError(
            "the fluid programme needs a problem with trips=Trips(passengers, matrix) and "
            "reward=Earnings(passengers, ...), where passengers is a mufield.Passengers of the "
            f"limit; got the chance {type(chance).__name__} and the reward {type(reward).__name__}"
        )
    if problem.pay_end or problem.constraints is not None:
        raise UserError("the fluid programme knows neither pay_end nor limits; leave them out")
    return reward, chance


class Programme:
    """The programme as matrices of SciPy.

    The motion sees the masses ``crowds`` by step, by default none: it is that of empty streets.
    """

    def __init__(
        self,
        moves: MoveFlow,
        earnings: Earnings,
        passengers: Passengers,
        crowds: Float[np.ndarray, "steps cells"] | None = None,
    ):
        problem = moves.flow.problem
        self.moves, self.horizon, self.cells = moves, problem.horizon, problem.grid.n_cells
        self.wanted = passengers.of_steps(self.horizon)
        self.pay = by_step(earnings.pay, self.horizon)
        self.cost = np.asarray(earnings.driving(moves.actions), dtype=float)
        initial = np.asarray(problem.initial, dtype=float)
        self.initial = initial / initial.sum()
        self.crowds = np.zeros((self.horizon, self.cells)) if crowds is None else crowds

    def solve(self, caps: Sequence[Cap] = ()) -> _Solution:
        """Solves it by the interior point method of HiGHS, with more limits of who can serve."""
        from scipy import sparse  # slow to import
        from scipy.optimize import OptimizeWarning, linprog

        horizon, cells, choices = self.horizon, self.cells, self.cost.size
        trips = self.moves.flow.problem.trips
        assert trips is not None
        leave = sparse.hstack(
            [
                sparse.kron(sparse.eye_array(cells), np.ones((1, self.moves.n_moves))),
                sparse.eye_array(cells),
            ]
        )
        arrive = []
        for step in range(horizon - 1):
            landing = landings(self.moves, step, self.crowds[step])
            ends = trip_matrix(trips, step)
            arrive.append(sparse.hstack([landing.T, ends.T]))
        blocks: list[list[Any]] = [[None] * horizon for _ in range(horizon)]
        for step in range(horizon):
            blocks[step][step] = leave
            if step:
                blocks[step][step - 1] = -arrive[step - 1]
        balance = sparse.block_array(blocks, format="csc")
        start = np.zeros(horizon * cells)
        start[:cells] = self.initial
        costs = np.concatenate(
            [np.concatenate([self.cost.reshape(-1), -self.pay[h]]) for h in range(horizon)]
        )
        most = np.concatenate(
            [np.concatenate([np.full(choices, np.inf), self.wanted[h]]) for h in range(horizon)]
        )
        bounds = np.stack([np.zeros_like(most), most], axis=1)
        settings = {"A_eq": balance, "b_eq": start, "bounds": bounds, "method": "highs-ipm"}
        if caps:
            serving = sparse.hstack([sparse.csr_array((cells, choices)), sparse.eye_array(cells)])
            settings["A_ub"] = sparse.vstack(
                [
                    sparse.block_diag(
                        [serving - sparse.diags_array(row) @ leave for row in cap.slope]
                    )
                    for cap in caps
                ]
            )
            settings["b_ub"] = np.concatenate([cap.height.reshape(-1) for cap in caps])
        with warnings.catch_warnings():
            # SciPy hands options on that it does not know, with a warning. A basic solution, for
            # which HiGHS would search nine tenths of the time, is not needed.
            warnings.simplefilter("ignore", OptimizeWarning)
            found = linprog(costs, **settings, options={"run_crossover": "off"})
        if found.status != 0:
            found = linprog(costs, **settings)
        if found.status != 0:
            raise UserError(f"HiGHS found no solution of the fluid programme: {found.message}")
        values = -np.asarray(found.eqlin.marginals).reshape(horizon, cells)
        by_step = np.maximum(found.x, 0.0).reshape(horizon, -1)
        empty = by_step[:, :choices].reshape(horizon, cells, -1)
        served = by_step[:, choices:]
        inside = empty.sum(axis=-1)
        could = np.minimum(inside + served, self.wanted)
        return _Solution(
            optimum=-float(found.fun),
            values=values,
            weights=self._policy(empty, values),
            served=served,
            refused=float(np.sum(could - served) / served.sum()),
        )

    def _policy(self, empty: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Weights of the moves; where no vehicle is empty, the move that the values favour."""
        best = np.zeros_like(empty)
        for step in range(self.horizon):
            after = values[step + 1] if step + 1 < self.horizon else np.zeros(self.cells)
            crowd = jnp.asarray(self.crowds[step])
            worth = np.asarray(_worth(self.moves, crowd, after, step)) - self.cost
            best[step, np.arange(self.cells), worth.argmax(axis=1)] = 1.0
        total = empty.sum(axis=-1, keepdims=True)
        filled = total > NO_VEHICLE
        return np.where(filled, empty / np.where(filled, total, 1.0), best)


def raised_bound(
    moves: MoveFlow,
    earnings: Earnings,
    passengers: Passengers,
    values: Float[np.ndarray, "steps cells"],
) -> float:
    """The bound of the dual, with values raised to what the moves and crowds of any size need."""
    problem = moves.flow.problem
    assert problem.trips is not None
    horizon, cells = problem.horizon, problem.grid.n_cells
    wanted, pay = passengers.of_steps(horizon), by_step(earnings.pay, horizon)
    cost = np.asarray(earnings.driving(moves.actions), dtype=float)
    sizes = np.concatenate([[0.0], np.geomspace(0.1 / cells, 1.0, CROWDS - 1)])
    sizes = sizes if moves.sees_mu else sizes[:1]
    after, bound = np.zeros(cells), 0.0
    for step in reversed(range(horizon)):
        least = values[step]
        for size in sizes:
            worth = _worth(moves, jnp.full(cells, size), after, step)
            least = np.maximum(least, (np.asarray(worth, dtype=float) - cost).max(axis=1))
        gained = pay[step] + trip_matrix(problem.trips, step) @ after - least
        bound += float(np.sum(wanted[step] * np.maximum(gained, 0.0)))
        after = least
    initial = np.asarray(problem.initial, dtype=float)
    return bound + float(initial @ after / initial.sum())


@eqx.filter_jit
def _worth(moves: MoveFlow, mass: Array, values: Any, step: Step) -> Float[Array, "cells moves"]:
    """Expected value of where each move lands; the motion sees ``mass``."""
    dtype = moves.actions.dtype
    # The landed mass is linear in the weights of the moves, so its derivative is exact.
    move = partial(moves.move, mass=mass.astype(dtype), step=step)
    _, pull = jax.vjp(move, jnp.zeros(moves.actions.shape[:2], dtype=dtype))
    return jnp.asarray(pull(values.astype(dtype))[0])


def _kernel(moves: MoveFlow, mass: Mass, step: Step) -> Float[Array, "cells moves window"]:
    if moves.kernel is not None:
        return moves.kernel[step] if moves.sees_step else moves.kernel
    return kernels.landing_kernel(moves.flow, moves.motion, moves.actions, mass, moves.group, step)


def landings(moves: MoveFlow, step: int, crowd: Float[np.ndarray, "cells"]) -> Any:
    """Sparse matrix from cells and moves to the cells where agents land; they see ``crowd``."""
    from scipy import sparse

    cells = moves.flow.problem.grid.n_cells
    seen = jnp.asarray(crowd, dtype=moves.actions.dtype)
    kernel = np.array(_kernel(moves, seen, jnp.asarray(step)), dtype=float)
    window = kernel.shape[-1]
    kernel = kernel.reshape(-1, window)
    kernel[kernel < SMALLEST] = 0.0
    kernel /= kernel.sum(axis=1, keepdims=True)
    own = np.repeat(np.arange(cells), moves.n_moves)[:, None] * window + np.arange(window)
    starts = np.arange(0, kernel.size + 1, window)
    by_offset = sparse.csr_array(
        (kernel.reshape(-1), own.reshape(-1), starts), shape=(len(kernel), cells * window)
    )
    by_offset.eliminate_zeros()
    return by_offset @ sparse.csr_array(np.asarray(_arrivals(moves), dtype=float).T)


@eqx.filter_jit
def _arrivals(moves: MoveFlow) -> Float[Array, "cells entries"]:
    """Where mass at each window offset of each cell comes to rest."""
    flow = moves.flow
    window = int(np.prod(flow.fold.window))
    cells = flow.problem.grid.n_cells
    zero = jnp.zeros((cells, window), dtype=moves.actions.dtype)
    _, pull = jax.vjp(lambda landed: kernels.arrive(flow, landed), zero)
    rows = jax.lax.map(lambda row: pull(row)[0].reshape(-1), jnp.eye(cells, dtype=zero.dtype))
    return jnp.asarray(rows)


def trip_matrix(trips: Any, step: int) -> Any:
    """The matrix of trips of a step, for SciPy."""
    from scipy import sparse

    if trips.matrix is None:
        shape = (trips.cells, trips.cells)
        places = (np.asarray(trips.rows), np.asarray(trips.columns))
        return sparse.csr_array((np.asarray(trips.entries, dtype=float), places), shape=shape)
    matrix = trips.matrix if trips.matrix.ndim == 2 else trips.matrix[step]
    return sparse.csr_array(np.asarray(matrix, dtype=float))
