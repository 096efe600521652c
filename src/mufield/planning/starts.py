"""The kinds of policies that gradient ascent plans, and where it starts to climb.

From random starts, gradient ascent ends in local optima. Mirror ascent does not if the motion
ignores mu and the reward is concave, so a table of the mean actions that it found is a better
start; networks are fitted to such a table.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from .. import _types
from .._types import Key, Mass, State
from ..errors import UserError
from ..flow.charge import Charge
from ..flow.flow import Flow
from ..flow.moves import MoveFlow
from ..policies.base import AbstractPolicy, ActionLaw, Profile
from ..policies.encoders import AbstractEncoder, Unseen
from ..policies.network import NetworkPolicy, network_profile
from ..policies.squash import scattered, squash, unspread, unsquash
from ..policies.tables import TablePolicy
from ..problem import Box, Problem
from ..space.grid import Grid
from ..space.measure import MeanField
from .mirror import careful_ascent
from .outcomes import AbstractOutcomes

FLOOR = 0.05
"""Weight of an empty cell in the fit, relative to a cell of average mass."""


class SquashedTable(AbstractPolicy):
    """A table by unbounded parameters, which gradient ascent changes; `table` is the table itself.

    The centre of each cell's actions is squashed to the action box by tanh. With a width, agents
    draw actions around it: those that all do the same would stay together but for the noise.

    Attributes:
        centre: Centre of each cell's actions, before they are squashed.
        width: How far actions scatter on each axis, before `softplus`; None for a single action.
        box: The action box.
        scatter: Number of different actions on each axis.
    """

    centre: Float[Array, "*steps cells action_dim"]
    width: Float[Array, "*steps cells action_dim"] | None
    box: Box
    scatter: int = eqx.field(static=True)

    @classmethod
    def around(
        cls,
        box: Box,
        mean: Float[Array, "steps cells action_dim"],
        deviation: Float[Array, "steps cells action_dim"],
        scatter: int,
    ) -> "SquashedTable":
        """The table whose actions have about this mean and this standard deviation."""
        centre = unsquash(box, mean)
        return cls(centre, unspread(box, centre, deviation) if scatter > 1 else None, box, scatter)

    @property
    def sees_mu(self) -> bool:
        """False: a table knows cells only."""
        return False

    @property
    def by_cell(self) -> bool:
        """True: all agents of a cell act alike."""
        return True

    def table(self, grid: Grid | None = None) -> TablePolicy:
        """The actions themselves."""
        if self.width is None:
            return TablePolicy.deterministic(squash(self.box, self.centre), grid)
        law = scattered(self.box, self.centre, self.width, self.scatter)
        return TablePolicy(law.actions, law.weights, grid)

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The actions of the agent's cell, all equally likely."""
        return self.table().law(state, mu)

    def at_cells(self, grid: Grid, mass: Mass) -> ActionLaw:
        """The whole table, without a look-up."""
        return self.table().at_cells(grid, mass)


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

    def at_cells(self, grid: Grid, mass: Mass) -> ActionLaw:
        """The joint actions of all cells."""
        return _pairs(self.action.at_cells(grid, mass), self.control.at_cells(grid, mass))


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
        return shaken(at_rest(problem, actions, self.scatter), key, 1.0)


class Network(eqx.Module):
    """Plans one network for each step, the paper's class of policies.

    Attributes:
        width: Units of a hidden layer.
        depth: Number of hidden layers.
        mu: How networks see the population.
        shared: Whether action and hallucinated control share one network instead of having one
            each.
        scatter: As of `Table`.
    """

    width: int = eqx.field(static=True, default=32)
    depth: int = eqx.field(static=True, default=2)
    mu: AbstractEncoder = eqx.field(static=True, default=Unseen())
    shared: bool = eqx.field(static=True, default=False)
    scatter: int = eqx.field(static=True, default=1)
    steps: ClassVar[int] = 400
    learning_rate: ClassVar[float] = 3e-3

    def __check_init__(self) -> None:
        if self.shared and self.scatter > 1:
            raise UserError(
                "a network that action and control share cannot scatter actions; leave out "
                "shared=True or scatter"
            )

    def random(self, problem: Problem, actions: Box, key: Key) -> Profile:
        """Networks with random weights for the agents' ``actions``, and for the problem's controls.

        Controls are the axes by which the problem's actions exceed ``actions``.
        """

        def networks(box: Box, key: Key, points: int) -> Profile:
            return network_profile(
                with_actions(problem, box),
                key,
                width=self.width,
                depth=self.depth,
                mu=self.mu,
                points=points,
            )

        joint = box_of(problem.actions)
        if self.shared or joint.dim == actions.dim:
            return networks(joint, key, self.scatter)
        action_key, control_key = jax.random.split(key)
        controls = Box(-1.0, 1.0, dim=joint.dim - actions.dim)
        return side_by_side(
            networks(actions, action_key, self.scatter), networks(controls, control_key, 1)
        )


PolicyKind = Table | Network


