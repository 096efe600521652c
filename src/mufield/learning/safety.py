"""Constraints while the motion is not known: optimistic in J, pessimistic in constraints.

A plan must satisfy the constraints under the models that the data still allow, not only under
their mean. A plan that does not is mixed with a safe policy: as many agents follow it as the
constraints allow.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._types import Action, Key, Mass, Masses, Scalar, State
from ..constraints.model_samples import LastEpisode, ModelSamples, Outcomes
from ..errors import UserError
from ..flow.bank import kernels_of
from ..flow.dependence import sees_step
from ..flow.flow import Flow
from ..flow.moves import Weights
from ..flow.windows import Windows
from ..models.base import AbstractModel
from ..planning.planner import Plan
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import Problem
from ..space.measure import MeanField
from .optimism import MeanMotion, draw_width, within_reach

Moves = Float[Array, "moves action_dim"]


def sampled_outcomes(
    samples: ModelSamples,
    flow: Flow,
    model: AbstractModel,
    seen: Mass,
    own: Moves,
    key: Key,
    last: LastEpisode | None,
) -> Outcomes | None:
    """What policies lead to in sampled models; None to trust the plan. May be compiled.

    Args:
        samples: How many models to sample, and how far from the mean.
        flow: The problem's flow.
        model: The model of its motion.
        seen: The population that motions see here, such as the average of the last episode.
        own: The moves that policies draw from.
        key: Randomness.
        last: The last episode, if its policy is known.
    """
    if samples.draws == 0:
        return None
    problem, core = flow.problem, flow.core
    assert isinstance(core, Windows)
    if sees_step(problem, MeanMotion(model, problem.max_move)):
        raise UserError(
            "constraints cannot be satisfied yet under a model that looks at mu.step: what may "
            "happen is computed once for all steps; leave mu.step out of the model's features"
        )
    drawn = model.mean_and_draws(jax.random.split(key, 2 * samples.draws))
    width = (samples.widening * draw_width(model)).astype(seen.dtype)

    def ends(state: State, action: Action, mu: MeanField) -> Float[Array, "models dim"]:
        found = drawn(state, action, mu)
        found = found[0] + width * (found - found[0])
        return jax.vmap(lambda end: within_reach(state, end, problem.max_move))(found)

    return Outcomes.of(flow, own, kernels_of(core, ends, own, seen), last)


class SafeMixture(eqx.Module):
    """A plan, and what is left of it in the mixture that is safe.

    Attributes:
        plan: The plan, whose profile is to be run.
        share: Share of the agents that follow what was planned; the others are safe.
        resumed: Whether those do as in the last episode, instead of following the safe policy.
        worst: The least margin of any constraint in any sampled model, as a share of it.
        expected: The population's distributions under the model's mean.
        changed: Whether the profile to be run is another than the planned one.
    """

    plan: Plan
    share: Scalar
    resumed: Bool[Array, ""]
    worst: Scalar
    expected: Masses
    changed: Bool[Array, ""]

    @property
    def note(self) -> str:
        """What is unusual, in words."""
        share, worst = float(self.share), float(self.worst)
        base = "last policy" if self.resumed else "safe policy"
        remedy = "If you know a policy that satisfies the constraints, give it as safe="
        if share > 0 and -math.inf < worst < 0:
            return (
                f"the {base} violates a constraint itself; {share:.0%} of the agents follow a "
                f"plan, which may violate one by {-worst:.1%}. {remedy}"
            )
        if share == 1:
            return ""
        if share > 0:
            return (
                f"{share:.0%} of the agents follow the plan and the others the {base}: "
                "with more of them a constraint might be violated"
            )
        return f"no plan satisfies the constraints in all sampled models; running the {base}" + (
            f", which may violate one by {-worst:.1%}. {remedy}" if worst < 0 else ""
        )


def safe_mixture(
    outcomes: Outcomes | None, plan: Plan, safe: Profile, last: LastEpisode | None
) -> SafeMixture:
    """The plan, mixed with a safe policy as far as constraints ask for; may be compiled."""
    one, no = jnp.ones((), dtype=plan.mass.dtype), jnp.asarray(False)
    if outcomes is None:
        return SafeMixture(plan, one, no, -jnp.inf * one, plan.mass, no)
    problem, moves = outcomes.flow.problem, outcomes.actions
    planned, rounded = weights_of(problem, moves, plan.profile, plan.mass[:-1])
    safe_weights, _ = weights_of(problem, moves, safe)
    mixture = outcomes.mixed(planned, safe_weights, None if last is None else last.weights)
    table = TablePolicy.mixing(moves, mixture.weights, problem.grid)
    margins = outcomes.constraints.gathered(mixture.margins)
    found = eqx.tree_at(
        lambda p: (p.profile, p.least),
        plan,
        (Profile.stacked(table, problem.horizon), margins),
        is_leaf=lambda x: x is None,
    )
    return SafeMixture(
        plan=found,
        share=mixture.share,
        resumed=mixture.resumed,
        worst=jnp.min(mixture.margins),
        expected=outcomes.expected(mixture.weights),
        changed=rounded | (mixture.share < 1),
    )


def weights_of(
    problem: Problem, moves: Moves, profile: Profile, seen: Masses | None = None
) -> tuple[Weights, Bool[Array, ""]]:
    """A policy's weights on some moves; other actions are rounded to the nearest move.

    Policies see the initial distribution, or those that are given. Also returns whether any action
    with weight was rounded.
    """
    grid, shape = problem.grid, (problem.horizon, problem.grid.n_cells)
    seen = jnp.broadcast_to(problem.initial, shape) if seen is None else seen

    def one(inputs: tuple[Any, Mass, Array]) -> tuple[Array, Array]:
        part, mass, number = inputs
        policy = profile.join(part)
        law = policy.at_cells(grid, mass, number)
        # Plans have the same moves in all cells; then what is nearest to them is, too.
        shared = isinstance(policy, TablePolicy) and len(policy.actions) == 1
        actions = law.actions[:1] if shared else law.actions
        apart = jnp.sum((actions[:, :, None] - moves) ** 2, axis=-1)
        nearest = jax.nn.one_hot(jnp.argmin(apart, axis=-1), len(moves), dtype=mass.dtype)
        far = jnp.any((jnp.min(apart, axis=-1) > 1e-10) & (law.weights > 0))
        if shared:
            return law.weights @ nearest[0], far
        return jnp.einsum("km,kmn->kn", law.weights, nearest), far

    weights, rounded = jax.lax.map(one, (profile.per_step, seen, problem.steps))
    return weights, jnp.any(rounded)
