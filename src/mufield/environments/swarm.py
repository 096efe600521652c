"""Swarm motion on the unit torus (App. E.2, "Swarm Motion Experiments")."""

import math
from collections.abc import Callable
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._arrays import Action, Mass, Scalar, State
from ..actions import Box
from ..constraints import entropy_at_least
from ..errors import UserError, number, whole_number
from ..problem import Motion, Problem, Reward
from ..space.grid import Grid
from ..space.measure import MeanField, from_density, log_mass, uniform
from ..systems import SimulatedSystem


def closed_form_policy(state: State, mu: MeanField, step: object = None) -> Action:
    """pi*(s) = 2 pi cos(2 pi s), optimal in continuous time (eq. optimalSolution)."""
    return 2 * jnp.pi * jnp.cos(2 * jnp.pi * state)


def closed_form_density(points: Float[np.ndarray, "points"]) -> Float[np.ndarray, "points"]:
    """mu*(s), proportional to exp(2 sin(2 pi s)) (eq. optimalSolution)."""
    return np.asarray(np.exp(2 * np.sin(2 * np.pi * points)) / np.i0(2.0))


def attraction(position: Scalar) -> Scalar:
    """phi(s), the reward for the position itself."""
    angle = 2 * jnp.pi * position
    return -2 * jnp.pi**2 * (-jnp.sin(angle) + jnp.cos(angle) ** 2) + 2 * jnp.sin(angle)


def swarm(
    *,
    motion: str = "free",
    initial: str = "normal",
    effort: str = "quadratic",
    horizon: int = 200,
    duration: float = 1.0,
    cells: int = 100,
    reward: str = "known",
    spread: float | None = None,
) -> SimulatedSystem:
    """Swarm motion: agents seek good places, avoid crowds and save effort.

    Args:
        motion: ``"free"`` is s + a dh (eq. swarm_motion_dynamics); ``"congested"`` is
            s + a (4 - 4 mu(s)) dh (eq. swarm_motion_dynamics_2), with the mass of the agent's
            cell as mu(s): a density could exceed one and would then reverse the motion.
        initial: ``"normal"`` is N(0.5, 0.04), a variance of 0.04, wrapped; ``"uniform"`` is
            U(0, 1); ``"ergodic"`` is the closed-form density.
        effort: ``"quadratic"`` is a^2 / 2, with which the closed form solves the problem;
            ``"printed"`` is |a| / 2 as in the paper.
        horizon: Number of moves.
        duration: Time that an episode lasts; a step takes duration / horizon.
        cells: Number of cells of the torus.
        reward: ``"known"``, or ``"hidden"``: then the learner sees only what tracked agents earn.
        spread: Least entropy of the population, as a share of the greatest, after every move; such
            as 0.95 in the experiments of Safe-M3-UCRL. None for no limit.
    """
    for name, value, choices in (
        ("motion", motion, ("free", "congested")),
        ("effort", effort, ("quadratic", "printed")),
        ("reward", reward, ("known", "hidden")),
    ):
        if value not in choices:
            raise UserError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")
    whole_number(horizon, "the horizon")
    step = number(duration, "the duration", 1e-9) / horizon
    fastest = 7.0  # a little faster than the closed form, 2 pi
    grid = Grid.box(0.0, 1.0, cells, periodic=True)
    limits = []
    if spread is not None:
        least = number(spread, "spread, a share of the greatest entropy,", 0.0, 1.0)
        limits = [entropy_at_least(grid, least * math.log(cells), name="entropy of the swarm")]
    problem = Problem(
        space=grid,
        actions=Box(-fastest, fastest),
        reward=_reward(effort) if reward == "known" else None,
        horizon=horizon,
        initial=_initial(grid, initial),
        noise=math.sqrt(step),
        max_move=fastest * step * (4.0 if motion == "congested" else 1.0),
        constraints=limits,
    )
    hidden = _reward(effort) if reward == "hidden" else None
    return SimulatedSystem(problem, _motion(motion, step), hidden)


# Cached, so that equal systems share their functions and so their compiled programs.
@lru_cache
def _reward(effort: str) -> Reward:
    cost: Callable[[Scalar], Scalar] = jnp.square if effort == "quadratic" else jnp.abs

    def reward(state: State, action: Action, mu: MeanField) -> Scalar:
        return attraction(state[0]) - 0.5 * cost(action[0]) - log_mass(mu.density_here)

    return reward


@lru_cache
def _motion(kind: str, step: float) -> Motion:
    def free(state: State, action: Action, mu: MeanField) -> State:
        return state + action * step

    def congested(state: State, action: Action, mu: MeanField) -> State:
        return state + action * (4.0 - 4.0 * mu.here) * step

    return congested if kind == "congested" else free


def _initial(grid: Grid, kind: str) -> Mass:
    points = grid.centres[:, 0]
    if kind == "uniform":
        return uniform(grid)
    if kind == "ergodic":
        return from_density(grid, closed_form_density(points))
    if kind == "normal":
        turns = points[:, None] + np.arange(-3, 4)
        return from_density(grid, np.exp(-0.5 * (turns - 0.5) ** 2 / 0.04).sum(axis=1))
    raise UserError(f"initial must be 'normal', 'uniform' or 'ergodic', got {kind!r}")
