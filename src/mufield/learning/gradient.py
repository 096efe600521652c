"""Deterministic optimistic policies by gradient ascent through the flow, the paper's class."""

import equinox as eqx
import jax
import jax.numpy as jnp

from .._types import Key, Mass, State
from ..errors import UserError
from ..flow.flow import Flow
from ..flow.moves import MoveFlow
from ..models.base import AbstractModel
from ..planning.bptt import BPTT
from ..planning.mirror import ascend
from ..planning.starts import fit_profile, table_start
from ..policies.base import AbstractPolicy, ActionLaw, Profile
from ..policies.encoders import AbstractEncoder, Unseen
from ..policies.network import NetworkPolicy, network_profile
from ..policies.tables import TablePolicy
from ..policies.tabular import SquashedTable
from ..problem import Box, Motion, Problem
from ..space.grid import Grid
from ..space.measure import MeanField
from .imagine import Imagination
from .plan import AbstractPlanner, Plan, controls_of, joint_set, mean_spread

SHAKE = 0.1
"""Random shift of new starts, before their actions are squashed."""

TRIAL = 0.25
"""Share of the steps after which the worse of two starts is given up."""


class JointPolicy(AbstractPolicy):
    """An action policy and a control policy, both deterministic, side by side."""

    action: AbstractPolicy
    control: AbstractPolicy

    @property
    def sees_mu(self) -> bool:
        """Unless neither does."""
        return self.action.sees_mu or self.control.sees_mu

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The joint move (a, eta)."""
        return _side_by_side(self.action.law(state, mu), self.control.law(state, mu))

    def at_cells(self, grid: Grid, mass: Mass) -> ActionLaw:
        """The joint moves of all cells."""
        return _side_by_side(self.action.at_cells(grid, mass), self.control.at_cells(grid, mass))


class GradientPlanner(AbstractPlanner):
    """Deterministic policies by gradient ascent through the flow, the paper's class.

    Each plan climbs from two starts side by side, the last plan and a new one, and after a while
    goes on with the better alone. The new one comes from mirror ascent over joint moves where the
    model does not see mu, because random starts end in local optima; else it is at rest.

    Attributes:
        policy: ``"network"``, one for each step, or ``"table"``, an action for each cell and step.
        steps: Steps of the ascent.
        learning_rate: Its first step size; by default 0.003 for networks and 0.1 for tables.
        table_steps: Steps on the table that networks are fitted to.
        fit_steps: Steps of that fit.
        width: Units of a network's hidden layers.
        depth: Number of hidden layers.
        mu: How networks see the population.
        sweeps: Sweeps of mirror ascent for a new start.
        points: Its moves on each axis of the action box.
    """

    policy: str = eqx.field(static=True, default="network")
    steps: int = eqx.field(static=True, default=100)
    learning_rate: float | None = eqx.field(static=True, default=None)
    table_steps: int = eqx.field(static=True, default=100)
    fit_steps: int = eqx.field(static=True, default=200)
    width: int = eqx.field(static=True, default=32)
    depth: int = eqx.field(static=True, default=2)
    mu: AbstractEncoder = eqx.field(static=True, default=Unseen())
    sweeps: int = eqx.field(static=True, default=40)
    points: int = eqx.field(static=True, default=7)

    def __check_init__(self) -> None:
        if self.policy not in ("network", "table"):
            raise UserError(f"policy must be 'network' or 'table', got {self.policy!r}")

    def prepare(self, imagination: Imagination, model: AbstractModel) -> MoveFlow | None:
        """The flow over joint moves, for new starts; none where the model sees mu."""
        if not isinstance(imagination.problem.actions, Box):
            raise UserError(
                "gradient ascent needs a box of continuous actions; plan finite sets of moves "
                "with MirrorPlanner"
            )
        flow, motion = imagination.world(model, jax.random.key(0))
        alike = controls_of(imagination, 2).shape[0]
        moves = MoveFlow(flow, motion, joint_set(imagination, self.points, 2), alike=alike)
        return None if moves.kernel is None else moves

    def first_memory(self, imagination: Imagination, key: Key) -> Profile:
        """Agents at rest, or random networks."""
        table = self._at_rest(imagination)
        return table if self.policy == "table" else self._networks(imagination, key)

    def plan(
        self,
        prepared: MoveFlow | None,
        imagination: Imagination,
        model: AbstractModel,
        memory: Profile,
        key: Key,
    ) -> Plan:
        """Climbs from the last plan and from a new start; keeps the better."""
        world_key, network_key, shake_key = jax.random.split(key, 3)
        flow, motion = imagination.world(model, world_key)
        new = self._new_table(prepared, imagination, flow, motion, shake_key)
        if self.policy == "network":
            climber = BPTT(steps=self.table_steps, learning_rate=0.1)
            table, _ = climber.climb(flow, motion, [new])
            squashed = table.join(table.per_step)
            assert isinstance(squashed, SquashedTable)
            rollout = flow.rollout(table, motion)
            new = fit_profile(
                flow,
                self._networks(imagination, network_key),
                squashed.actions,
                rollout.mass,
                steps=self.fit_steps,
            )
        rate = self.learning_rate or (0.1 if self.policy == "table" else 3e-3)
        trial = max(1, round(TRIAL * self.steps))
        joint, _ = BPTT(steps=trial, learning_rate=rate).climb(flow, motion, [memory, new])
        rest = BPTT(steps=max(1, self.steps - trial), learning_rate=rate)
        joint, value = rest.climb(flow, motion, [joint])
        rollout = flow.rollout(joint, motion)
        profile = self._deployed(imagination, joint)
        q = imagination.problem.actions.dim
        size = jnp.abs(flow.mean_actions(joint, rollout.mass)[..., q:])
        control = jnp.zeros(())
        if imagination.controls:
            control = jnp.mean(jnp.einsum("hk,hkp->hp", rollout.mass[:-1], size))
        return Plan(
            profile=profile,
            memory=joint,
            value=value,
            mass=rollout.mass,
            control=control,
            spread=mean_spread(imagination, model, profile, rollout.mass),
        )

    def _new_table(
        self,
        prepared: MoveFlow | None,
        imagination: Imagination,
        flow: Flow,
        motion: Motion,
        key: Key,
    ) -> Profile:
        start = self._at_rest(imagination)
        if prepared is not None:
            moves = eqx.tree_at(lambda m: m.flow, prepared, flow).with_motion(motion)
            state = ascend(moves, self.sweeps)
            mean = jnp.einsum("hkm,kma->hka", state.weights, moves.actions)
            start = table_start(flow.problem, mean)
        # A model that knows nothing is the same to all sides: at rest its gradient is zero.
        shaken: Profile = jax.tree.map(
            lambda x: x + SHAKE * jax.random.normal(key, x.shape, x.dtype), start
        )
        return shaken

    def _at_rest(self, imagination: Imagination) -> Profile:
        problem = imagination.flow.problem
        shape = (problem.horizon, problem.grid.n_cells, problem.actions.dim)
        rest = jnp.broadcast_to(jnp.asarray(problem.actions.rest), shape)
        return table_start(problem, rest.astype(problem.initial.dtype))

    def _networks(self, imagination: Imagination, key: Key) -> Profile:
        joint = imagination.flow.problem

        def networks(problem: Problem, key: Key) -> Profile:
            return network_profile(problem, key, width=self.width, depth=self.depth, mu=self.mu)

        if imagination.kind != "hallucinated":
            return networks(joint, key)
        action_key, control_key = jax.random.split(key)
        size = imagination.controls
        eta = eqx.tree_at(
            lambda p: p.actions,
            imagination.problem,
            Box((-1.0,) * size, (1.0,) * size),
            is_leaf=lambda x: isinstance(x, Box),
        )
        action = networks(imagination.problem, action_key)
        control = networks(eta, control_key)
        return Profile(
            per_step=JointPolicy(action.per_step, control.per_step),
            shared=JointPolicy(action.shared, control.shared),
            horizon=joint.horizon,
        )

    def _deployed(self, imagination: Imagination, joint: Profile) -> Profile:
        """What agents really do: the joint profile without eta."""
        problem = imagination.problem
        q, horizon = problem.actions.dim, problem.horizon
        policy = joint.join(joint.per_step)
        if isinstance(policy, SquashedTable):
            return Profile.stacked(TablePolicy.deterministic(policy.actions[..., :q]), horizon)
        if isinstance(policy, JointPolicy):
            return Profile(
                per_step=joint.per_step.action, shared=joint.shared.action, horizon=horizon
            )
        assert isinstance(policy, NetworkPolicy)
        assert isinstance(problem.actions, Box)
        weight, bias = policy.hidden[-1]
        own = NetworkPolicy(
            from_state=policy.from_state,
            from_mu=policy.from_mu,
            bias=policy.bias,
            hidden=(*policy.hidden[:-1], (weight[..., :q, :], bias[..., :q])),
            mu=policy.mu,
            grid=policy.grid,
            box=problem.actions,
        )
        return Profile.stacked(own, horizon)


def _side_by_side(action: ActionLaw, control: ActionLaw) -> ActionLaw:
    joint = jnp.concatenate([action.actions, control.actions], axis=-1)
    return ActionLaw(actions=joint, weights=action.weights)
