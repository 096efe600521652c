"""Plans in the models of a learner: the middle of M3-UCRL, without its data and its optimism."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._progress import stage
from .._types import Action, Key, Mass, State
from ..constraints.model_samples import LastEpisode, ModelSamples
from ..flow.diagnose import diagnose
from ..flow.flow import Flow
from ..models.base import AbstractModel
from ..planning.planner import AbstractPlanner, Plan
from ..policies.base import Profile
from ..problem import Problem
from ..space.measure import mean_field_at
from .fitting import PlanError, is_finite
from .optimism import AbstractOptimism
from .safety import SafeMixture, safe_mixture, sampled_outcomes, weights_of
from .state import LearnerState, Use


@dataclass(frozen=True, eq=False)
class ModelPlanner:
    """Plans for a problem whose motion only models know.

    Attributes:
        flow: The flow of the problem, with the agents' own actions.
        planner: The planner.
        pessimism: The models in which constraints must hold.
        safe: A policy that satisfies the constraints.
        estimate_noise: Whether to plan with the noise that the model estimates.
    """

    flow: Flow
    planner: AbstractPlanner
    pessimism: ModelSamples
    safe: Profile
    estimate_noise: bool

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.flow.problem

    def usable_plan(self, state: LearnerState, optimism: AbstractOptimism) -> Plan:
        """A plan without hallucinated control, which starts anew."""
        key = state.key_for(Use.USABLE_PLAN)
        memory = self.planner.first_memory(self.flow, self.problem.actions, key)
        return self.plan(state, self.problem, optimism, memory, Use.USABLE_PLAN)

    def plan(
        self,
        state: LearnerState,
        problem: Problem,
        optimism: AbstractOptimism,
        memory: Any,
        use: Use,
        *,
        use_last_episode: bool = True,
        fallback: Profile | None = None,
    ) -> Plan:
        """Plans in the problem of a day, or of the rest of one.

        Args:
            state: What the learner knows.
            problem: The problem, with the learner's space, actions and noise.
            optimism: How models become a motion to plan with.
            memory: What the planner starts from.
            use: Which randomness to use.
            use_last_episode: Whether the models' errors on the last episode correct the margins.
            fallback: The policy to run if no finite plan is found; by default the last one.
        """
        key = state.key_for(use)
        if problem.first is not None:
            key = jax.random.fold_in(key, problem.first)
        last = None
        known = state.last_mass is not None and state.profile is not None
        if problem.constraints is not None and use_last_episode and known:
            last = (state.last_mass, state.profile)
        task = _Task(
            joint_flow=self.flow.of_problem(optimism.joint(problem)),
            own_flow=self.flow.of_problem(problem),
            safe=self.safe,
            mean_mass=state.mean_mass,
            last=last,
        )
        models = (state.model, state.reward_model)
        settings = (self.planner, optimism, self.pessimism, self.estimate_noise)
        found = jax.block_until_ready(_plan(*settings, task, *models, memory, key))
        last_good = state.profile if fallback is None else fallback
        if last_good is None and problem.constraints is not None:
            last_good = self.safe
        plan = _finite_or_last(found.plan, problem, last_good, state.memory)
        if bool(found.changed):
            # The mixture is not what was planned, so there is no J that was planned for it.
            plan = replace(plan, value=plan.value + jnp.nan, mass=found.expected)
        if float(found.share) == 0.0 and not found.resumed:
            plan = replace(plan, profile=self.safe)
        note = "; ".join(each for each in (plan.note, found.note) if each)
        return replace(plan, note=note)


class _Task(NamedTuple):
    """What is to be planned.

    Attributes:
        joint_flow: The flow of the problem with the actions that planning uses.
        own_flow: The flow of the problem with the agents' own actions.
        safe: The safe policy.
        mean_mass: The population that was seen last, on average.
        last: The population before each move of the last episode, and its policy.
    """

    joint_flow: Flow
    own_flow: Flow
    safe: Profile
    mean_mass: Mass
    last: tuple[Any, Any] | None


@eqx.filter_jit
def _plan(
    planner: AbstractPlanner,
    optimism: AbstractOptimism,
    pessimism: ModelSamples,
    estimate_noise: bool,
    task: _Task,
    model: AbstractModel,
    reward_model: AbstractModel | None,
    memory: Any,
    key: Key,
) -> SafeMixture:
    """Optimistic in what is earned; pessimistic in constraints, if there are any."""
    optimism_key, planner_key = jax.random.split(key)
    flow, own_flow = task.joint_flow, task.own_flow
    problem = own_flow.problem
    if estimate_noise:
        flow, own_flow = (with_estimated_noise(each, problem, model) for each in (flow, own_flow))
    imagined, motion = optimism.imagine(problem, flow, model, reward_model, optimism_key)
    outcomes = last = None
    if problem.constraints is not None:
        own = planner.own_moves(problem.actions).astype(problem.initial.dtype)
        if task.last is not None:
            mass, profile = task.last
            last = LastEpisode(mass, weights_of(problem, own, profile, mass)[0])
        samples_key = jax.random.fold_in(key, int(Use.MODEL_SAMPLES))
        known = (own_flow, model, task.mean_mass, own, samples_key, last)
        outcomes = sampled_outcomes(pessimism, *known)
    plan = planner.plan(imagined, motion, problem.actions, planner_key, memory, outcomes)
    return safe_mixture(outcomes, plan, task.safe, last)


@eqx.filter_jit
def with_estimated_noise(flow: Flow, problem: Problem, model: AbstractModel) -> Flow:
    """The flow with the model's noise, averaged over the space and the actions.

    At most the problem's, which the flow's windows were sized for.
    """
    dtype = problem.initial.dtype
    tried = problem.actions.points(3).astype(dtype)

    def one(state: State, action: Action) -> Array:
        mu = mean_field_at(problem.grid, problem.initial, state)
        return model.predict(state, action, mu).aleatoric

    centres = jnp.asarray(problem.grid.centres, dtype=dtype)
    found = jax.vmap(lambda s: jax.vmap(lambda a: one(s, a))(tried))(centres)
    given = jnp.asarray(problem.noise_std, dtype=dtype)
    return flow.with_noise(jnp.minimum(jnp.mean(found, axis=(0, 1)), given))


@stage("planning")
def on_all_cores(one: Callable[[LearnerState], Plan], states: list[LearnerState]) -> list[Plan]:
    """The plans of several runs, in threads."""
    # The first alone, so that the program is compiled only once.
    found = [one(states[0])]
    if len(states) > 1:
        with ThreadPoolExecutor(os.cpu_count()) as cores:
            found += cores.map(one, states[1:])
    return found


def _finite_or_last(plan: Plan, problem: Problem, last: Profile | None, memory: Any) -> Plan:
    """The plan; if it is not finite, the last good policy in its place, with that memory."""
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
