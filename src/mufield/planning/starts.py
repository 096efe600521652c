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
from .._types import Action, Key, Mass, State
from ..actions import Box
from ..constraints.lagrangian import AugmentedLagrangian
from ..constraints.model_samples import Outcomes
from ..errors import UserError
from ..flow.flow import Flow
from ..flow.motion_table import believed, steered
from ..flow.moves import MoveFlow
from ..policies.base import Profile
from ..policies.encoders import AbstractEncoder, Unseen
from ..policies.network import network_profile
from ..policies.squashed import JointPolicy, SquashedTable
from ..problem import AbstractJointMotion, Motion, Problem
from ..space.grid import Grid
from ..space.measure import MeanField
from .mirror import plain_ascent


class AtUniformMu(AbstractJointMotion):
    """A motion as if agents were spread evenly: for starts, which may be rough but must be quick.

    Attributes:
        motion: The motion itself.
        action_dim: Number of axes of the agents' actions.
    """

    motion: Motion
    action_dim: int = eqx.field(static=True)

    def believe(self, state: State, action: Action, mu: MeanField) -> Any:
        """What the motion believes where agents are spread evenly."""
        even = jnp.full_like(mu.mass, 1.0 / mu.grid.n_cells)
        return believed(self.motion, state, action, MeanField(even, even[0], mu.grid, mu.step))

    def steer(self, state: State, belief: Any, eta: Array) -> State:
        """As the motion itself steers."""
        return steered(self.motion, state, belief, eta)


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
            return network_profile(
                with_actions(problem, box),
                key,
                width=self.width,
                depth=self.depth,
                mu=self.mu,
                points=points,
            )

        joint = box_of(problem.actions)
        if joint.dim == actions.dim:
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
    outcomes: Outcomes | None = None,
) -> tuple[Profile, AugmentedLagrangian | None]:
    """A table around the mean actions that mirror ascent finds; without moves, agents at rest.

    Also the multipliers there, if the problem has constraints.
    """
    limits, problem = flow.problem.constraints, flow.problem
    if moves is None:
        lagrangian = None
        if limits is not None:
            lagrangian = AugmentedLagrangian.start(
                limits, jnp.ones((), dtype=problem.initial.dtype)
            )
        return at_rest(problem, actions, scatter), lagrangian
    state = plain_ascent(moves, sweeps, outcomes)
    return around(problem, actions, scatter, moves.actions, state.weights), state.lagrangian


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
    weight = mass[:-1] * grid.n_cells + 0.05  # a little for empty cells

    def actions(profile: Profile) -> Float[Array, "steps cells moves action_dim"]:
        def step(part: Any, now: Mass, number: Array) -> Array:
            return profile.join(part).at_cells(grid, now, number).actions

        return jax.vmap(step)(profile.per_step, mass[:-1], flow.problem.steps)

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


def without_controls(profile: Profile, grid: Grid) -> Profile:
    """The profile that agents run: plain tables or networks, without hallucinated controls."""
    policy = profile.join(profile.per_step)
    if isinstance(policy, JointPolicy):
        action = Profile(profile.per_step.action, profile.shared.action, profile.horizon)
        return without_controls(action, grid)
    if isinstance(policy, SquashedTable):
        return Profile.stacked(policy.table(grid), profile.horizon)
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
