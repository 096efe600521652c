r"""The fluid linear programme of a fleet: a plan with known motion, and a dual bound on J.

With $x_h(k, a)$ the empty vehicles of cell $k$ that choose move $a$, and $s_h(k)$ those that serve,

$$\max \sum_{h,k} w_h(k)\, s_h(k) - \sum_{h,k,a} c(a)\, x_h(k, a)
\quad\text{with}\quad 0 \le s_h(k) \le d_h(k),\ x \ge 0,$$
$$\sum_a x_h(k, a) + s_h(k) = \sum_{j,a} x_{h-1}(j, a)\, T(j, a, k) + \sum_j s_{h-1}(j)\, P(j, k).$$

Vehicles on trips that take $i$ steps come from $s_{h-i}$ instead.

The programme relaxes the problem: its vehicles may refuse passengers, $s < \min(\mu, d)$, while
those of the problem match as many as possible. So no policy over these moves earns more than the
optimum, if the motion does not depend on mu; the programme's motion is that of empty streets.

The bound for motions that depend on mu, and for other moves, comes from the dual. Any values
$V_h(k)$ of a vehicle in each cell, with $V$ zero after the last step, bound J from above by
$\sum_k \mu_0(k) V_0(k) + \sum_{h,k} d_h(k) \lambda_h(k)$ if they are feasible:

$$V_h(k) \ge \max_{a, m}\ \sum_j T_m(k, a, j)\, V_{h+1}(j) - c(a), \qquad
\lambda_h(k) = \max\Big(0,\ w_h(k) + \sum_j P(k, j)\, V_{h+1}(j) - V_h(k)\Big),$$

where $m$ is the mass of the cell that the motion sees. The solver's values are raised to feasible
ones from the last step to the first, so the bound does not depend on the solver's tolerance. If the
motion depends on mu, the maximum over $m$ is taken over a few sizes only: then the bound is proved
for these, not between them.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..errors import UserError
from ..flow.backward import Weights, expected_values, tried_masses
from ..flow.motions import dependence
from ..flow.moves import MoveFlow
from ..policies.base import Profile
from ..problem import Problem
from .network_flow import least_cost
from .passengers import Earnings, Passengers, rows_at
from .trips import Trips


class FluidPlan(eqx.Module):
    """A policy from the fluid programme, and the bound.

    Attributes:
        moves: The flow over the moves that the policy draws from.
        optimum: Optimum of the programme, which may refuse passengers and has empty streets.
        upper: Dual bound: no policy over the moves earns more.
        value: J of the policy, where vehicles serve whom they can and crowds are as they are.
        served: Served demand in the programme, by step and cell; zero before the first step.
        refused: Passengers that the programme refuses although there is a vehicle in the cell, as a
            share of all that it serves. If there are none, the bound is tight for a motion that
            does not depend on mu.
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
            chance `Passengers`, and the reward `Earnings`. If it is the rest of an episode, so is
            the plan.
        tried: More moves, for which the bound is to hold as well; by default the plan's.
    """
    programme = Programme(moves)
    if dependence(moves.flow.problem, moves.motion).mass:
        raise UserError(
            "the fluid programme needs a motion that sees of mu no more than mu.here, so that all "
            "masses can be tried; plan with MirrorAscent"
        )
    found = programme.solve()
    # Steps before the first planned one keep uniform weights, which nobody follows.
    weights = moves.uniform()
    planned = jnp.asarray(found.weights, dtype=weights.dtype)
    weights = weights.at[-len(planned) :].set(planned)
    return FluidPlan(
        moves=moves,
        weights=weights,
        optimum=found.optimum,
        upper=Programme(tried or moves).dual_bound(found.values),
        value=float(moves.rollout(weights).value),
        served=np.pad(found.served, ((len(weights) - len(planned), 0), (0, 0))),
        refused=found.refused,
    )


def for_fleet(problem: Problem, vehicles: int, *, seen: int = -1) -> Problem:
    """The problem to plan in for a fleet of so many vehicles; see `Passengers`.

    Run the plan in the problem as it is. ``seen`` is the step at which vehicles were counted, if
    the plan is for the rest of an episode: their numbers are not random then.
    """
    earnings, passengers = fleet_parts(problem)
    finite = Passengers(passengers.grid, passengers.demand, vehicles, seen, clock=passengers.clock)
    changed: Problem = eqx.tree_at(lambda p: p.trips.chance, problem, finite)
    return changed.replace(reward=Earnings(finite, earnings.pay, earnings.cost))


def fleet_parts(problem: Problem) -> tuple[Earnings, Passengers]:
    """The reward and the chance of a fleet's problem; raises if it is no such problem."""
    chance = problem.trips.chance if isinstance(problem.trips, Trips) else None
    reward = problem.reward
    if (
        not isinstance(chance, Passengers)
        or not isinstance(reward, Earnings)
        or not np.array_equal(chance.demand, reward.passengers.demand)
        or chance.vehicles is not None
    ):
        raise UserError(
            "the fluid programme needs a problem with trips=Trips(passengers, matrix) and "
            "reward=Earnings(passengers, ...) of mufield.fleet, where passengers are those of the "
            f"limit; got the chance {type(chance).__name__} and the reward {type(reward).__name__}"
        )
    return reward, chance


