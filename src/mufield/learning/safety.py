"""Constraints while the motion is not known: optimistic in J, pessimistic in constraints.

A plan must satisfy the constraints under the models that the data still allow, not only under
their mean. A plan that does not is mixed with a safe policy: as many agents follow it as the
constraints allow.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._arrays import Action, Key, Mass, Masses, Scalar, State, Step
from ..actions import Box
from ..constraints.outcomes import Mixture, Outcomes
from ..constraints.reachability import Reach, reach
from ..errors import is_a, number, whole_number
from ..flow.flow import Flow
from ..flow.motion_table import MotionTable, tabulated
from ..flow.motions import dependence
from ..flow.moves import MoveFlow
from ..flow.paths import flow_under
from ..models.base import AbstractModel, model_under
from ..planning.moves import regular_moves
from ..planning.planner import Plan
from ..policies.base import Profile, checked_profile
from ..policies.shocks import ByShock, profile_on_path
from ..policies.tables import TablePolicy, profile_weights, rest_policy
from ..problem import Problem
from ..space.measure import MeanField
from .optimism import Hallucinated, MeanMotion, draw_width
from .state import LearnerState

Moves = Float[Array, "*cells moves action_dim"]


LastEpisode = tuple[Mass, Masses | None, Profile | None]
"""Its mean distribution; and if the policy that was run is known, all distributions and that."""


class ModelSamples(eqx.Module):
    """Constraints hold in all of some models that are sampled from the posterior.

    Samples differ from the mean by `draw_width` times as much as draws do; and by a little more,
    because the plan is the one, of many, that these samples allow.

    Attributes:
        draws: Number of models that plans are made in; they are checked in as many others, too.
            With 0 the planned model is trusted: constraints hold there, and perhaps nowhere else.
        widening: One more factor on how much samples differ from the mean.
    """

    draws: int = eqx.field(static=True, default=16)
    widening: float = eqx.field(static=True, default=1.2)

    def __check_init__(self) -> None:
        whole_number(self.draws, "the number of sampled models", 0)
        number(self.widening, "widening", 0.0)


class Safety(eqx.Module):
    """How plans satisfy constraints.

    Attributes:
        samples: The models in which constraints must hold.
        policy: A policy that satisfies the constraints.
    """

    samples: ModelSamples
    policy: Profile

    @classmethod
    def of(cls, problem: Problem, samples: ModelSamples | None, policy: Any) -> "Safety":
        """Checks what a user gave; by default usual samples, and agents at rest."""
        samples = ModelSamples() if samples is None else samples
        is_a(samples, ModelSamples, "pessimism", "make one, such as ModelSamples(), or omit it")
        policy = rest_policy(problem) if policy is None else policy
        return cls(samples, checked_profile(policy, problem))

    def last_episode(self, state: LearnerState, with_policy: bool) -> LastEpisode:
        """What `plan` needs to know of the last episode, with its policy or without."""
        if not with_policy or state.last_mass is None or state.profile is None:
            return state.mean_mass, None, None
        return state.mean_mass, state.last_mass, state.profile

    def plan(
        self,
        plan: Callable[..., Plan],
        flow: Flow,
        model: AbstractModel,
        moves: Moves,
        last_episode: LastEpisode,
        key: Key,
        planner_key: Key,
    ) -> tuple[Plan, Mixture | None]:
        """The plan, mixed with the safe policy as far as constraints ask for; may be compiled.

        The function ``plan`` takes one from weights on the ``moves`` to the least margins in
        sampled models. ``flow`` has agents' own actions; ``planner_key`` draws the plan's shocks.
        """
        if self.samples.draws == 0:  # the planned model is trusted
            return plan(), None
        (mean_mass, mass, profile), problem, last = last_episode, flow.problem, None
        assert problem.constraints is not None
        outcomes = sampled_outcomes(self.samples, flow, model, mean_mass, moves, key)
        grid, shocks = problem.grid, problem.shocks
        paths = None if shocks is None else shocks.paths(problem.paid_steps, key=planner_key)
        outcomes = replace(outcomes, paths=paths)
        stays = [jnp.full(problem.horizon, n) for n in range(1 if shocks is None else shocks.count)]

        def weights_of(profile: Profile, masses: Masses) -> tuple[Array, Array]:
            under = (profile_on_path(profile, shocks, path) for path in stays)
            found = [profile_weights(each, moves, grid, masses) for each in under]
            weights, rounded = zip(*found, strict=True)
            return jnp.concatenate(weights, axis=1), jnp.any(jnp.stack(rounded))

        if mass is not None and profile is not None:
            last, _ = weights_of(profile, mass[:-1])
            run, known = profile.per_step, (moves, last)
            if isinstance(run, TablePolicy) and run.actions.shape[1] > 1:
                known = (run.actions, run.weights)
            if paths is None:  # else what came was one path, and tells nothing of the others
                outcomes = outcomes.after(mass, *known)
        found = plan(outcomes.planned)
        planned, rounded = weights_of(found.profile, found.mass[:-1])
        safe, _ = weights_of(self.policy, jnp.broadcast_to(problem.initial, found.mass[1:].shape))
        mixture = outcomes.mixed(planned, safe, last, rounded)
        by_shock = jnp.stack(jnp.split(mixture.weights, len(stays), axis=1), axis=1)
        weights = mixture.weights if shocks is None else by_shock
        table = TablePolicy.mixing(moves, weights, grid)
        refined = found.refined
        if refined is not None:
            margins = outcomes.checked_table(refined.profile.per_step)
            refined = replace(refined, margins=problem.constraints.worst(margins))
        profile = Profile.stacked(ByShock(table) if shocks else table, problem.horizon)
        least = problem.constraints.worst(mixture.margins)
        least = least if paths is None else jnp.min(least, axis=0)
        return replace(found, profile=profile, margins=least, refined=refined), mixture

    def finish(self, plan: Plan, mixture: Mixture | None) -> Plan:
        """What `plan` returned as the plan to run, with a note on what is unusual."""
        if mixture is None:
            return plan
        refined, plan = plan.refined, replace(plan, refined=None)
        if refined is not None and bool(jnp.isfinite(refined.value)):
            assert refined.margins is not None
            if bool(jnp.min(refined.margins) >= 0):
                return replace(refined, note=plan.note)
        if bool(mixture.changed):
            # The mixture is not what was planned, so there is no J that was planned for it.
            mass = mixture.expected.reshape(len(plan.mass), -1, plan.mass.shape[1]).sum(axis=1)
            plan = replace(plan, value=plan.value + jnp.nan, mass=mass, bands=None)
        by_shock = isinstance(plan.profile.shared, ByShock)  # as must be what is planned anew
        if float(mixture.share) == 0.0 and not mixture.resumed and not by_shock:
            plan = replace(plan, profile=self.policy)
        return replace(plan, note="; ".join(each for each in (plan.note, mixture.note) if each))


def sampled_outcomes(
    samples: ModelSamples, flow: Flow, model: AbstractModel, mean_mass: Mass, moves: Moves, key: Key
) -> Outcomes:
    """What policies lead to in sampled models; may be compiled.

    Motions see ``mean_mass``, the average of the last episode. Other arguments as of `Safety.plan`.
    """
    problem, grid = flow.problem, flow.problem.grid
    if problem.shocks is not None:
        given, numbers = (mean_mass, moves, key), range(problem.shocks.count)
        under = [(flow_under(flow, jnp.int32(n)), model_under(model, n)) for n in numbers]
        every = [sampled_outcomes(samples, *each, *given).models for each in under]
        return Outcomes(flow, moves, jnp.concatenate(every, axis=-2), None)
    drawn = model.mean_and_draws(jax.random.split(key, 2 * samples.draws))
    width = (samples.widening * draw_width(model)).astype(mean_mass.dtype)

    def ends(state: State, action: Action, mu: MeanField) -> Float[Array, "models target"]:
        found = drawn(state, action, mu)
        found = found[0] + width * (found - found[0])
        return jax.vmap(lambda end: grid.cut(state, end, problem.max_move))(found)

    centres = jnp.asarray(grid.centres, dtype=mean_mass.dtype)

    def displacements(actions: Array, step: Step) -> Float[Array, "models cells moves target"]:
        def of_cell(cell: tuple[State, Scalar, Array]) -> Float[Array, "moves models target"]:
            state, here, own = cell
            mu = MeanField(mass=mean_mass, here=here, grid=grid, step=step)
            return grid.targets(state, jax.vmap(lambda action: ends(state, action, mu))(own))

        return jnp.moveaxis(jax.lax.map(of_cell, (centres, mean_mass, actions), batch_size=8), 2, 0)

    everywhere = jnp.broadcast_to(moves, (grid.n_cells, *moves.shape[-2:]))
    if dependence(problem, MeanMotion(model, problem.max_move)).step:
        every = jax.lax.map(lambda step: displacements(everywhere, step), problem.steps)
        models = jnp.swapaxes(every, 0, 1)
    else:
        models = jax.lax.map(flow.windows.kernel, displacements(everywhere, 0))
    return Outcomes(flow, moves, models, None, displacements)


def plausible_reach(flow: Flow, joint: Flow, model: AbstractModel, own: Moves) -> Reach | None:
    """What constraints can reach by any move inside the model's band; may be compiled.

    In every cell the moves are all displacements of a lattice, up to four times as fine as the
    cells, in or next to the band m(z) +- beta sigma(z) of some action, with any mass of that cell.
    On nodes, one successor is raised to the edge of its band. None if the model sees more of mu,
    and with shocks. ``joint`` has hallucinated controls, too.
    """
    problem, grid = flow.problem, flow.problem.grid
    motion = Hallucinated(1.0).motion(problem, model, jax.random.key(0))
    if problem.shocks is not None or dependence(joint.problem, motion).mass:
        return None
    if problem.on_nodes:
        return reach(regular_moves(joint, motion, problem.actions))
    table = tabulated(joint.problem, motion, own if own.ndim == 2 else problem.actions)
    if not isinstance(table, MotionTable):
        return None
    dtype, far = problem.initial.dtype, np.asarray(problem.max_move)
    for finer in (4, 2, 1):
        apart = np.asarray(grid.cell_size) / finer
        counts = np.ceil(far / apart - 1e-6).astype(int)
        if np.prod(2 * counts + 1) <= 1000:
            break
    ticks = [
        np.clip(np.arange(-n, n + 1) * each, -most, most)
        for n, each, most in zip(counts, apart, far, strict=True)
    ]
    points = np.stack(np.meshgrid(*ticks, indexing="ij"), axis=-1).reshape(-1, grid.dim)
    lattice = jnp.asarray(points, dtype)

    def of_cell(cell: tuple[State, Any]) -> Bool[Array, "moves"]:
        centre, found = cell
        mean, width = grid.displacement(centre, found.mean), model.beta_as(dtype) * found.epistemic
        # The points around a band, too, so that what lies between points is not missed.
        low, high = (jnp.clip(mean + s * width, -far, far) + s * 0.999 * apart for s in (-1, 1))
        low, high = (each.reshape(-1, 1, grid.dim).astype(dtype) for each in (low, high))
        return jnp.any(jnp.all((lattice >= low) & (lattice <= high), axis=-1), axis=0)

    centres = jnp.asarray(grid.centres, dtype)
    usable = jax.lax.map(lambda found: jax.lax.map(of_cell, (centres, found)), table.values)
    straight = flow.of_problem(problem.replace(actions=Box(-1.0, 1.0, dim=grid.dim)))
    scale = np.maximum(far, 1e-30)
    moves = MoveFlow(straight, lambda state, action, mu: state + scale * action, lattice / scale)
    return reach(moves, usable)
