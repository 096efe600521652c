"""Limits that hold while a learner does not know the motion yet.

A plan is optimistic in what it earns and pessimistic in its limits: they must hold under what the
model still holds possible, not only under its mean. What that is, an `AbstractPessimism` says. A
plan that is not safe by that is mixed with a safe policy, of which so many agents follow it as
keeps the limits.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Action, Key, Mass, Masses, Scalar, State
from ..errors import UserError
from ..flow.flow import Flow
from ..flow.kernels import landing_kernel
from ..flow.moves import Weights
from ..flow.sight import sees_step
from ..models.base import AbstractModel
from ..planning.outcomes import AbstractOutcomes, DoubtfulOutcomes, DrawnOutcomes
from ..planning.planner import Plan
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import Motion, Problem
from ..space.measure import MeanField, at_all_cells
from .best import drawn_motion
from .optimism import MeanMotion

Moves = Float[Array, "moves action_dim"]


class AbstractPessimism(eqx.Module):
    """What motions a learner holds possible when it keeps limits."""

    @abstractmethod
    def outcomes(
        self,
        problem: Problem,
        flow: Flow,
        model: AbstractModel,
        seen: Mass,
        own: Moves,
        key: Key,
    ) -> AbstractOutcomes | None:
        """What policies may lead to; None to trust the plan. May be compiled.

        Args:
            problem: The problem.
            flow: Its flow.
            model: The model of its motion.
            seen: The population that motions see here, such as the average of the last episode.
            own: The moves that policies draw from.
            key: Randomness.
        """


class DrawnWorlds(AbstractPessimism):
    """Limits hold in all of some worlds that are drawn from what the model believes.

    Worlds differ from the expected one by beta / 2 times as much as draws do, because a model with
    a larger beta knows that its deviations are too small; and a little more, because the plan is
    the one, of many, that these worlds allow.

    Attributes:
        draws: Number of worlds that plans are made in; they are checked in as many others, too.
        farther: One more factor on how much worlds differ from the expected one.
    """

    draws: int = eqx.field(static=True, default=16)
    farther: float = eqx.field(static=True, default=1.2)

    def __check_init__(self) -> None:
        if self.draws < 1 or not self.farther >= 0:
            raise UserError(
                "expected at least one drawn world and a factor of 0 or more, got "
                f"{self.draws} and {self.farther}"
            )

    def outcomes(
        self,
        problem: Problem,
        flow: Flow,
        model: AbstractModel,
        seen: Mass,
        own: Moves,
        key: Key,
    ) -> AbstractOutcomes:
        """Computes the landing kernels of all worlds, once for a plan."""
        own = own.astype(seen.dtype)

        def one(each: Key) -> Float[Array, "cells moves window"]:
            motion = drawn_motion(problem, model, each, self.farther)
            return _kernel(flow, motion, own, seen)

        drawn: Array = jax.lax.map(one, jax.random.split(key, 2 * self.draws))
        mean = _mean_kernel(problem, flow, model, own, seen)
        return DrawnOutcomes(flow, own, mean, drawn[: self.draws], drawn[self.draws :])


class AccumulatedDoubt(AbstractPessimism):
    """Limits hold with a margin of L times the doubt that a plan meets, as in Safe-M3-UCRL.

    Attributes:
        lipschitz: L: how much of a limit one farthest move of doubt of all agents can cost.
    """

    lipschitz: float = eqx.field(static=True, default=1.0)

    def __check_init__(self) -> None:
        if not self.lipschitz >= 0:
            raise UserError(f"lipschitz must be 0 or more, got {self.lipschitz}")

    def outcomes(
        self,
        problem: Problem,
        flow: Flow,
        model: AbstractModel,
        seen: Mass,
        own: Moves,
        key: Key,
    ) -> AbstractOutcomes:
        """Computes the doubt of all cells and moves."""
        own = own.astype(seen.dtype)
        far = jnp.asarray(problem.max_move, dtype=seen.dtype)

        def doubt(state: State, action: Action, mu: MeanField) -> Scalar:
            unsure = model.predict(state, action, mu).epistemic / far
            return jnp.asarray(model.beta.astype(far.dtype) * jnp.linalg.norm(unsure))

        everywhere = jnp.broadcast_to(own, (problem.grid.n_cells, *own.shape))
        doubts = at_all_cells(problem.grid, seen, doubt, everywhere)
        mean = _mean_kernel(problem, flow, model, own, seen)
        return DoubtfulOutcomes(flow, own, mean, doubts, self.lipschitz)


class Trusting(AbstractPessimism):
    """Limits hold in the world that is planned in, and perhaps nowhere else."""

    def outcomes(
        self,
        problem: Problem,
        flow: Flow,
        model: AbstractModel,
        seen: Mass,
        own: Moves,
        key: Key,
    ) -> None:
        """Nothing."""
        return None


class Assured(eqx.Module):
    """A plan, and what is left of it in the mixture that is safe.

    Attributes:
        plan: The plan, whose profile is to be run.
        share: Share of the agents that follow what was planned; the others are safe.
        worst: The least margin of any limit that is held possible, as a share of it.
        expected: The population's distributions under the model's mean.
    """

    plan: Plan
    share: Scalar
    worst: Scalar
    expected: Masses

    @property
    def note(self) -> str:
        """What is unusual, in words."""
        if float(self.share) == 1.0:
            return ""
        if float(self.share) > 0.0:
            return (
                f"{float(self.share):.0%} of the agents follow the plan and the others the safe "
                "policy: with more of them a limit might be broken"
            )
        return "no plan is sure to keep the limits; running the safe policy" + (
            f", which may break one by {-float(self.worst):.1%}" if self.worst < 0 else ""
        )


def assured(outcomes: AbstractOutcomes | None, plan: Plan, safe: Profile) -> Assured:
    """The plan, mixed with the safe policy as far as limits ask for; may be compiled."""
    one = jnp.ones((), dtype=plan.mass.dtype)
    if outcomes is None:
        return Assured(plan, one, -jnp.inf * one, plan.mass)
    limits, planned = outcomes.limits, weights_of(outcomes, plan.profile)
    share, weights, margins = outcomes.mixed(planned, weights_of(outcomes, safe))
    problem = outcomes.flow.problem
    table = TablePolicy.mixing(outcomes.actions, weights, problem.grid)
    mixture = Profile.stacked(table, problem.horizon)
    least = limits.gathered(margins)
    found = eqx.tree_at(
        lambda p: (p.profile, p.least), plan, (mixture, least), is_leaf=lambda x: x is None
    )
    return Assured(found, share, jnp.min(margins), outcomes.expected(weights))


def weights_of(outcomes: AbstractOutcomes, profile: Profile) -> Weights:
    """A policy's weights on the moves of the outcomes; other actions count as the nearest move."""
    problem = outcomes.flow.problem
    grid, mass, moves = problem.grid, problem.initial, outcomes.actions

    def one(part: Any) -> Float[Array, "cells moves"]:
        law = profile.join(part).at_cells(grid, mass)
        apart = jnp.sum((law.actions[:, :, None] - moves) ** 2, axis=-1)
        nearest = jax.nn.one_hot(jnp.argmin(apart, axis=-1), len(moves), dtype=mass.dtype)
        return jnp.einsum("km,kmn->kn", law.weights, nearest)

    steps = (profile.per_step, problem.horizon)
    weights: Array = jax.lax.scan(lambda _, part: (None, one(part)), None, *steps)[1]
    return weights


def _kernel(flow: Flow, motion: Motion, own: Array, seen: Mass) -> Array:
    if sees_step(flow.problem, motion):
        raise UserError(
            "limits cannot be kept yet under a model that looks at mu.step: what may happen is "
            "computed once for all steps; leave mu.step out of the model's features"
        )
    actions = jnp.broadcast_to(own, (flow.problem.grid.n_cells, *own.shape))
    kernel: Array = landing_kernel(flow, motion, actions, seen)
    return kernel


def _mean_kernel(
    problem: Problem, flow: Flow, model: AbstractModel, own: Array, seen: Mass
) -> Array:
    return _kernel(flow, MeanMotion(model, problem.max_move), own, seen)
