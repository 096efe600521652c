"""The equilibrium as a learner's plan: agents whose motion nobody knows, each for itself."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Key
from ..flow.flow import Flow
from ..planning.moves import own_moves, regular_moves
from ..planning.planner import AbstractPlanner, Actions, LeastMargins, Plan, control_size
from ..problem import Motion
from .solvers import AbstractSolver, MirrorDescent, least_exploitable


class EquilibriumPlanner(AbstractPlanner):
    """Plans Nash equilibria under the learned motion, for ``M3UCRL(problem, planner=...)``.

    With `mufield.Hallucinated` each agent responds as if the motion within the confidence band were
    the one that is best for itself. ``points`` are those of `mufield.MirrorPlanner`.
    """

    solver: AbstractSolver = eqx.field(static=True, default=MirrorDescent())
    points: int | None = eqx.field(static=True, default=None)

    def first_memory(self, flow: Flow, actions: Actions, key: Key) -> None:
        """Nothing: every plan starts anew."""

    def own_moves(self, actions: Actions) -> Float[Array, "*cells moves action_dim"]:
        """The moves without controls."""
        return own_moves(actions, self.points)

    def plan(
        self,
        flow: Flow,
        motion: Motion,
        actions: Actions,
        key: Key,
        memory: None,
        least: LeastMargins | None = None,
    ) -> Plan:
        """Solves the game from all moves equally likely; the policy is that of a alone."""
        moves = regular_moves(flow, motion, actions, points=self.points)
        state, _ = self.solver.step(moves, self.solver.init(moves), self.solver.iterations)
        weights, response = least_exploitable(moves, state)
        sizes = jnp.minimum(jnp.abs(moves.actions[..., actions.dim :]), 1.0)
        controls = jnp.einsum("hkm,kma->hka", weights, sizes)
        own = weights.reshape(*weights.shape[:2], -1, moves.group).sum(axis=-1)
        return Plan(
            profile=moves.profile(own, actions.dim),
            memory=None,
            value=response.rollout.value,
            mass=response.rollout.mass,
            control=control_size(flow.problem, response.rollout.mass, controls),
        )