def table_start(
    flow: Flow,
    actions: Box,
    scatter: int,
    moves: MoveFlow | None,
    *,
    sweeps: int = 100,
    outcomes: AbstractOutcomes | None = None,
) -> tuple[Profile, Charge | None]:
    """A table around the mean actions that mirror ascent finds; without moves, agents at rest.

    Also what breaking limits costs there, if the problem has limits.
    """
    limits, problem = flow.problem.constraints, flow.problem
    if moves is None:
        charge = None
        if limits is not None:
            charge = Charge.start(limits, jnp.ones((), dtype=problem.initial.dtype))
        return at_rest(problem, actions, scatter), charge
    state = careful_ascent(moves, sweeps, outcomes)
    return around(problem, actions, scatter, moves.actions, state.weights), state.charge


def around(
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
    return side_by_side(profile, Profile.stacked(controls, horizon))


def at_rest(problem: Problem, actions: Box, scatter: int) -> Profile:
    """A table with the action of rest everywhere."""
    rest = jnp.asarray(problem.actions.rest, dtype=problem.initial.dtype)
    weights = jnp.ones((problem.horizon, problem.grid.n_cells, 1), dtype=rest.dtype)
    moves = jnp.broadcast_to(rest, (problem.grid.n_cells, 1, rest.shape[0]))
    return around(problem, actions, scatter, moves, weights)


def shaken(profile: Profile, key: Key, size: float) -> Profile:
    """The profile with normal noise added to all its parameters."""
    leaves, tree = jax.tree.flatten(profile)
    keys = jax.random.split(key, len(leaves))
    moved = [
        x + size * jax.random.normal(k, x.shape, x.dtype) if eqx.is_inexact_array(x) else x
        for x, k in zip(leaves, keys, strict=True)
    ]
    found: Profile = jax.tree.unflatten(tree, moved)
    return found


@eqx.filter_jit
def fit(
    flow: Flow, profile: Profile, wanted: Profile, mass: _types.Masses, *, steps: int
) -> Profile:
    """Fits a profile, such as networks, to act like another, above all where the population is.

    Args:
        flow: The problem's flow.
        profile: The profile to change.
        wanted: The profile to imitate; it must draw from as many actions in every cell.
        mass: Distributions of the episode, which policies see and by which cells are weighted.
        steps: Steps of the fit.
    """
    grid = flow.problem.grid
    weight = mass[:-1] * grid.n_cells + FLOOR

    def actions(profile: Profile) -> Float[Array, "steps cells moves action_dim"]:
        def step(part: Any, now: Mass) -> Array:
            return profile.join(part).at_cells(grid, now).actions

        return jax.vmap(step)(profile.per_step, mass[:-1])

    arrays, rest = eqx.partition(profile, eqx.is_inexact_array)
    target = actions(wanted)
    optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, steps, alpha=0.01))

    def loss(arrays: Any) -> Array:
        found = actions(eqx.combine(arrays, rest))
        return jnp.mean(weight[..., None, None] * (found - target) ** 2)

    def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        arrays, memory = carry
        updates, memory = optimiser.update(jax.grad(loss)(arrays), memory, arrays)
        return (optax.apply_updates(arrays, updates), memory), None

    (arrays, _), _ = jax.lax.scan(step, (arrays, optimiser.init(arrays)), None, length=steps)
    found: Profile = eqx.combine(arrays, rest)
    return found


def handed_out(profile: Profile, actions: Box, grid: Grid) -> Profile:
    """The profile that agents run: plain tables or networks, without hallucinated controls."""
    policy = profile.join(profile.per_step)
    if isinstance(policy, JointPolicy):
        action = Profile(profile.per_step.action, profile.shared.action, profile.horizon)
        return handed_out(action, actions, grid)
    if isinstance(policy, SquashedTable):
        return Profile.stacked(policy.table(grid), profile.horizon)
    if isinstance(policy, NetworkPolicy) and policy.box.dim > actions.dim:
        weight, bias = policy.hidden[-1]
        own = (weight[..., : actions.dim, :], bias[..., : actions.dim])
        policy = eqx.tree_at(lambda p: p.hidden[-1], policy, own)
        policy = eqx.tree_at(lambda p: p.box, policy, actions, is_leaf=lambda x: isinstance(x, Box))
        return Profile.stacked(policy, profile.horizon)
    return profile


def side_by_side(action: Profile, control: Profile) -> Profile:
    """Joins a profile of actions and one of controls to one of `JointPolicy`."""
    return Profile(
        per_step=JointPolicy(action.per_step, control.per_step),
        shared=JointPolicy(action.shared, control.shared),
        horizon=action.horizon,
    )


def with_actions(problem: Problem, actions: Any) -> Problem:
    """The problem with other actions and the same reward."""
    changed: Problem = eqx.tree_at(
        lambda p: p.actions, problem, actions, is_leaf=lambda x: x is problem.actions
    )
    return changed


def box_of(actions: Any) -> Box:
    """The actions, if they are a box; raises if they are a finite set of moves."""
    if not isinstance(actions, Box):
        raise UserError(
            "gradient ascent needs a box of continuous actions; for a finite set of moves use "
            "MirrorAscent, or MirrorPlanner while learning"
        )
    return actions


def _pairs(action: ActionLaw, control: ActionLaw) -> ActionLaw:
    # The control is the same for all actions that an agent draws from.
    shape = (*action.actions.shape[:-1], control.actions.shape[-1])
    joint = [action.actions, jnp.broadcast_to(control.actions, shape)]
    return ActionLaw(actions=jnp.concatenate(joint, axis=-1), weights=action.weights)
