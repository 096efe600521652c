"""Limits that hold while a learner does not know the motion yet.

A plan is optimistic in what it earns and pessimistic in its limits: they must hold under what the
model still holds possible, not only under its mean. What that is, an `AbstractPessimism` says. A
plan that is not safe by that is mixed with a safe policy, of which so many agents follow it as
keeps the limits.
"""

import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._types import Action, Key, Mass, Masses, Scalar, State
from ..errors import UserError
from ..flow.flow import Flow
from ..flow.kernels import kernels_of
from ..flow.moves import Weights
from ..flow.sight import sees_step
from ..models.base import AbstractModel
from ..planning.outcomes import AbstractOutcomes, DoubtfulOutcomes, DrawnOutcomes, Past
from ..planning.planner import Plan
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import Problem
from ..space.measure import MeanField, at_all_cells
from .best import wideness
from .optimism import MeanMotion, within_reach

Moves = Float[Array, "moves action_dim"]

REMEDY = "If you know a policy that keeps the limits, give it as safe=, or give data at hand"
"""What to do where no policy is known to be safe."""


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
        past: Past | None,
    ) -> AbstractOutcomes | None:
        """What policies may lead to; None to trust the plan. May be compiled.

        Args:
            problem: The problem.
            flow: Its flow.
            model: The model of its motion.
            seen: The population that motions see here, such as the average of the last episode.
            own: The moves that policies draw from.
            key: Randomness.
            past: The last episode, if its policy is known.
        """


class DrawnWorlds(AbstractPessimism):
    """Limits hold in all of some worlds that are drawn from what the model believes.

    Worlds differ from the expected one by beta / `BAND` times as much as draws do, because a model
    with a larger beta knows that its deviations are too small; and a little more, because the plan
    is the one, of many, that these worlds allow.

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
        past: Past | None,
    ) -> AbstractOutcomes:
        """Computes the landing kernels of all worlds, once for a plan."""
        _check_steps(problem, model)
        drawn = model.mean_and_draws(jax.random.split(key, 2 * self.draws))
        wide = (self.farther * wideness(model)).astype(seen.dtype)

        def aims(state: State, action: Action, mu: MeanField) -> Float[Array, "worlds dim"]:
            ends = drawn(state, action, mu)
            ends = ends[0] + wide * (ends - ends[0])
            return jax.vmap(lambda end: within_reach(state, end, problem.max_move))(ends)

        return DrawnOutcomes.of(flow, own, kernels_of(flow, aims, own, seen), past)


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
        past: Past | None,
    ) -> AbstractOutcomes:
        """Computes the doubt of all cells and moves."""
        far = jnp.asarray(problem.max_move, dtype=seen.dtype)

        def doubt(state: State, action: Action, mu: MeanField) -> Scalar:
            unsure = model.predict(state, action, mu).epistemic / far
            return jnp.asarray(model.beta.astype(far.dtype) * jnp.linalg.norm(unsure))

        everywhere = jnp.broadcast_to(own, (problem.grid.n_cells, *own.shape))
        doubts = at_all_cells(problem.grid, seen, doubt, everywhere)
        _check_steps(problem, model)
        mean = MeanMotion(model, problem.max_move)
        expected = kernels_of(flow, lambda *agent: mean(*agent)[None], own, seen)
        return DoubtfulOutcomes(flow, own, expected, doubts, self.lipschitz)


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
        past: Past | None,
    ) -> None:
        """Nothing."""
        return None


class Assured(eqx.Module):
    """A plan, and what is left of it in the mixture that is safe.

    Attributes:
        plan: The plan, whose profile is to be run.
        share: Share of the agents that follow what was planned; the others are safe.
        resumed: Whether those do as in the last episode, instead of following the safe policy.
        worst: The least margin of any limit that is held possible, as a share of it.
        expected: The population's distributions under the model's mean.
    """

    plan: Plan
    share: Scalar
    resumed: Bool[Array, ""]
    worst: Scalar
    expected: Masses

    @property
    def note(self) -> str:
        """What is unusual, in words."""
        share, worst = float(self.share), float(self.worst)
        base = "last policy" if self.resumed else "safe policy"
        if share > 0 and -math.inf < worst < 0:
            return (
                f"the {base} breaks a limit itself; {share:.0%} of the agents follow a plan, which "
                f"may break one by {-worst:.1%}. {REMEDY}"
            )
        if share == 1:
            return ""
        if share > 0:
            return (
                f"{share:.0%} of the agents follow the plan and the others the {base}: "
                "with more of them a limit might be broken"
            )
        return f"no plan is sure to keep the limits; running the {base}" + (
            f", which may break one by {-worst:.1%}. {REMEDY}" if worst < 0 else ""
        )


def assured(
    outcomes: AbstractOutcomes | None, plan: Plan, safe: Profile, past: Past | None
) -> Assured:
    """The plan, mixed with a safe policy as far as limits ask for; may be compiled."""
    one = jnp.ones((), dtype=plan.mass.dtype)
    if outcomes is None:
        return Assured(plan, one, jnp.asarray(False), -jnp.inf * one, plan.mass)
    problem, moves = outcomes.flow.problem, outcomes.actions
    planned = weights_of(problem, moves, plan.profile, plan.mass[:-1])
    still = weights_of(problem, moves, safe)
    mixture = outcomes.mixed(planned, still, None if past is None else past.weights)
    table = TablePolicy.mixing(moves, mixture.weights, problem.grid)
    found = eqx.tree_at(
        lambda p: (p.profile, p.least),
        plan,
        (Profile.stacked(table, problem.horizon), outcomes.limits.gathered(mixture.margins)),
        is_leaf=lambda x: x is None,
    )
    worst, expected = jnp.min(mixture.margins), outcomes.expected(mixture.weights)
    return Assured(found, mixture.share, mixture.resumed, worst, expected)


def weights_of(
    problem: Problem,
    moves: Moves,
    profile: Profile,
    seen: Float[Array, "steps cells"] | None = None,
) -> Weights:
    """A policy's weights on some moves; other actions count as the nearest move.

    Policies see the initial distribution, or those that are given.
    """
    grid, shape = problem.grid, (problem.horizon, problem.grid.n_cells)
    seen = jnp.broadcast_to(problem.initial, shape) if seen is None else seen

    def one(_: None, inputs: tuple[Any, Mass]) -> tuple[None, Float[Array, "cells moves"]]:
        part, mass = inputs
        policy = profile.join(part)
        law = policy.at_cells(grid, mass)
        # Plans have the same moves in all cells; then what is nearest to them is, too.
        shared = isinstance(policy, TablePolicy) and len(policy.actions) == 1
        actions = law.actions[:1] if shared else law.actions
        apart = jnp.sum((actions[:, :, None] - moves) ** 2, axis=-1)
        nearest = jax.nn.one_hot(jnp.argmin(apart, axis=-1), len(moves), dtype=mass.dtype)
        if shared:
            return None, law.weights @ nearest[0]
        return None, jnp.einsum("km,kmn->kn", law.weights, nearest)

    weights: Array = jax.lax.scan(one, None, (profile.per_step, seen))[1]
    return weights


def _check_steps(problem: Problem, model: AbstractModel) -> None:
    if sees_step(problem, MeanMotion(model, problem.max_move)):
        raise UserError(
            "limits cannot be kept yet under a model that looks at mu.step: what may happen is "
            "computed once for all steps; leave mu.step out of the model's features"
        )
