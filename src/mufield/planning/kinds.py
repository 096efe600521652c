"""The kinds of policies that gradient ascent plans: tables and networks."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Key, Mass, State, Step
from ..actions import Box
from ..errors import UserError
from ..policies.base import AbstractPolicy, ActionLaw, Profile
from ..policies.encoders import AbstractEncoder, Unseen
from ..policies.network import SquashedTable, network_profile
from ..policies.tables import TablePolicy
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField


class Table(eqx.Module):
    """Plans one action, or several to draw from, for each cell and step.

    Attributes:
        scatter: Number of actions on each axis that an agent draws from; 1 for a deterministic
            policy. In the four rooms 5 earn 0.1 more than 3, and 7 earn no more than 5.
    """

    scatter: int = eqx.field(static=True, default=1)
    steps: ClassVar[int] = 300
    """Where gradient ascent flattens in the four rooms."""
    learning_rate: ClassVar[float] = 0.1

    def random(self, problem: Problem, actions: Box, key: Key) -> Profile:
        """A random table; arguments as of `Network.random`."""
        return perturbed(self.initial(problem, actions, key), key, 1.0)

    def initial(self, problem: Problem, actions: Box, key: Key) -> Profile:
        """Agents at rest: what the first plan of a learner starts from."""
        rest = jnp.asarray(problem.actions.rest, dtype=problem.initial.dtype)
        weights = jnp.ones((problem.horizon, problem.grid.n_cells, 1), dtype=rest.dtype)
        moves = jnp.broadcast_to(rest, (problem.grid.n_cells, 1, rest.shape[0]))
        return table_around(problem, actions, self.scatter, moves, weights)

    def as_start(self, problem: Problem, actions: Box, profile: Profile) -> Profile:
        """A profile in the form that gradient ascent changes, `SquashedTable`."""
        policy = profile.join(profile.per_step)
        if isinstance(policy, SquashedTable):
            return profile
        if not isinstance(policy, TablePolicy):
            raise UserError(
                f"a table can start from profiles of TablePolicy, got {type(policy).__name__}"
            )
        shape = (problem.horizon, problem.grid.n_cells, policy.weights.shape[-1])
        moves = jnp.broadcast_to(policy.actions, (*shape, actions.dim))
        weights = jnp.broadcast_to(policy.weights, shape)
        return table_around(problem, actions, self.scatter, moves, weights)


class Network(eqx.Module):
    """Plans one network for each step, the paper's class of policies.

    Attributes:
        width: Units of a hidden layer.
        depth: Number of hidden layers.
        mu: How networks see the population.
        scatter: As of `Table`.
    """

    width: int = eqx.field(static=True, default=32)
    depth: int = eqx.field(static=True, default=2)
    mu: AbstractEncoder = eqx.field(static=True, default=Unseen())
    scatter: int = eqx.field(static=True, default=1)
    steps: ClassVar[int] = 400
    learning_rate: ClassVar[float] = 3e-3

    def random(self, problem: Problem, actions: Box, key: Key) -> Profile:
        """Networks with random weights for the agents' ``actions``, and for the problem's controls.

        Controls are the axes by which the problem's actions exceed ``actions``.
        """

        def networks(box: Box, key: Key, points: int) -> Profile:
            sizes: dict[str, Any] = {"width": self.width, "depth": self.depth, "mu": self.mu}
            return network_profile(problem.replace(actions=box), key, points=points, **sizes)

        size = box_of(problem.actions).dim - actions.dim
        if size == 0:
            return networks(actions, key, self.scatter)
        keys = jax.random.split(key)
        controls = networks(Box(-1.0, 1.0, dim=size), keys[1], 1)
        return _side_by_side(networks(actions, keys[0], self.scatter), controls)

    def initial(self, problem: Problem, actions: Box, key: Key) -> Profile:
        """Random networks: what the first plan of a learner starts from."""
        return self.random(problem, actions, key)

    def as_start(self, problem: Problem, actions: Box, profile: Profile) -> Profile:
        """The profile itself: gradient ascent changes networks as they are."""
        return profile


PolicyKind = Table | Network


def table_around(
    problem: Problem,
    actions: Box,
    scatter: int,
    moves: Float[Array, "*steps cells moves dim"],
    weights: Float[Array, "steps cells moves"],
) -> Profile:
    """A `SquashedTable` with mean and deviation of the moves; for joint moves a `JointPolicy`."""
    average = "hkm,kma->hka" if moves.ndim == 3 else "hkm,hkma->hka"
    mean = jnp.einsum(average, weights, moves)
    square = jnp.einsum(average, weights, moves**2)
    deviation = jnp.sqrt(jnp.maximum(square - mean**2, 0.0))
    dim, horizon = actions.dim, problem.horizon
    table = SquashedTable.around(actions, mean[..., :dim], deviation[..., :dim], scatter)
    profile = Profile.stacked(table, horizon)
    size = problem.actions.dim - dim
    if size == 0:
        return profile
    controls = SquashedTable.around(
        Box(-1.0, 1.0, dim=size), mean[..., dim:], deviation[..., dim:], 1
    )
    return _side_by_side(profile, Profile.stacked(controls, horizon))


def perturbed(profile: Profile, key: Key, size: float) -> Profile:
    """The profile with normal noise added to all its parameters."""
    leaves, tree = jax.tree.flatten(profile)
    keys = jax.random.split(key, len(leaves))
    moved = [
        x + size * jax.random.normal(k, x.shape, x.dtype) if eqx.is_inexact_array(x) else x
        for x, k in zip(leaves, keys, strict=True)
    ]
    found: Profile = jax.tree.unflatten(tree, moved)
    return found


def without_controls(profile: Profile, grid: Grid) -> Profile:
    """The profile that agents run: plain tables or networks, without hallucinated controls."""
    policy = profile.join(profile.per_step)
    if isinstance(policy, JointPolicy):
        action = Profile(profile.per_step.action, profile.shared.action, profile.horizon)
        return without_controls(action, grid)
    if isinstance(policy, SquashedTable):
        return Profile.stacked(policy.table(grid), profile.horizon)
    return profile


def box_of(actions: Any) -> Box:
    """The actions, if they are a box; raises if they are a finite set of moves."""
    if not isinstance(actions, Box):
        raise UserError(
            "gradient ascent needs a box of continuous actions; for a finite set of moves use "
            "MirrorAscent, or MirrorPlanner while learning"
        )
    return actions


class JointPolicy(AbstractPolicy):
    """A policy for actions a and a deterministic one for hallucinated controls eta."""

    action: AbstractPolicy
    control: AbstractPolicy

    @property
    def sees_mu(self) -> bool:
        """Whether either of the two does."""
        return self.action.sees_mu or self.control.sees_mu

    @property
    def by_cell(self) -> bool:
        """Whether both act by cell."""
        return self.action.by_cell and self.control.by_cell

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The joint actions (a, eta)."""
        return _pairs(self.action.law(state, mu), self.control.law(state, mu))

    def at_cells(self, grid: Grid, mass: Mass, step: Step) -> ActionLaw:
        """The joint actions of all cells."""
        return _pairs(
            self.action.at_cells(grid, mass, step), self.control.at_cells(grid, mass, step)
        )


def _pairs(action: ActionLaw, control: ActionLaw) -> ActionLaw:
    # The control is the same for all actions that an agent draws from.
    shape = (*action.actions.shape[:-1], control.actions.shape[-1])
    joint = [action.actions, jnp.broadcast_to(control.actions, shape)]
    return ActionLaw(actions=jnp.concatenate(joint, axis=-1), weights=action.weights)


def _side_by_side(action: Profile, control: Profile) -> Profile:
    """Joins a profile of actions and one of controls to one of `JointPolicy`."""
    return Profile(
        per_step=JointPolicy(action.per_step, control.per_step),
        shared=JointPolicy(action.shared, control.shared),
        horizon=action.horizon,
    )
