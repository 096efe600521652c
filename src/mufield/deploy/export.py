"""Writes a policy for use elsewhere, and checks that its file decides as the policy does."""

import io
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._arrays import Mass, States
from ..actions import Box
from ..errors import UserError
from ..io.atomic import write_bytes
from ..io.grids import grid_entries
from ..io.policies import policy_document
from ..io.sealed import sealed_bytes
from ..policies.base import AbstractPolicy, ActionLaw, Profile, checked_profile
from ..policies.encoders import Pooled, Unseen
from ..policies.network import NetworkPolicy
from ..policies.tables import TablePolicy
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import mean_field_at
from . import reader
from .reader import DeployedPolicy, unsealed

TOLERANCE = 1e-5
"""Largest difference of outputs, relative to the largest action if that is more than one."""


class Written(NamedTuple):
    """The files that were written, and the largest difference of their outputs from JAX."""

    policy: Path
    reader: Path
    difference: float


def export_policy(
    profile: Profile | AbstractPolicy,
    problem: Problem,
    directory: Path,
    *,
    identity: Mapping[str, Any] | None = None,
) -> Written:
    """Writes ``policy.safetensors`` and ``mufield_reader.py``, which runs it with NumPy alone.

    Args:
        profile: The policy.
        problem: The problem that it was planned for.
        directory: Where to write; made if it does not exist.
        identity: Where the policy comes from, such as its run; anything that JSON can hold.

    Raises:
        RuntimeError: If the file would decide otherwise than the policy in JAX. Nothing is written.
    """
    profile = checked_profile(profile, problem)
    data = policy_bytes(describe(profile, problem, identity=identity))
    path, beside = directory / "policy.safetensors", directory / "mufield_reader.py"
    # Read back from memory: nothing is written before it is right.
    difference = largest_difference(read_back(data), profile, problem)
    if not difference <= TOLERANCE:
        raise RuntimeError(
            f"{path} was not written: its outputs would differ by {difference:.3g} from "
            f"the policy's, expected at most {TOLERANCE:g}"
        )
    directory.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)
    write_bytes(beside, Path(reader.__file__).read_bytes())
    return Written(path, beside, difference)


def policy_bytes(policy: DeployedPolicy) -> bytes:
    """The bytes of a policy's file for the reader."""
    return sealed_bytes(policy.document, policy.arrays, kind=DeployedPolicy.kind)


def read_back(data: bytes) -> DeployedPolicy:
    """The policy, from the bytes of its file."""
    return DeployedPolicy(*unsealed(io.BytesIO(data)))


def describe(
    profile: Profile | AbstractPolicy,
    problem: Problem,
    *,
    identity: Mapping[str, Any] | None = None,
) -> DeployedPolicy:
    """The policy as the reader's object, to be written; arguments as in `export_policy`."""
    profile = checked_profile(profile, problem)
    document, arrays = policy_document(profile)
    _check_exportable(profile.join(profile.per_step), problem)
    dtype = np.result_type(*arrays.values())
    arrays = {name: np.asarray(array, dtype) for name, array in arrays.items()}
    actions = problem.actions
    if not isinstance(actions, Box):
        known = {"moves": np.asarray(actions.moves).tolist()}
    else:
        known = {"lower": list(actions.lower), "upper": list(actions.upper)}
        if "actions" in arrays:  # back in the box where rounding put them out of it
            bounds = (np.asarray(bound, dtype) for bound in (actions.lower, actions.upper))
            arrays["actions"] = np.clip(arrays["actions"], *bounds)
    about = {"version": DeployedPolicy.version, "mufield": version("mufield")}
    document = {**document.pop("policy"), **document, **about, "grid": grid_entries(problem.grid)}
    document |= {**_map(problem), "actions": known, "identity": dict(identity or {})}
    return DeployedPolicy(document, arrays)


def _map(problem: Problem) -> dict[str, Any]:
    """Where on the earth the grid is, and how far actions of one point, if it is known."""
    city, actions = problem.city, problem.actions
    if city is None:
        return {}
    place = {"longitude": city.longitude, "latitude": city.latitude, "turn": city.turn}
    if actions.dim == 2:
        largest = np.maximum(np.abs(actions.lower), np.abs(actions.upper))
        place["reach"] = (np.asarray(problem.max_move) / np.maximum(largest, 1e-9)).tolist()
    return {"map": place}


def _check_exportable(policy: AbstractPolicy, problem: Problem) -> None:
    if isinstance(policy, TablePolicy):
        inside = np.asarray(problem.actions.contains(jnp.asarray(policy.actions)))
        if not inside.all():
            bad, known = np.asarray(policy.actions)[~inside][0], problem.actions.describe()
            raise UserError(f"the policy's action {bad} is outside {known}; clip it")
    elif not isinstance(policy, NetworkPolicy):
        kind = type(policy).__name__
        raise UserError(f"readers know tables and networks, got a {kind}; make it a TablePolicy")
    elif not isinstance(policy.encoder, Unseen | Pooled):
        kind = type(policy.encoder).__name__
        raise UserError(f"expected a network that sees mu as Unseen or Pooled, got {kind}")


class Inputs(NamedTuple):
    """Random inputs of one decision: positions, (agents, axes), and a distribution, in float32."""

    states: np.ndarray
    mass: np.ndarray
    step: int


def largest_difference(
    policy: DeployedPolicy, profile: Profile, problem: Problem, seed: int = 0
) -> float:
    """Largest difference between the laws of the reader and of the policy in JAX, anywhere.

    Actions are compared relative to the largest one if that is more than one; those that are never
    drawn do not matter.
    """
    rng = np.random.default_rng(seed)
    worst = 0.0
    for step in sorted({0, profile.horizon - 1, *rng.integers(profile.horizon, size=6).tolist()}):
        inputs = random_inputs(problem, step, 200, rng)
        known = jax_law(profile, problem, inputs)
        actions, weights = np.asarray(known.actions, float), np.asarray(known.weights, float)
        found = policy.law(inputs.states, inputs.mass, step=step)
        off = np.abs(actions - found.actions).max(axis=-1) / max(1.0, float(np.abs(actions).max()))
        worst = max(worst, float(np.abs(weights - found.weights).max()))
        worst = max(worst, float(np.where(weights > 0, off, 0.0).max()))
    return worst


def random_inputs(problem: Problem, step: int, agents: int, rng: np.random.Generator) -> Inputs:
    """Random positions in free cells and a random distribution."""
    grid = problem.grid
    # Not at the borders of cells, where number formats may disagree about the cell.
    aside = rng.uniform(-0.4999, 0.4999, size=(agents, grid.dim)) * np.asarray(grid.cell_size)
    states = grid.centres[rng.integers(grid.n_cells, size=agents)] + aside
    mass = rng.dirichlet(np.ones(grid.n_cells))
    return Inputs(states.astype(np.float32), mass.astype(np.float32), step)


def jax_law(profile: Profile, problem: Problem, inputs: Inputs) -> ActionLaw:
    """The laws of all agents, by the policy in JAX."""
    dtype = problem.initial.dtype
    states, mass = jnp.asarray(inputs.states, dtype), jnp.asarray(inputs.mass, dtype)
    return _batched_law(profile, problem.grid, states, mass, jnp.asarray(inputs.step))


@eqx.filter_jit
def _batched_law(
    profile: Profile, grid: Grid, states: States, mass: Mass, step: Array
) -> ActionLaw:
    policy = profile.at(step)
    return jax.vmap(lambda state: policy.law(state, mean_field_at(grid, mass, state)))(states)
