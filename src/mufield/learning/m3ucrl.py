"""M3-UCRL (algorithm M^3_outline): `init`, `ask` and `tell`.

    state = learner.init(key)
    for t in range(episodes):
        plan = learner.ask(state)                    # pi_t: eq. HallucinatedUCBOptimizationMeasure
        episode = system.run(plan.profile, run_key)  # s' = f(s, a, mu) + noise, mu' = Phi(mu, pi)
        state = learner.tell(state, episode, plan)   # m_t, sigma_t from all transitions so far

`ask` plans the policy jointly with a motion inside the confidence band m(z) + beta sigma(z) eta(z):
`mufield.learning.model_planner` compiles it, with the `optimism` and, under constraints, `safety`.
`tell` fits the models (`fitting`). Neither needs a simulator: episodes may come from a real fleet.
`mufield.learning.run.learn` is the loop. Beside it: `replanning` the rest of an episode, and
`best`, the policy to use in the end.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._progress import stage
from .._types import Key
from ..constraints.model_samples import ModelSamples
from ..episode import Episode
from ..errors import UserError
from ..flow.flow import Flow
from ..models.base import AbstractModelFamily
from ..models.data import Transitions
from ..models.gp import GaussianProcess
from ..planning.mirror import MirrorPlanner
from ..planning.planner import AbstractPlanner, Plan
from ..policies.base import Profile, as_profile, fitting_profile
from ..policies.tables import TablePolicy, random_policy
from ..problem import Problem
from .best import best_policy
from .fitting import check_reward_model, default_reward_family, fit_models
from .forecast import BestPlan
from .model_planner import ModelPlanner, on_all_cores
from .optimism import AbstractOptimism, Greedy, Hallucinated
from .replanning import replan
from .state import LearnerState, Use, key_after


class M3UCRL:
    """The learner: its settings, and the flow of the problem that all episodes plan in."""

    def __init__(
        self,
        problem: Problem,
        family: AbstractModelFamily | None = None,
        planner: AbstractPlanner | None = None,
        *,
        optimism: AbstractOptimism | None = None,
        random_first: bool = False,
        estimate_noise: bool = False,
        reward_family: AbstractModelFamily | None = None,
        pessimism: ModelSamples | None = None,
        safe: Any = None,
    ):
        """Prepares a learner.

        Args:
            problem: What is known of the system.
            family: The statistical model; a Gaussian process for any motion by default.
            planner: The planner; mirror ascent over randomised policies by default.
            optimism: `Hallucinated`, the default, `Bonus`, `Thompson` or `Greedy`.
            random_first: Whether the first episode runs the uniform random policy, instead of a
                plan under the model's prior.
            estimate_noise: Whether to plan with the noise that the model estimates, but at most
                with the problem's.
            reward_family: The statistical model of a hidden reward; by default
                `default_reward_family`.
            pessimism: For problems with constraints: the models in which they must hold.
            safe: A policy that is known to satisfy the constraints, to be run as long as no plan is
                sure to; by default agents at rest.
        """
        _check_settings(problem, family, planner, optimism, reward_family, pessimism, safe)
        if problem.constraints is not None and random_first:
            raise UserError(
                "with limits the first episode is the safe policy's; leave out random_first"
            )
        self.problem = problem
        self.family = GaussianProcess() if family is None else family
        self.optimism = Hallucinated() if optimism is None else optimism
        rest = TablePolicy.deterministic(jnp.asarray(problem.actions.rest)[None])
        self.model_planner = ModelPlanner(
            flow=Flow(problem),
            planner=MirrorPlanner() if planner is None else planner,
            pessimism=ModelSamples() if pessimism is None else pessimism,
            safe=fitting_profile(rest if safe is None else safe, problem),
            estimate_noise=estimate_noise,
        )
        # Built here, because `first_memory` may be traced, and a set of moves may not.
        self._joint_flow = self.model_planner.flow.of_problem(self.optimism.joint(problem))
        self.random_first = random_first
        self.reward_family = reward_family
        if problem.hides_reward and reward_family is None:
            self.reward_family = default_reward_family(self.family)

    def init(self, key: Key, data: Transitions | None = None) -> LearnerState:
        """The state before the first episode.

        ``data`` are transitions that are known already, from logs for example: data, but no
        episode. `Transitions.from_rows` makes them.
        """
        known = Transitions.empty(self.problem)
        return self.restore(key, known if data is None else known.join(data), (), None, None)

    def ask(self, state: LearnerState, *, initial: Any = None) -> Plan:
        """The policy to run next; raises `PlanError` if none can be found.

        A plan that is not finite is replaced by the last good policy, with a note.

        Args:
            state: What the learner knows.
            initial: Where the population is today, over the free cells or the whole box; by
                default the problem's initial distribution.
        """
        return self.plans([state], initial=initial)[0]

    def plans(self, states: list[LearnerState], *, initial: Any = None) -> list[Plan]:
        """`ask` for several runs: one compiled program, run on all cores at once.

        Not one `vmap`: planning reads a few megabytes over and over, and those of several runs
        would not fit into a core's cache.
        """
        problem = self.problem if initial is None else self.problem.starting_from(initial)

        def one(state: LearnerState) -> Plan:
            if state.episode == 0 and self.random_first:
                return self._random_plan(state)
            return self.model_planner.plan(state, problem, self.optimism, state.memory, Use.PLAN)

        return on_all_cores(one, states)

    def tell(self, state: LearnerState, episode: Episode, plan: Plan | None = None) -> LearnerState:
        """Adds an episode and fits the model anew; raises `UserError` if the episode is invalid.

        ``plan`` is the plan that was run, so that the next one may start from it.
        """
        return self.tell_many([state], [episode], [plan])[0]

    def tell_many(
        self, states: list[LearnerState], episodes: list[Episode], plans: list[Plan | None]
    ) -> list[LearnerState]:
        """`tell` for several runs; some families fit all models in one compiled program."""
        data = [state.data.append(e) for state, e in zip(states, episodes, strict=True)]
        ends = [(*state.ends, len(d)) for state, d in zip(states, data, strict=True)]
        with stage("fitting"):
            keys = [state.key for state in states]
            fits = fit_models(self.family, self.reward_family, keys, data, ends)
        return [
            LearnerState(
                data=rows,
                ends=end,
                model=fit.model,
                memory=state.memory if plan is None else plan.memory,
                profile=state.profile if plan is None else plan.profile,
                key=state.key,
                notes=fit.notes,
                reward_model=fit.reward_model,
                last_mass=None if plan is None else self._mass_before(episode),
            )
            for state, rows, end, fit, plan, episode in zip(
                states, data, ends, fits, plans, episodes, strict=True
            )
        ]

    def replan(
        self,
        state: LearnerState,
        plan: Plan,
        mass: Any,
        step: int,
        *,
        problem: Problem | None = None,
    ) -> Plan:
        """Plans the rest of an episode anew; see `mufield.learning.replanning.replan`."""
        return replan(self.model_planner, self.optimism, state, plan, mass, step, problem=problem)

    def best(
        self,
        state: LearnerState,
        *,
        cautious: bool = False,
        ran: tuple[Profile, float | None] | None = None,
        draws: int = 19,
    ) -> BestPlan:
        """The policy to use in the end; see `mufield.learning.best.best_policy`."""
        return best_policy(self.model_planner, state, cautious=cautious, ran=ran, draws=draws)

    def add(self, state: LearnerState, data: Transitions) -> LearnerState:
        """Adds transitions that belong to no episode, and fits the model anew."""
        known = (state.ends, state.memory, state.profile, state.last_mass)
        found = self.restore(state.key, state.data.join(data), *known)
        return replace(found, notes=(*state.notes, *found.notes))

    def restore(
        self,
        key: Key,
        data: Transitions,
        ends: tuple[int, ...],
        memory: Any,
        profile: Profile | None,
        last_mass: Float[Array, "steps cells"] | None = None,
    ) -> LearnerState:
        """Restores a state from what is kept on disk; the model is fitted again.

        ``profile`` is the policy of the last episode, ``last_mass`` its population before each
        move.
        """
        with stage("fitting"):
            fit = fit_models(self.family, self.reward_family, [key], [data], [ends])[0]
        if not ends:
            if fit.reward_model is not None:
                check_reward_model(fit.reward_model, self.problem)
            memory = self.first_memory(key_after(key, 0, Use.PLAN)) if memory is None else memory
        return LearnerState(
            data, ends, fit.model, memory, profile, key, fit.notes, fit.reward_model, last_mass
        )

    def first_memory(self, key: Key) -> Any:
        """What the planner starts from in the first episode."""
        planner, actions = self.model_planner.planner, self.problem.actions
        return planner.first_memory(self._joint_flow, actions, key)

    def usable_plans(self, states: list[LearnerState]) -> list[Plan]:
        """For each run the plan without optimism: the one that earns most under the model's mean.

        It starts anew, from no earlier plan, and has no control eta.
        """
        return on_all_cores(lambda state: self.model_planner.usable_plan(state, Greedy()), states)

    def _random_plan(self, state: LearnerState) -> Plan:
        problem = self.problem
        zero = jnp.zeros((), dtype=problem.initial.dtype)
        unknown = jnp.full((problem.horizon + 1, problem.grid.n_cells), jnp.nan, zero.dtype)
        return Plan(
            profile=as_profile(random_policy(problem), problem.horizon),
            memory=state.memory,
            value=zero + jnp.nan,
            mass=unknown,
            control=zero,
            note="the uniform random policy",
        )

    def _mass_before(self, episode: Episode) -> Float[Array, "steps cells"]:
        return jnp.asarray(episode.mass[:-1], dtype=self.problem.initial.dtype)


def _check_settings(problem: Problem, *settings: Any) -> None:
    """Raises if a setting of a learner has the wrong type, or makes no sense for the problem."""
    family, planner, optimism, reward_family, pessimism, safe = settings
    for name, value, kind, example in (
        ("family", family, AbstractModelFamily, "GaussianProcess() or DeepEnsemble()"),
        ("planner", planner, AbstractPlanner, "MirrorPlanner() or GradientPlanner()"),
        ("optimism", optimism, AbstractOptimism, "Greedy() or Hallucinated()"),
        ("reward_family", reward_family, AbstractModelFamily, "GaussianProcess()"),
        ("pessimism", pessimism, ModelSamples, "ModelSamples()"),
    ):
        if value is not None and not isinstance(value, kind):
            raise UserError(
                f"expected {name} to be an object such as mufield.{example}, got {value!r}; make "
                "one, or leave it out"
            )
    if reward_family is not None and not problem.hides_reward:
        raise UserError(
            "the problem's reward is known, so there is nothing to model; leave out "
            "reward_family, or hide the reward with Problem(reward=None)"
        )
    if problem.constraints is None and (pessimism is not None or safe is not None):
        raise UserError(
            "the problem has no limits; leave out pessimism and safe, or give it constraints"
        )
