"""Compares a written file with the policy in JAX, on random inputs."""

import io
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._types import Mass, States
from ..policies.base import ActionLaw, Profile
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import mean_field_at
from .reader import DeployedPolicy, unsealed

TOLERANCE = 1e-5
"""Largest difference of outputs, relative to the largest action if that is more than one."""


class Inputs(NamedTuple):
    """Random inputs of one decision.

    Attributes:
        states: Positions, (agents, axes), float32.
        mass: A distribution, float32.
        chance: One number from 0 to below 1 for each agent, float32.
    """

    states: np.ndarray
    mass: np.ndarray
    step: int
    chance: np.ndarray


class Decision(NamedTuple):
    """A file's outputs.

    Attributes:
        actions: One action for each agent.
        weights: Weights of all moves, (agents, moves); None if the file gives none.
    """

    actions: np.ndarray
    weights: np.ndarray | None


Decide = Callable[[Inputs], Decision]


def reader_decides(data: bytes) -> Decide:
    """Decisions by the NumPy reader, from the bytes of a file."""
    policy = DeployedPolicy(*unsealed(io.BytesIO(data)))

    def decide(inputs: Inputs) -> Decision:
        states, mass, step, chance = inputs
        actions = policy.act(states, mass, step=step, chance=chance)
        law = policy.law(states, mass, step=step) if policy.randomised else None
        return Decision(actions, None if law is None else law.weights)

    return decide


def onnx_decides(data: bytes) -> Decide:
    """Decisions by onnxruntime, from the bytes of a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    wanted = [each.name for each in session.get_inputs()]

    def decide(inputs: Inputs) -> Decision:
        given = {
            "state": inputs.states,
            "mass": inputs.mass,
            "step": np.asarray(inputs.step, np.int64),
            "chance": inputs.chance,
        }
        found = session.run(None, {name: given[name] for name in wanted})
        return Decision(found[0], found[1] if len(found) > 1 else None)

    return decide


def largest_difference(decide: Decide, profile: Profile, problem: Problem, seed: int = 0) -> float:
    """Largest difference between outputs of a file and of the policy in JAX, on random inputs.

    It is infinite if the file draws a move that JAX would not draw with the same chance.
    """
    rng = np.random.default_rng(seed)
    steps = {0, profile.horizon - 1, *rng.integers(profile.horizon, size=6).tolist()}
    worst = 0.0
    for step in sorted(steps):
        inputs = random_inputs(problem, step, 200, rng)
        law = jax_law(profile, problem, inputs)
        worst = max(worst, _difference(decide(inputs), law, inputs.chance))
    return worst


def random_inputs(problem: Problem, step: int, agents: int, rng: np.random.Generator) -> Inputs:
    """Random positions in free cells, a random distribution and random chances."""
    grid = problem.grid
    # Not at the borders of cells, where number formats may disagree about the cell.
    aside = rng.uniform(-0.4999, 0.4999, size=(agents, grid.dim)) * np.asarray(grid.cell_size)
    states = grid.centres[rng.integers(grid.n_cells, size=agents)] + aside
    mass = rng.dirichlet(np.ones(grid.n_cells))
    chance = rng.random(agents, dtype=np.float32)
    return Inputs(states.astype(np.float32), mass.astype(np.float32), step, chance)


def jax_law(profile: Profile, problem: Problem, inputs: Inputs) -> ActionLaw:
    """The laws of all agents, by the policy in JAX."""
    dtype = problem.initial.dtype
    states, mass = jnp.asarray(inputs.states, dtype), jnp.asarray(inputs.mass, dtype)
    return batched_law(profile, problem.grid, states, mass, jnp.asarray(inputs.step))


@eqx.filter_jit
def batched_law(profile: Profile, grid: Grid, states: States, mass: Mass, step: Array) -> ActionLaw:
    """The laws of many agents at one step."""
    policy = profile.at(step)
    return jax.vmap(lambda state: policy.law(state, mean_field_at(grid, mass, state)))(states)


def _difference(found: Decision, law: ActionLaw, chance: np.ndarray) -> float:
    actions, weights = (np.asarray(part, dtype=float) for part in (law.actions, law.weights))
    scale = max(1.0, float(np.abs(actions).max()))
    distance = np.abs(actions - found.actions[:, None]).max(axis=-1) / scale
    if weights.shape[1] == 1:
        return float(distance.max())
    # Near a sum of weights, rounding decides between two moves: both are accepted.
    sums = np.cumsum(weights, axis=1)
    meant = (sums - weights - TOLERANCE <= chance[:, None]) & (chance[:, None] <= sums + TOLERANCE)
    drawn = np.where(meant & (weights > 0), distance, np.inf).min(axis=1)
    given = weights if found.weights is None else found.weights
    return float(max(drawn.max(), np.abs(weights - given).max()))
