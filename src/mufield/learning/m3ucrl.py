"""M3-UCRL (algorithm M^3_outline): `init`, `ask` and `tell`.

    state = learner.init(key)
    for t in range(episodes):
        plan = learner.ask(state)                    # pi_t: eq. HallucinatedUCBOptimizationMeasure
        episode = system.run(plan.profile, run_key)  # s' = f(s, a, mu) + noise, mu' = Phi(mu, pi)
        state = learner.tell(state, episode, plan)   # m_t, sigma_t from all transitions so far

`ask` plans the policy jointly with a motion inside the confidence band m(z) + beta sigma(z) eta
(`optimism`), and satisfies constraints in all models that the data allow (`safety`). `tell` fits
the models (`state`). Neither needs a simulator: episodes may come from a real fleet. `run.learn` is
the loop; `best` chooses the policy to use in the end.

Three defaults depart from the paper, whose algorithm has ``random_first=0``,
``greedy_fallback=False`` and ``optimism=Hallucinated(scale=1)``.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays import Key, Masses, as_key, device_array
from .._progress import stage
from ..episode import Episode
from ..errors import number
from ..flow.flow import Flow
from ..models.base import AbstractModelFamily, FamilyByShock
from ..models.data import Transitions
from ..planning.mirror_planner import MirrorPlanner
from ..planning.planner import AbstractPlanner, Plan
from ..policies.base import Profile
from ..policies.tables import random_policy, with_random_moves
from ..problem import Problem
from .optimism import AbstractOptimism, Greedy, Hallucinated
from .plan import check_settings, check_today, plan_in_models, spliced, unplanned
from .state import LearnerState, Use, key_after, last_good_fit, usual_family

if TYPE_CHECKING:
    from .best import BestPlan
    from .safety import ModelSamples


class M3UCRL:
    """The learner: its settings, which never change; what it knows is a `LearnerState`."""

    def __init__(
        self,
        problem: Problem,
        family: AbstractModelFamily | None = None,
        planner: AbstractPlanner | None = None,
        *,
        optimism: AbstractOptimism | None = None,
        random_first: float | None = None,
        reward_family: AbstractModelFamily | None = None,
        pessimism: "ModelSamples | None" = None,
        safe: Any = None,
        scouts: AbstractOptimism | None = None,
        greedy_fallback: bool = True,
    ):
        """Prepares a learner.

        Args:
            problem: What is known of the system.
            family: The statistical model; a Gaussian process for any motion by default, on
                nodes Dirichlet counts.
            planner: The planner; mirror ascent over randomised policies by default.
            optimism: `Hallucinated`, the default, `Bonus`, `Thompson` or `Greedy`.
            random_first: Probability that an agent's move in the first episode is random, so that
                the first data show several actions: uniform over a `MoveSet`, near rest in a box.
                By default 0.03, and 0 with constraints. Ignored with data of logs; 1 skips planning
                and runs the uniform policy.
            reward_family: The statistical model of a hidden reward; by default
                ``family.for_rewards()``.
            pessimism: For problems with constraints: the models in which they must hold.
            safe: A policy that is known to satisfy the constraints, to be run as long as no plan is
                sure to; by default agents at rest.
            scouts: The optimism of the tracked agents' own policy; None if they follow the
                population's, as in the paper. Scouts explore, without constraints, and the
                population's optimism is `Greedy` by default.
            greedy_fallback: Whether to run the greedy plan where the optimistic one promises less
                than it costs; see `mufield.learning.best.optimistic_or_greedy`.
        """
        given = (family, planner, optimism, reward_family, pessimism, safe, scouts, random_first)
        check_settings(problem, *given)
        self.problem, self.flow = problem, Flow(problem)
        self.family = usual_family(problem) if family is None else family
        if problem.shocks is not None and problem.shocks.moves:
            self.family = FamilyByShock(self.family)
        self.reward_family = reward_family
        if problem.hides_reward and reward_family is None:
            self.reward_family = self.family.for_rewards()
        self.planner = MirrorPlanner() if planner is None else planner
        usual = Hallucinated() if scouts is None else Greedy()
        self.optimism, self.scouts = usual if optimism is None else optimism, scouts
        if random_first is None:
            random_first = 0.03 if problem.constraints is None else 0.0
        self.random_first = number(random_first, "random_first", 0.0, 1.0)
        # A safe policy may be most of a plan with constraints: what optimism costs does not show.
        comparable = self.planner.maximises and problem.constraints is None
        self.greedy_fallback = greedy_fallback and comparable
        self.safety = None
        if problem.constraints is not None:
            from .safety import Safety  # not needed without constraints

            self.safety = Safety.of(problem, pessimism, safe)
        # Built here, because `first_memory` may be traced, and a set of moves may not.
        kinds = (self.optimism,) if scouts is None else (self.optimism, scouts)
        self._joint_flows = [self.flow.of_problem(kind.joint(problem)) for kind in kinds]

    def init(self, key: Key | int, data: Transitions | None = None) -> LearnerState:
        """The state before the first episode.

        ``data`` are transitions of logs, which count as no episode; see `mufield.as_transitions`.
        """
        known = Transitions.empty(self.problem)
        data = known if data is None else known.join(data)
        return self.restore(as_key(key), data, (), None, None)

    @stage("planning")
    def ask(self, state: LearnerState, *, initial: Any = None) -> Plan:
        """The policy to run next; raises `PlanError` if none can be found.

        A plan that is not finite is replaced by the last good policy, with a note.

        Args:
            state: What the learner knows.
            initial: Where the population is today, over the free cells or the whole box; by
                default the problem's initial distribution.
        """
        problem = self.problem if initial is None else self.problem.from_step(0, initial)
        if state.episode == 0 and self.random_first == 1.0:
            note = "the uniform random policy"
            return unplanned(problem, random_policy(problem), state.memory, note)
        if self.scouts is not None:
            return self._with_scouts(state, problem, self.scouts)
        plan = plan_in_models(self, state, problem, self.optimism, state.memory, Use.PLAN)
        if len(state.data):
            return self._or_greedy(state, problem, plan)
        mixed = with_random_moves(plan.profile, self.random_first, problem.actions)
        return replace(plan, profile=mixed)

    def tell(self, state: LearnerState, episode: Episode, plan: Plan | None = None) -> LearnerState:
        """Adds an episode and fits the model anew; raises `UserError` if the episode is invalid.

        ``plan`` is the plan that was run, so that the next one may start from it.
        """
        data = state.data.append(episode)
        ends = (*state.ends, len(data))
        if plan is None:
            return self.restore(state.key, data, ends, state.memory, state.profile)
        mass = device_array(np.asarray(episode.mass), self.problem.initial.dtype)
        return self.restore(state.key, data, ends, plan.memory, plan.profile, mass)

    @stage("planning")
    def replan(
        self,
        state: LearnerState,
        plan: Plan,
        mass: Any,
        step: int,
        *,
        problem: Problem | None = None,
        shock: int | None = None,
    ) -> Plan:
        """Plans the rest of an episode anew, from where the population was observed to be.

        Returns the plan of the whole episode: until the step it is the old one, from then on a new
        one. `Plan.value` is what the rest is expected to earn. `tell` takes the episode with it.

        Args:
            state: What the learner knows; episodes count only when they are over.
            plan: The plan that was run until now.
            mass: Where the population is, over the free cells or the whole box.
            step: Number of the step that comes next.
            problem: The problem as it is today, if that is not what was expected: another demand,
                for example. Space, actions, noise and horizon must be the same.
            shock: The number of the present shock, if the problem has shocks.
        """
        if problem is not None:
            check_today(problem, self.problem)
        rest = (self.problem if problem is None else problem).from_step(step, mass, shock)
        memory = plan.memory if self.scouts is None else plan.memory[0]
        settings: Any = {"use_last_episode": problem is None, "fallback": plan.profile}
        new = plan_in_models(self, state, rest, self.optimism, memory, Use.REPLAN, **settings)
        return spliced(plan, new, step, self.problem)

    def greedy_plan(self, state: LearnerState, problem: Problem | None = None) -> Plan:
        """The plan that earns most under the models' means, from no earlier plan.

        ``problem`` is today's, if that is not the learner's.
        """
        key, problem = state.key_for(Use.GREEDY_PLAN), problem or self.problem
        memory = self.planner.first_memory(self.flow, problem.actions, key)
        return plan_in_models(self, state, problem, Greedy(), memory, Use.GREEDY_PLAN)

    def best(
        self,
        state: LearnerState,
        *,
        cautious: bool = False,
        best_run: tuple[Profile, float | None] | None = None,
        draws: int = 19,
    ) -> "BestPlan":
        """The policy to use in the end; see `mufield.learning.best.best_policy`."""
        from .best import best_policy  # not needed to learn

        return best_policy(self, state, cautious=cautious, best_run=best_run, draws=draws)

    def add(self, state: LearnerState, data: Transitions) -> LearnerState:
        """Adds transitions that belong to no episode, and fits the model anew."""
        known = (state.ends, state.memory, state.profile, state.last_mass)
        found = self.restore(state.key, state.data.join(data), *known)
        return replace(found, notes=(*state.notes, *found.notes))

    @stage("fitting")
    def restore(
        self,
        key: Key,
        data: Transitions,
        ends: tuple[int, ...],
        memory: Any,
        profile: Profile | None,
        last_mass: Masses | None = None,
    ) -> LearnerState:
        """Restores a state from what is kept on disk; the model is fitted again.

        ``profile`` is the last episode's policy, ``last_mass`` its population.
        """
        (model, notes), reward_model = last_good_fit(self.family, data, key, ends), None
        if self.reward_family is not None:
            found = last_good_fit(self.reward_family, data.of_rewards(), key, ends)
            reward_model, notes = found[0], notes + found[1]
        if not ends and memory is None:
            memory = self.first_memory(key_after(key, 0, Use.PLAN))
        return LearnerState(data, ends, model, memory, profile, key, notes, reward_model, last_mass)

    def first_memory(self, key: Key) -> Any:
        """What the planner starts from in the first episode; with scouts, for both policies."""
        actions = self.problem.actions
        found = [self.planner.first_memory(flow, actions, key) for flow in self._joint_flows]
        return found[0] if self.scouts is None else tuple(found)

    def _with_scouts(
        self, state: LearnerState, problem: Problem, optimism: AbstractOptimism
    ) -> Plan:
        """The population's plan, with that of scouts."""
        memory, own = state.memory
        free = problem.replace(constraints=None)
        scouts = plan_in_models(self, state, free, optimism, own, Use.SCOUTS)
        if not len(state.data) and self.safety is None:
            # To the model's mean all policies are alike as yet; the optimistic one earns more than
            # others in most systems (benchmarks/scouts.py). Random moves of scouts cost nothing;
            # small ones teach more: with moves from the whole box they do not find the walkway.
            share = 0.5  # the other half follows the plan, to places that matter
            mixed = with_random_moves(scouts.profile, share, problem.actions)
            return replace(scouts, memory=(memory, scouts.memory), scouts=mixed)
        plan = plan_in_models(self, state, problem, self.optimism, memory, Use.PLAN)
        plan = self._or_greedy(state, problem, plan)
        return replace(plan, memory=(plan.memory, scouts.memory), scouts=scouts.profile)

    def _or_greedy(self, state: LearnerState, problem: Problem, plan: Plan) -> Plan:
        """The optimistic plan, or the greedy one where optimism promises less than it costs."""
        if not self.greedy_fallback or isinstance(self.optimism, Greedy):
            return plan
        from .best import optimistic_or_greedy  # from the second episode on

        return optimistic_or_greedy(self, state, problem, plan)
