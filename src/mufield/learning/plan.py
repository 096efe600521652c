"""One plan in the models of a learner: compiled, finite, with notes on what is unusual."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._arrays import Key
from ..errors import UserError, is_a
from ..flow.checks import diagnose
from ..flow.flow import Flow
from ..models.base import AbstractModel, AbstractModelFamily, model_under
from ..planning.mirror_planner import MirrorPlanner
from ..planning.planner import AbstractPlanner, Plan, note_of
from ..policies.base import Profile, as_profile
from ..policies.tables import switched_at
from ..problem import Problem
from .optimism import AbstractOptimism, Hallucinated
from .state import LearnerState, PlanError, Use, is_finite

if TYPE_CHECKING:
    from ..constraints.outcomes import Mixture
    from ..constraints.reachability import Reach
    from .m3ucrl import M3UCRL
    from .safety import LastEpisode, Safety


def plan_in_models(
    learner: "M3UCRL",
    state: LearnerState,
    problem: Problem,
    optimism: AbstractOptimism,
    memory: Any,
    use: Use,
    *,
    use_last_episode: bool = True,
    fallback: Profile | None = None,
) -> Plan:
    """Plans in the models of a state, and satisfies the problem's constraints in them.

    The problem is that of a day or of the rest of one. With ``use_last_episode`` the models' errors
    on the last episode correct the margins. The policy ``fallback``, by default the last one, is
    run if no finite plan is found.
    """
    problem, key = state.as_known(problem), state.key_for(use)
    if problem.first is not None:
        key = jax.random.fold_in(key, problem.first)
    model, cases = state.model, problem.under_each_shock()
    if len(cases) == 1:  # one value of the shock leaves nothing to chance
        problem, model = cases[0], model_under(model, 0)
    safety = None if problem.constraints is None else learner.safety
    last = None if safety is None else safety.last_episode(state, use_last_episode)
    flow, planner = learner.flow.of_problem, learner.planner
    band = None if safety is None else flow(Hallucinated().joint(problem))
    flows = flow(optimism.joint(problem)), flow(problem), band
    models = model, state.reward_model
    found = _compiled(planner, optimism, safety, *flows, *models, last, memory, key)
    plan, mixture, reached = jax.block_until_ready(found)
    last_policy = state.profile if fallback is None else fallback
    if last_policy is None and safety is not None:
        last_policy = safety.policy
    if not is_finite((plan.profile, plan.value, plan.mass)):
        return _as_last_policy(plan, problem, last_policy, memory)
    kind, rounds = type(planner).__name__, "time"
    for name in ("sweeps", "steps"):
        if hasattr(planner, name):
            rounds = f"{name}, planner=mufield.{kind}({name}={2 * getattr(planner, name)})"
    noted = [plan.note, note_of(plan.outcome, rounds)]
    if reached is not None and problem.constraints is not None:
        who = "no policy with any motion that the data allow"
        noted += [note for note, _ in reached.notes(problem.constraints, who)]
    plan = replace(plan, note="; ".join(each for each in noted if each))
    return plan if safety is None else safety.finish(plan, mixture)


@eqx.filter_jit
def _compiled(
    planner: AbstractPlanner,
    optimism: AbstractOptimism,
    safety: "Safety | None",
    joint_flow: Flow,
    flow: Flow,
    band_flow: Flow | None,
    model: AbstractModel,
    reward_model: AbstractModel | None,
    last_episode: "LastEpisode | None",
    memory: Any,
    key: Key,
) -> "tuple[Plan, Mixture | None, Reach | None]":
    """Plans optimistically in what is earned, pessimistically in constraints if there are any.

    ``joint_flow`` has the actions that are planned over, ``flow`` agents' own, and ``band_flow``
    these and hallucinated controls. Also returns how the plan was mixed with a safe policy, and
    what constraints can reach: those that no motion inside the model's band can satisfy after a
    move are left out there.
    """
    optimism_key, planner_key = jax.random.split(key)
    own_moves = planner.own_moves(flow.problem.actions).astype(flow.problem.initial.dtype)
    reached = None
    if safety is not None:
        from .safety import plausible_reach  # not needed without constraints

        assert band_flow is not None
        assert flow.problem.constraints is not None
        reached = plausible_reach(flow, band_flow, model, own_moves)
        if reached is not None:
            within = reached.within(flow.problem.constraints)
            flow, joint_flow = (
                each.of_problem(each.problem.replace(constraints=within))
                for each in (flow, joint_flow)
            )
    problem = flow.problem
    imagined, motion = optimism.imagine(problem, joint_flow, model, reward_model, optimism_key)

    def plan(least: Any = None) -> Plan:
        return planner.plan(imagined, motion, problem.actions, planner_key, memory, least)

    if safety is None:
        return plan(), None, None
    samples_key = jax.random.fold_in(key, int(Use.MODEL_SAMPLES))
    assert last_episode is not None
    found = safety.plan(plan, flow, model, own_moves, last_episode, samples_key, planner_key)
    return *found, reached


def _as_last_policy(plan: Plan, problem: Problem, last: Profile | None, memory: Any) -> Plan:
    """A plan that is not finite, with the last policy and its memory in place of its own."""
    why = diagnose(problem, mass=plan.mass)
    if last is None:
        why = why or "check the reward and the learning rate, or start with random_first=1.0"
        raise PlanError(f"the first plan is not finite, and there is no earlier policy: {why}")
    note = "the plan was not finite; running the last good policy again" + (why and f": {why}")
    # Nothing else that was found out about the plan is true of that policy.
    unknown: Any = {"late_gain": None, "refined": None, "margins": None, "bands": None}
    return replace(plan, profile=last, memory=memory, note=note, **unknown)


def unplanned(problem: Problem, policy: Any, memory: Any, note: str) -> Plan:
    """A policy as a plan that expects nothing."""
    zero = jnp.zeros((), dtype=problem.initial.dtype)
    unknown = jnp.full((problem.horizon + 1, problem.grid.n_cells), jnp.nan, zero.dtype)
    profile = as_profile(policy, problem.horizon)
    return Plan(profile, memory, value=zero + jnp.nan, mass=unknown, control=zero, note=note)


def spliced(old: Plan, new: Plan, step: int, problem: Problem) -> Plan:
    """The plan of a whole episode: until a step the old one, from then on the new one."""
    # Not by slices, which would be compiled anew for every step.
    begun = jnp.arange(problem.horizon + 1)[:, None] >= step
    mass = jnp.where(begun, new.mass, old.mass)
    profile = switched_at(problem.grid, step, old.profile, new.profile, mass[:-1])
    early, late, margins = old.margins, new.margins, None
    if early is not None and late is not None and early.shape == late.shape:
        margins = jnp.where(begun[:-1], late, early)
    kept = {"memory": old.memory, "scouts": old.scouts, "bands": old.bands}
    return replace(new, profile=profile, mass=mass, margins=margins, **kept)


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
        raise UserError("with constraints the safe policy runs first; leave out random_first")
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
        raise UserError("the problem has no constraints; give it some, or omit pessimism and safe")
