"""The kinds of policies that gradient ascent plans: tables and networks."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from .._arrays import Key, Mass, State, Step
from ..actions import Box
from ..errors import UserError
from ..policies.base import AbstractPolicy, ActionLaw, Profile
from ..policies.encoders import AbstractEncoder, Unseen
from ..policies.network import SquashedTable, network_profile, unsquash
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField


class Table(eqx.Module):
    """Plans one action for each cell and step."""

    steps: ClassVar[int] = 300
    """Where gradient ascent flattens in the four rooms."""
    learning_rate: ClassVar[float] = 0.1

    def random(self, problem: Problem, actions: Box, key: Key) -> Profile:
        """A random table; arguments as of `Network.random`."""
        return perturbed(self.at_rest(problem, actions), key, 1.0)

    def at_rest(self, problem: Problem, actions: Box) -> Profile:
        """The table of agents at rest."""
        rest = jnp.asarray(problem.actions.rest, dtype=problem.initial.dtype)
        shape = (problem.horizon, problem.grid.n_cells, len(rest))
        return table_of(problem, actions, jnp.broadcast_to(rest, shape))


class Network(eqx.Module):
    """Plans one network for each step, the paper's class of policies.

    Attributes:
        width: Units of a hidden layer.
        depth: Number of hidden layers.
        mu: How networks see the population.
    """

    width: int = eqx.field(static=True, default=32)
    depth: int = eqx.field(static=True, default=2)
    mu: AbstractEncoder = eqx.field(static=True, default=Unseen())
    steps: ClassVar[int] = 400
    learning_rate: ClassVar[float] = 3e-3

    def random(self, problem: Problem, actions: Box, key: Key) -> Profile:
        """Networks with random weights for the agents' ``actions``, and for the problem's controls.

        Controls are the axes by which the problem's actions exceed ``actions``.
        """

        def networks(box: Box, key: Key) -> Profile:
            sizes: dict[str, Any] = {"width": self.width, "depth": self.depth, "mu": self.mu}
            return network_profile(problem.replace(actions=box), key, **sizes)

        size = problem.actions.dim - actions.dim
        if size == 0:
            return networks(actions, key)
        keys = jax.random.split(key)
        return _joint(networks(actions, keys[0]), networks(Box(-1.0, 1.0, dim=size), keys[1]))


PolicyKind = Table | Network


def table_of(problem: Problem, actions: Box, means: Float[Array, "steps cells dim"]) -> Profile:
    """A `SquashedTable` of these actions; of joint ones, a `JointPolicy`."""
    dim, size = actions.dim, problem.actions.dim - actions.dim

    def table(box: Box, means: Array) -> Profile:
        return Profile.stacked(SquashedTable(unsquash(box, means), box), problem.horizon)

    own = table(actions, means[..., :dim])
    return _joint(own, table(Box(-1.0, 1.0, dim=size), means[..., dim:])) if size else own


def perturbed(profile: Profile, key: Key, size: float) -> Profile:
    """The profile with normal noise added to all its parameters."""
    arrays = eqx.filter(profile, eqx.is_inexact_array)
    noise = optax.tree_utils.tree_random_like(key, arrays, sampler=jax.random.normal)
    return eqx.apply_updates(profile, jax.tree.map(lambda x: size * x, noise))


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
        return _pairs(*(part.law(state, mu) for part in (self.action, self.control)))

    def at_cells(self, grid: Grid, mass: Mass, step: Step) -> ActionLaw:
        """The joint actions of all cells."""
        return _pairs(*(part.at_cells(grid, mass, step) for part in (self.action, self.control)))


def _pairs(action: ActionLaw, control: ActionLaw) -> ActionLaw:
    joint = jnp.concatenate([action.actions, control.actions], axis=-1)
    return ActionLaw(actions=joint, weights=action.weights)


def _joint(action: Profile, control: Profile) -> Profile:
    per_step = JointPolicy(action.per_step, control.per_step)
    return Profile(per_step, JointPolicy(action.shared, control.shared), action.horizon)
