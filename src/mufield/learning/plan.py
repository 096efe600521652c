"""One plan in the models of a learner: compiled, finite, and for several runs at once."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._progress import stage
from .._types import Key
from ..checks import is_a
from ..errors import UserError
from ..flow.checks import diagnose
from ..flow.flow import Flow
from ..models.base import AbstractModel, AbstractModelFamily
from ..planning.mirror_planner import MirrorPlanner
from ..planning.planner import AbstractPlanner, Plan
from ..policies.base import Profile, as_profile
from ..policies.tables import switched_at
from ..problem import Problem
from .optimism import AbstractOptimism
from .state import LearnerState, PlanError, Use, is_finite

if TYPE_CHECKING:
    from .safety import LastEpisode, SafeMixture, Safety


@eqx.filter_jit
def compiled_plan(
    planner: AbstractPlanner,
    optimism: AbstractOptimism,
    safety: "Safety | None",
    joint_flow: Flow,
    flow: Flow,
    model: AbstractModel,
    reward_model: AbstractModel | None,
    last_episode: "LastEpisode | None",
    memory: Any,
    key: Key,
) -> "tuple[Plan, SafeMixture | None]":
    """Plans optimistically in what is earned, pessimistically in constraints if there are any.

    Args:
        planner: The planner.
        optimism: How models become a motion to plan with.
        safety: How constraints are satisfied; None if there are none.
        joint_flow: The flow with agents' actions and hallucinated controls.
        flow: The flow with agents' actions alone.
        model: The model of the motion.
        reward_model: The model of a hidden reward.
        last_episode: What it showed, for constraints.
        memory: What the planner starts from.
        key: Randomness.

    Returns:
        The plan, and how it was mixed with a safe policy.
    """
    optimism_key, planner_key = jax.random.split(key)
    problem = flow.problem
    imagined, motion = optimism.imagine(problem, joint_flow, model, reward_model, optimism_key)

    def plan(least: Any = None) -> Plan:
        return planner.plan(imagined, motion, problem.actions, planner_key, memory, least)

    if safety is None:
        return plan(), None
    own_moves = planner.own_moves(problem.actions).astype(problem.initial.dtype)
    samples_key = jax.random.fold_in(key, int(Use.MODEL_SAMPLES))
    assert last_episode is not None
    return safety.plan(plan, flow, model, own_moves, last_episode, samples_key)


@stage("planning")
def in_threads(one: Callable[[LearnerState], Plan], states: Sequence[LearnerState]) -> list[Plan]:
    """The plans of several runs, on all cores.

    Not one `vmap`: planning reads a few megabytes over and over, and those of several runs would
    not fit into a core's cache.
    """
    # The first alone, so that the program is compiled only once.
    found = [one(states[0])]
    if len(states) > 1:
        with ThreadPoolExecutor(os.cpu_count()) as cores:
            found += cores.map(one, states[1:])
    return found


def or_last_policy(plan: Plan, problem: Problem, last: Profile | None, memory: Any) -> Plan:
    """The plan; if it is not finite, with the last policy and its memory in place of its own."""
    if is_finite((plan.profile, plan.value, plan.mass)):
        return plan
    why = diagnose(problem, mass=plan.mass)
    if last is None:
        why = why or (
            "check the reward and the planner's learning rate, or start with random_first=True"
        )
        raise PlanError(
            "the first plan is not finite and there is no earlier policy to fall back to: " + why
        )
    note = "the plan was not finite; running the last good policy again" + (why and f": {why}")
    return replace(plan, profile=last, memory=memory, note=note)


def unplanned(problem: Problem, policy: Any, memory: Any, note: str) -> Plan:
    """A policy as a plan that expects nothing."""
    zero = jnp.zeros((), dtype=problem.initial.dtype)
    unknown = jnp.full((problem.horizon + 1, problem.grid.n_cells), jnp.nan, zero.dtype)
    return Plan(
        profile=as_profile(policy, problem.horizon),
        memory=memory,
        value=zero + jnp.nan,
        mass=unknown,
        control=zero,
        note=note,
    )


def spliced(old: Plan, new: Plan, step: int, problem: Problem) -> Plan:
    """The plan of a whole episode: until a step the old one, from then on the new one."""
    # Not by slices, which would be compiled anew for every step.
    begun = jnp.arange(problem.horizon + 1)[:, None] >= step
    mass = jnp.where(begun, new.mass, old.mass)
    profile = switched_at(problem.grid, step, old.profile, new.profile, mass[:-1])
    least = None
    if old.least is not None and new.least is not None and old.least.shape == new.least.shape:
        least = jnp.where(begun[:-1], new.least, old.least)
    kept = {"memory": old.memory, "scouts": old.scouts}
    return replace(new, profile=profile, mass=mass, least=least, **kept)


def check_today(problem: Problem, expected: Problem) -> None:
    """Raises unless a plan of the expected problem can go on in today's."""
    for name in ("grid", "horizon", "max_move", "pay_end", "hides_reward"):
        if getattr(problem, name) != getattr(expected, name):
            raise UserError(
                f"today's problem must have the {name} of the learner's, {getattr(expected, name)}"
                f", got {getattr(problem, name)}; only reward, trips and constraints may differ"
            )
    same = eqx.tree_equal((problem.actions, problem.noise), (expected.actions, expected.noise))
    if not bool(same) or (problem.constraints is None) != (expected.constraints is None):
        raise UserError(
            "today's problem must have the actions and the noise of the learner's, and constraints "
            "if that has some; only reward, trips and what the constraints are may differ"
        )


def check_settings(problem: Problem, *settings: Any) -> None:
    """Raises if a setting of a learner has the wrong type, or makes no sense for the problem."""
    family, planner, optimism, reward_family, pessimism, safe, scouts, random_first = settings
    if problem.shocks is not None and not isinstance(planner, MirrorPlanner | None):
        raise UserError("with shocks only MirrorPlanner plans; leave out the planner, or give one")
    if problem.constraints is not None and random_first:
        raise UserError(
            "with constraints the first episode is the safe policy's; leave out random_first"
        )
    for name, value, kind, example in (
        ("family", family, AbstractModelFamily, "GaussianProcess() or mufield.DeepEnsemble()"),
        ("planner", planner, AbstractPlanner, "MirrorPlanner() or mufield.GradientPlanner()"),
        ("optimism", optimism, AbstractOptimism, "Greedy() or mufield.Hallucinated()"),
        ("reward_family", reward_family, AbstractModelFamily, "GaussianProcess()"),
        ("scouts", scouts, AbstractOptimism, "Hallucinated()"),
    ):
        if value is not None:
            is_a(value, kind, name, f"give an object such as mufield.{example}, or leave it out")
    # What cannot learn this problem is refused before a run has written anything.
    for each in (family, reward_family):
        if each is not None:
            each.check(problem)
    if planner is not None:
        planner.own_moves(problem.actions)
    if reward_family is not None and not problem.hides_reward:
        raise UserError(
            "the problem's reward is known, so there is nothing to model; leave out "
            "reward_family, or hide the reward with Problem(reward=None)"
        )
    if problem.constraints is None and (pessimism is not None or safe is not None):
        raise UserError(
            "the problem has no constraints; leave out pessimism and safe, or give it some"
        )
