"""Plans the rest of an episode anew, from where the population was observed to be."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from ..errors import UserError
from ..planning.planner import Plan
from ..policies.joined import switched_at
from ..problem import Problem
from .model_planner import ModelPlanner, on_all_cores
from .optimism import AbstractOptimism
from .state import LearnerState, Use


def replan(
    planner: ModelPlanner,
    optimism: AbstractOptimism,
    state: LearnerState,
    plan: Plan,
    mass: Any,
    step: int,
    *,
    problem: Problem | None = None,
) -> Plan:
    """The plan of the whole episode: until the step it is the old one, from then on a new one.

    `Plan.value` is what the rest is expected to earn. `M3UCRL.tell` takes the episode with it.

    Args:
        planner: Plans in the learner's models.
        optimism: How models become a motion to plan with.
        state: What the learner knows; episodes count only when they are over.
        plan: The plan that was run until now.
        mass: Where the population is, over the free cells or the whole box.
        step: Number of the step that comes next.
        problem: The problem as it is today, if that is not what was expected: another demand, for
            example. Space, actions, noise and horizon must be the same.
    """
    expected = planner.problem
    today = expected if problem is None else _same_kind(problem, expected)
    rest = today.from_step(step, mass)

    def one(state: LearnerState) -> Plan:
        return planner.plan(
            state,
            rest,
            optimism,
            plan.memory,
            Use.REPLAN,
            use_last_episode=problem is None,
            fallback=plan.profile,
        )

    new = on_all_cores(one, [state])[0]
    # Not by slices, which would be compiled anew for every step.
    begun = jnp.arange(expected.horizon + 1)[:, None] >= step
    seen = jnp.where(begun, new.mass, plan.mass)
    profile = switched_at(expected.grid, step, plan.profile, new.profile, seen[:-1])
    least = None
    if plan.least is not None and new.least is not None and plan.least.shape == new.least.shape:
        least = jnp.where(begun[:-1], new.least, plan.least)
    return replace(new, profile=profile, memory=plan.memory, mass=seen, least=least)


def _same_kind(problem: Problem, expected: Problem) -> Problem:
    """The problem, if a plan of the expected one can go on in it."""
    for name in ("grid", "horizon", "max_move", "pay_end", "hides_reward"):
        if getattr(problem, name) != getattr(expected, name):
            raise UserError(
                f"today's problem must have the {name} of the learner's, {getattr(expected, name)}"
                f", got {getattr(problem, name)}; only reward, trips and limits may differ"
            )
    same = eqx.tree_equal((problem.actions, problem.noise), (expected.actions, expected.noise))
    if not bool(same) or (problem.constraints is None) != (expected.constraints is None):
        raise UserError(
            "today's problem must have the actions and the noise of the learner's, and limits if "
            "that has limits; only reward, trips and what the limits are may differ"
        )
    return problem
