"""Randomised optimistic policies by mirror ascent."""

import equinox as eqx
import jax
import jax.numpy as jnp

from .._types import Key
from ..flow.moves import MoveFlow
from ..models.base import AbstractModel
from ..planning.mirror import ascend
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from .imagine import Imagination
from .plan import AbstractPlanner, Plan, controls_of, joint_set, mean_spread


class MirrorPlanner(AbstractPlanner):
    """Randomised policies by mirror ascent over joint moves ``(a, eta)``.

    Global where the motion does not depend on mu and the reward is concave. Each plan starts
    anew, so that it is a function of the model alone.

    Attributes:
        points: Moves on each axis of an action box.
        controls: Points of eta on each axis; 2 are the corners of [-1, 1]^p and its centre.
        sweeps: Sweeps of mirror ascent.
    """

    points: int = eqx.field(static=True, default=9)
    controls: int = eqx.field(static=True, default=2)
    sweeps: int = eqx.field(static=True, default=60)

    def prepare(self, imagination: Imagination, model: AbstractModel) -> MoveFlow:
        """The flow over the joint moves."""
        flow, motion = imagination.world(model, jax.random.key(0))
        alike = controls_of(imagination, self.controls).shape[0]
        joint = joint_set(imagination, self.points, self.controls)
        return MoveFlow(flow, motion, joint, alike=alike)

    def first_memory(self, imagination: Imagination, key: Key) -> None:
        """Nothing: every plan starts anew."""

    def plan(
        self,
        prepared: MoveFlow,
        imagination: Imagination,
        model: AbstractModel,
        memory: None,
        key: Key,
    ) -> Plan:
        """Sweeps from all joint moves alike, then leaves eta out."""
        flow, motion = imagination.world(model, key)
        moves = eqx.tree_at(lambda m: m.flow, prepared, flow).with_motion(motion)
        state = ascend(moves, self.sweeps)
        weights, mass = state.weights, state.sweep.rollout.mass
        action_dim = imagination.problem.actions.dim
        each = controls_of(imagination, self.controls).shape[0]
        joint = moves.actions[0]
        kept = weights.reshape(*weights.shape[:2], -1, each).sum(axis=-1)
        actions = joint[::each, :action_dim]
        horizon = imagination.problem.horizon
        profile = Profile.stacked(TablePolicy.mixing(actions, kept), horizon)
        size = jnp.mean(jnp.abs(joint[:, action_dim:]), axis=-1) if imagination.controls else None
        control = (
            jnp.zeros(()) if size is None else jnp.einsum("hk,hkm,m->", mass[:-1], weights, size)
        )
        return Plan(
            profile=profile,
            memory=None,
            value=state.value,
            mass=mass,
            control=control / horizon,
            spread=mean_spread(imagination, model, profile, mass),
        )