class Solution(NamedTuple):
    """A solution of the programme for the planned steps; ``values`` are the dual's, V_h(k)."""

    optimum: float
    values: Float[np.ndarray, "steps cells"]
    weights: Float[np.ndarray, "steps cells moves"]
    served: Float[np.ndarray, "steps cells"]
    refused: float


class Programme:
    """The linear programme of the planned steps on empty streets; rows of arrays are the steps."""

    def __init__(self, moves: MoveFlow):
        problem, (earnings, passengers) = moves.flow.problem, fleet_parts(moves.flow.problem)
        if problem.pay_end or problem.constraints is not None:
            raise UserError("the fluid programme knows no pay_end or constraints; leave them out")
        assert isinstance(problem.trips, Trips)
        self.moves, self.trips, self.cells = moves, problem.trips, problem.grid.n_cells
        # All steps of the episode, or those that are left of it; they keep their numbers.
        self.steps = list(range(problem.steps_done, problem.horizon))
        rows = (rows_at(table, self.steps) for table in (passengers.demand, earnings.pay))
        self.demand, self.pay = (np.asarray(each, dtype=float) for each in rows)
        self.cost = np.asarray(earnings.driving(moves.actions), dtype=float)
        # Vehicles that are free at the first planned step, and those that arrive at later ones.
        starts = np.asarray(problem.initial_arrivals, dtype=float)
        self.starts = np.zeros((max(len(self.steps), len(starts)), self.cells))
        self.starts[: len(starts)] = starts / starts.sum()

    def solve(self) -> Solution:
        """Solves it by the interior point method of HiGHS.

        Variables are, for each step, empty vehicles by cell and move, then serving ones by cell.
        """
        from scipy import sparse  # slow to import

        horizon, cells, choices = len(self.steps), self.cells, self.cost.size
        one = sparse.eye_array(cells)
        leave = sparse.hstack([sparse.kron(one, np.ones((1, self.moves.actions.shape[1]))), one])
        blocks: list[list[Any]] = [[None] * horizon for _ in range(horizon)]
        for row, step in enumerate(self.steps):
            blocks[row][row] = leave
            if row + 1 < horizon:
                driven, rides = _landings(self.moves, step), _trips(self.trips, step)
                for after, ridden in enumerate(rides[: horizon - row - 1]):
                    moved = driven if after == 0 else sparse.csr_array(driven.shape)
                    blocks[row + 1 + after][row] = -sparse.vstack([moved, ridden]).T
        most = np.hstack([np.full((horizon, choices), np.inf), self.demand]).reshape(-1)
        costs = np.hstack([np.tile(self.cost.reshape(-1), (horizon, 1)), -self.pay]).reshape(-1)
        # A basic solution, for which HiGHS would search nine tenths of the time, is not needed.
        inner = {"method": "highs-ipm", "options": {"run_crossover": "off"}}
        balance = sparse.block_array(blocks, format="csc")
        found = least_cost(costs, balance, self.starts[:horizon], most, **inner)
        values = -np.asarray(found.eqlin.marginals).reshape(horizon, cells)
        variables = np.maximum(found.x, 0.0).reshape(horizon, -1)
        empty = variables[:, :choices].reshape(horizon, cells, -1)
        served = variables[:, choices:]
        could = np.minimum(empty.sum(axis=-1) + served, self.demand)
        refused = float(np.sum(could - served) / max(served.sum(), 1e-12))
        return Solution(-float(found.fun), values, self._policy(empty, values), served, refused)

    def _worth(self, size: float, after: np.ndarray, step: int) -> np.ndarray:
        """Expected value after each move, minus its cost; cells are seen with masses of a size."""
        seen = np.full(self.cells, size)
        found = _expected(self.moves, seen, after[None], jnp.asarray(step))
        return np.asarray(np.asarray(found[0], dtype=float) - self.cost)

    def _policy(self, empty: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Weights of the moves; where no vehicle is empty, the move of the highest value."""
        best = np.zeros_like(empty)
        after = np.concatenate([values[1:], np.zeros((1, self.cells))])
        for row, step in enumerate(self.steps):
            chosen = self._worth(0.0, after[row], step).argmax(axis=1)
            best[row, np.arange(self.cells), chosen] = 1.0
        total = empty.sum(axis=-1, keepdims=True)
        filled = total > 1e-7  # the solver's tolerance
        return np.where(filled, empty / np.where(filled, total, 1.0), best)

    def dual_bound(self, values: Float[np.ndarray, "steps cells"]) -> float:
        """The dual bound, with values raised to feasible ones for the moves and several masses."""
        # Values of the next step and of later ones, at which longer trips end.
        after, bound = np.zeros((1 + self.trips.stages, self.cells)), 0.0
        for row, step in reversed(list(enumerate(self.steps))):
            least = values[row]
            for size in tried_masses(self.moves):
                least = np.maximum(least, self._worth(size, after[0], step).max(axis=1))
            ridden = _ridden(self.trips, jnp.asarray(after), jnp.asarray(step))
            gained = self.pay[row] + np.asarray(ridden, dtype=float) - least
            bound += float(np.sum(self.demand[row] * np.maximum(gained, 0.0)))
            after = np.concatenate([least[None], after[:-1]])
        return bound + float(np.sum(self.starts[: len(after)] * after))


def _landings(moves: MoveFlow, step: int) -> Any:
    """Sparse matrix from cells and moves to the cells where agents land on empty streets."""
    from scipy import sparse

    cells = moves.flow.problem.grid.n_cells
    found = _expected(moves, np.zeros(cells), np.eye(cells), jnp.asarray(step))
    table = np.asarray(found, dtype=float).reshape(cells, -1).T
    # It makes the programme several times faster; the dual bound has all probabilities.
    table = np.where(table < 1e-3, 0.0, table)
    return sparse.csr_array(table / table.sum(axis=1, keepdims=True))


# Compiled once for the module.
_ridden: Any = eqx.filter_jit(Trips.worth)
_expected: Any = eqx.filter_jit(expected_values)


def _trips(trips: Trips, step: int) -> list[Any]:
    """Origin-destination matrices of trips that take one step, two and so on, for SciPy."""
    from scipy import sparse

    # Their rows are what is taken in one cell at a time.
    taken = jnp.eye(trips.away.shape[-1])
    ends = jax.vmap(trips.ends, in_axes=(0, None))(taken, jnp.asarray(step))
    return [sparse.csr_array(each) for each in np.asarray(ends, dtype=float).swapaxes(0, 1)]
