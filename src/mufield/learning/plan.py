"""What a planner of optimistic policies gives, and what all planners share."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _types
from .._types import Key, Mass, Scalar, State
from ..models.base import AbstractModel
from ..planning.hallucinate import control_points, joint_moves
from ..policies.base import Profile
from ..space.measure import MeanField
from .imagine import Imagination


class Plan(eqx.Module):
    """What a planner found.

    Attributes:
        profile: The policy profile to run; it holds no trace of eta.
        memory: What the planner starts from next time.
        value: J in the imagined world: optimistic.
        mass: The imagined flow of the population.
        control: Mean |eta| along the plan; zero without hallucinated control.
        spread: Mean epistemic standard deviation along the plan, in units of the farthest move.
        note: What people should know of it; empty for a plan like any other.
    """

    profile: Profile
    memory: Any
    value: Scalar
    mass: _types.Masses
    control: Scalar
    spread: Scalar
    note: str = eqx.field(static=True, default="")


class AbstractPlanner(eqx.Module):
    """A way to plan in the imagined world; its attributes are the settings."""

    @abstractmethod
    def prepare(self, imagination: Imagination, model: AbstractModel) -> Any:
        """What is computed once for all episodes, given any model of the family."""

    @abstractmethod
    def first_memory(self, imagination: Imagination, key: Key) -> Any:
        """What the first plan starts from."""

    @abstractmethod
    def plan(
        self, prepared: Any, imagination: Imagination, model: AbstractModel, memory: Any, key: Key
    ) -> Plan:
        """Plans a policy; a pure function that may be compiled and lifted over seeds."""


def controls_of(imagination: Imagination, points: int) -> Float[Array, "controls dim"]:
    """The etas of the joint moves; a single empty one without hallucinated control."""
    size = imagination.controls
    if size == 0:
        return jnp.zeros((1, 0))
    corners = control_points(size, points)
    # The corners of the band alone would miss its middle.
    return jnp.concatenate([jnp.zeros((1, size)), corners]) if points == 2 else corners


def joint_set(imagination: Imagination, points: int, controls: int) -> Float[Array, "joint dim"]:
    """The joint moves ``(a, eta)``, or the actions alone without hallucinated control."""
    own = imagination.problem.actions.points(points)
    return joint_moves(own, controls_of(imagination, controls))


def mean_spread(
    imagination: Imagination, model: AbstractModel, profile: Profile, mass: _types.Masses
) -> Scalar:
    """Mean epistemic standard deviation at the mean actions, in units of the farthest move."""
    problem = imagination.problem
    grid = problem.grid
    centres = jnp.asarray(grid.centres, dtype=mass.dtype)
    far = jnp.asarray(problem.max_move, dtype=mass.dtype)
    actions = imagination.flow.mean_actions(profile, mass)

    def step(now: Mass, chosen: Float[Array, "cells action_dim"]) -> Scalar:
        def one(state: State, here: Scalar, action: Array) -> Scalar:
            mu = MeanField(mass=now, here=here, grid=grid)
            return jnp.mean(model.predict(state, action, mu).epistemic / far)

        return jnp.vdot(now, jax.vmap(one)(centres, now, chosen))

    return jnp.mean(jax.lax.map(lambda inputs: step(*inputs), (mass[:-1], actions)))
