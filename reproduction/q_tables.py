"""A system with finitely many cells and options, as tables that a sampler can draw from."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mufield.actions import MoveSet
from mufield.errors import UserError
from mufield.flow.flow import Flow
from mufield.flow.motions import dependence
from mufield.policies.base import ActionLaw
from mufield.problem import Motion, Problem
from mufield.space.measure import log_mass
from mufield.systems import SimulatedSystem


class Tables(NamedTuple):
    """A simulator of one-step transitions, as tables to draw from.

    Attributes:
        starts: Cumulative distribution of the first cell.
        ends: Cells that an option can lead to, from each cell.
        chances: Cumulative probabilities of these cells; 1 from the last possible one on.
        log_volume: Logarithm of a cell's volume; log density is log mass minus this.
    """

    starts: Float[np.ndarray, "cells"]
    ends: Int[np.ndarray, "cells options branches"]
    chances: Float[np.ndarray, "cells options branches"]
    pay_end: bool
    horizon: int
    log_volume: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of steps, cells and options: the shape of a table of Q-values."""
        return self.horizon, self.ends.shape[0], self.ends.shape[1]


def tabulate(system: SimulatedSystem) -> Tables:
    """Tabulates the distribution of the next cell for every cell and option.

    The probabilities are those of the flow, so sampled agents are distributed as the population.
    The tables serve as the simulator of a model-free method, which learns from samples alone.

    Raises:
        ValueError: If the actions are not finitely many, the motion depends on mu, or the reward
            is not -log of the density at the agent.
    """
    problem = system.problem
    flow, motion = system.reveal()
    if not isinstance(problem.actions, MoveSet):
        raise UserError(
            "tabular Q-learning needs finitely many options, a MoveSet, got "
            f"{problem.actions.describe()}; use a discrete system, for example discrete-rooms"
        )
    if dependence(problem, motion).mu:
        raise UserError(
            "expected a motion that does not depend on mu, got one that does; its next cell "
            "cannot be tabulated"
        )
    _check_reward(flow, problem.actions)
    laws = np.asarray(_next_cells(flow, motion, problem.actions.options), dtype=float)
    ends, chances = _branches(np.moveaxis(laws, 0, 1))
    return Tables(
        starts=_cumulative(np.asarray(problem.initial, dtype=float)),
        ends=ends,
        chances=chances,
        pay_end=problem.pay_end,
        horizon=problem.horizon,
        log_volume=float(np.log(problem.grid.cell_volume)),
    )


@eqx.filter_jit
def _next_cells(
    flow: Flow, motion: Motion, options: Float[Array, "options moves"]
) -> Float[Array, "options cells next_cells"]:
    problem = flow.problem
    cells = jnp.eye(problem.grid.n_cells, dtype=problem.initial.dtype)

    def of_option(weights: Array) -> Array:
        law = _everywhere(problem, weights)
        # One cell at a time: all at once would take memory cubic in the number of cells.
        rows: Array = jax.lax.map(lambda mass: flow.step(mass, law, motion), cells)
        return rows

    laws: Array = jax.lax.map(of_option, options.astype(problem.initial.dtype))
    return laws


def _everywhere(problem: Problem, weights: Float[Array, "moves"]) -> ActionLaw:
    """The law with the same weights in every cell."""
    moves, n = problem.actions.points(1).astype(problem.initial.dtype), problem.grid.n_cells
    return ActionLaw(
        actions=jnp.broadcast_to(moves, (n, *moves.shape)),
        weights=jnp.broadcast_to(weights, (n, *weights.shape)),
    )


def _branches(
    laws: Float[np.ndarray, "cells options next_cells"],
) -> tuple[Int[np.ndarray, "cells options branches"], Float[np.ndarray, "cells options branches"]]:
    """The cells of positive probability, and their cumulative probabilities."""
    width = int((laws > 0).sum(axis=-1).max())
    # Possible cells first; the stable sort otherwise keeps their order.
    ends = np.argsort(laws <= 0, axis=-1, kind="stable")[..., :width]
    chances = _cumulative(np.take_along_axis(laws, ends, axis=-1))
    return np.ascontiguousarray(ends), chances


def _cumulative(weights: Float[np.ndarray, "... entries"]) -> Float[np.ndarray, "... entries"]:
    """Cumulative probabilities; exactly 1 from the last possible entry on."""
    sums = np.cumsum(weights, axis=-1)
    nothing_left = np.cumsum(weights[..., ::-1], axis=-1)[..., ::-1] - weights <= 0
    return np.where(nothing_left, 1.0, sums / sums[..., -1:])


def _check_reward(flow: Flow, actions: MoveSet) -> None:
    """Raises unless the reward is -log of the density at the agent."""
    problem, grid = flow.problem, flow.problem.grid
    law = _everywhere(problem, jnp.ones(actions.moves.shape[0], dtype=problem.initial.dtype))
    rewards = eqx.filter_jit(flow.rewards)
    rng = np.random.default_rng(0)
    # How far a reward may be from -log mu and still be accepted as equal.
    reward_tolerance = 1e-3
    # Parameters of the Dirichlet distributions, from peaked to even, at which rewards are
    # tested.
    concentrations = (0.5, 1.0, 10.0)
    for concentration in concentrations:
        drawn = rng.dirichlet(np.full(grid.n_cells, concentration))
        mass = jnp.asarray(drawn, dtype=problem.initial.dtype)
        got = np.asarray(rewards(mass, law))
        wanted = -np.asarray(log_mass(mass / grid.cell_volume))[:, None]
        wrong = np.argwhere(~(np.abs(got - wanted) <= reward_tolerance))
        if len(wrong):
            cell, move = (int(i) for i in wrong[0])
            raise UserError(
                "expected the reward -log mu(s), as in the discrete rooms, got "
                f"{got[cell, move]:.6g} instead of {wanted[cell, 0]:.6g} for the move "
                f"{np.asarray(actions.moves[move]).tolist()} in the cell "
                f"{grid.free_cells[cell].tolist()}; other rewards are not supported"
            )
