"""M3-UCRL (algorithm M^3_outline): `init`, `ask` and `tell`; and `best`, the policy to use.

Neither `ask` nor `tell` needs a simulator: episodes may come from a real fleet.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._progress import stage
from .._types import Action, Key, Mass, State
from ..episode import Episode
from ..errors import UserError
from ..flow.flow import Flow
from ..models.base import AbstractModel, AbstractModelFamily
from ..models.data import KnownNoise, Transitions
from ..models.ensemble import DeepEnsemble
from ..models.gp import GaussianProcess
from ..models.kernels import Additive
from ..planning.mirror import MirrorPlanner
from ..planning.outcomes import Past
from ..planning.planner import AbstractPlanner, Plan
from ..policies.base import Profile, as_profile, fitting_profile
from ..policies.encoders import LogHere
from ..policies.joined import followed_by
from ..policies.tables import TablePolicy, random_policy
from ..problem import Problem
from ..space.measure import MeanField, mean_field_at, uniform
from .best import DRAWS, BestPlan, Outlook, Shy
from .optimism import AbstractOptimism, Greedy, Hallucinated
from .safety import AbstractPessimism, Assured, DrawnWorlds, assured, weights_of

FIT, PLAN, RUN, FIT_REWARD, USE, DRAW, JUDGE, WORLDS, REPLAN = 1, 2, 3, 4, 5, 6, 7, 8, 9
"""Uses of an episode's randomness; each has a key of its own."""

REWARD_POINTS = 64
"""Most inducing points of a reward's model. They are costly: a reward that depends on mu is
evaluated anew for every cell, move and step of every sweep."""


REWARD_VARIANCES = (0.25, 4.0)
"""Limits of a reward's kernel parameters, as factors: rewards are scaled by their own deviation."""


CHOOSING = ("choosing a policy", "choosing a cautious policy")
"""What `M3UCRL.best` is called while it is shown; its shares are of the usual times."""


class PlanError(UserError):
    """There is no usable plan or model, and no earlier one to fall back to."""


class LearnerState(eqx.Module):
    """All that a learner knows.

    Attributes:
        data: The transitions of all episodes so far, and those of logs.
        ends: Number of transitions after each episode.
        model: The model of the motion, fitted to the data.
        memory: What the planner starts from.
        profile: The last policy that was planned; None before the first.
        key: The run's randomness, from which every episode derives its own.
        notes: What went wrong since the last episode, in words.
        reward_model: The model of the reward, if the problem hides it.
        followed: Whether `profile` is what the last episode ran.
    """

    data: Transitions
    ends: tuple[int, ...] = eqx.field(static=True)
    model: AbstractModel
    memory: Any
    profile: Profile | None
    key: Key
    notes: tuple[str, ...] = eqx.field(static=True, default=())
    reward_model: AbstractModel | None = None
    followed: bool = eqx.field(static=True, default=False)

    @property
    def seen(self) -> Mass:
        """The population that was seen last, averaged; before that, an even one."""
        mass = self.data.mass
        if not len(mass):
            return uniform(self.data.problem.grid)
        last = mass[-self.data.problem.horizon :]
        return jnp.asarray(last.mean(axis=0), dtype=self.data.problem.initial.dtype)

    @property
    def last(self) -> tuple[Float[Array, "steps cells"], Profile] | None:
        """The population before each move of the last episode, and its policy if that is known."""
        if self.profile is None or not self.followed or self.ends[-1] == sum(self.ends[-2:-1]):
            return None
        end = self.ends[-1] - 1
        first = int(self.data.moment[end] - self.data.step[end])
        mass = self.data.mass[first : first + self.data.problem.horizon]
        return jnp.asarray(mass, dtype=self.data.problem.initial.dtype), self.profile

    @property
    def episode(self) -> int:
        """Number of episodes so far."""
        return len(self.ends)

    def key_for(self, use: int) -> Key:
        """The key of the next episode for one use."""
        return _key_after(self.key, self.episode, use)


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
        pessimism: AbstractPessimism | None = None,
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
            pessimism: For problems with limits: `DrawnWorlds`, the default, `AccumulatedDoubt` or
                `Trusting`.
            safe: A policy that is known to keep the limits, to be run as long as no plan is sure to
                keep them; by default agents at rest.
        """
        if reward_family is not None and not problem.hides_reward:
            raise UserError(
                "the problem's reward is known, so there is nothing to model; leave out "
                "reward_family, or hide the reward with Problem(reward=None)"
            )
        self.problem = problem
        self.family = GaussianProcess() if family is None else family
        self.planner = MirrorPlanner() if planner is None else planner
        self.optimism = Hallucinated() if optimism is None else optimism
        self.flow = Flow(self.optimism.joint(problem))
        # Agents' own actions, without eta; the tables are the same.
        self._own_flow = self.flow.of_problem(problem)
        if problem.constraints is None and (pessimism is not None or safe is not None):
            raise UserError(
                "the problem has no limits; leave out pessimism and safe, or give it constraints"
            )
        if problem.constraints is not None and random_first:
            raise UserError(
                "with limits the first episode is the safe policy's; leave out random_first"
            )
        self.pessimism = DrawnWorlds() if pessimism is None else pessimism
        rest = TablePolicy.deterministic(jnp.asarray(problem.actions.rest)[None])
        self.safe = fitting_profile(rest if safe is None else safe, problem)
        self.random_first = random_first
        self.estimate_noise = estimate_noise
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

    def add(self, state: LearnerState, data: Transitions) -> LearnerState:
        """Adds transitions that belong to no episode, and fits the model anew."""
        joined = state.data.join(data)
        found = self.restore(state.key, joined, state.ends, state.memory, state.profile)
        return replace(found, notes=(*state.notes, *found.notes), followed=state.followed)

    def first_memory(self, key: Key) -> Any:
        """What the planner starts from in the first episode."""
        return self.planner.first_memory(self.flow, self.problem.actions, key)

    def ask(self, state: LearnerState, *, initial: Any = None) -> Plan:
        """The policy to run next; raises `PlanError` if none can be found.

        A plan that is not finite is replaced by the last good policy, with a note.

        Args:
            state: What the learner knows.
            initial: Where the population is today, over the free cells or the whole box; by
                default the problem's initial distribution.
        """
        if initial is None:
            return self.plans([state])[0]
        return _on_all_cores(lambda each: self._next_plan(each, initial), [state])[0]

    def plans(self, states: list[LearnerState]) -> list[Plan]:
        """`ask` for several runs: one compiled program, run on all cores at once.

        Not one `vmap`: planning reads a few megabytes over and over, and those of several runs
        would not fit into a core's cache.
        """
        return _on_all_cores(self._next_plan, states)

    def _next_plan(self, state: LearnerState, initial: Any = None) -> Plan:
        if state.episode == 0 and self.random_first:
            return self._random_plan(state)
        task = self._task if initial is None else self._task_of(self.problem.starting_from(initial))
        key = state.key_for(PLAN)
        return self._plan(state, self.optimism, task, state.memory, key, state.profile)

    def replan(
        self,
        state: LearnerState,
        plan: Plan,
        mass: Any,
        step: int,
        *,
        problem: Problem | None = None,
    ) -> Plan:
        """Plans the rest of an episode anew, from where the population was observed to be.

        Returns the plan of the whole episode: until the step it is the old one, so that policies
        and distributions keep their places; `value` is what the rest is expected to earn. `tell`
        takes the episode with it.

        Args:
            state: What the learner knows; episodes count only when they are over.
            plan: The plan that was run until now.
            mass: Where the population is, over the free cells or the whole box.
            step: Number of the step that comes next.
            problem: The problem as it is today, if that is not what was expected: another demand,
                for example. Space, actions, noise and horizon must be the same.
        """
        today = self.problem if problem is None else _same_kind(problem, self.problem)
        task = self._task_of(today.from_step(step, mass))._replace(usual=problem is None)
        memory = self.planner.memory_from(plan.memory, step)
        key = jax.random.fold_in(state.key_for(REPLAN), step)
        late = plan.profile.from_step(step)

        def one(state: LearnerState) -> Plan:
            return self._plan(state, self.optimism, task, memory, key, late)

        rest = _on_all_cores(one, [state])[0]
        seen, profile = jnp.concatenate([plan.mass[:step], rest.mass]), rest.profile
        if step:
            early = plan.profile.until(step)
            profile = followed_by(self.problem.grid, early, profile, seen[:-1])
        least = None
        if plan.least is not None and rest.least is not None:
            least = jnp.concatenate([plan.least[:step], rest.least])
        return replace(rest, profile=profile, memory=plan.memory, mass=seen, least=least)

    def usable_plans(self, states: list[LearnerState]) -> list[Plan]:
        """For each run the plan without optimism: the one that earns most under the model's mean.

        It starts anew, from no earlier plan, and has no control eta.
        """
        return _on_all_cores(lambda state: self._usable_plan(state, Greedy()), states)

    def best(
        self,
        state: LearnerState,
        *,
        cautious: bool = False,
        ran: tuple[Profile, float | None] | None = None,
        draws: int = DRAWS,
    ) -> BestPlan:
        """The policy to use: the one that the data make best, with what can be expected of it.

        Candidates are the plan under the model's mean, the last policy, and ``ran``. The one with
        the highest J under the mean is chosen. With ``cautious`` it is the one whose interval for J
        has the highest lower end. Then ``ran`` counts with what it earned, which needs no model,
        and there is one more candidate: a plan under the mean that pays for going where the model
        is unsure, so much that the first plan would pay the half-width of its interval. If the
        problem has limits, only plans are candidates, and they keep them as those of `ask` do.

        Nothing is learned or changed; the same arguments give the same answer.

        Args:
            state: What the learner knows.
            cautious: Whether to choose by the lower end instead of by what is expected.
            ran: A policy that was run, and the J that it earned: that of the luckiest episode.
                In small populations luck is a part of that J. It is None if the episode did not
                begin as the problem says; then the model judges the policy.
            draws: Number of worlds to draw for the interval; see `BestPlan`.
        """
        if draws < 1:
            raise UserError(f"an interval needs at least one drawn world, got {draws}")
        flow = _with_noise(self.problem, self._own_flow, state.model, self.estimate_noise)
        keys = jax.random.split(state.key_for(DRAW), draws)
        models = (state.model, state.reward_model)
        outlook = Outlook(self.problem, flow, *models, keys)

        with stage(CHOOSING[cautious]) as now:

            def judge(profile: Profile, how: str, done: float) -> BestPlan:
                judged = outlook.judge(profile, how, interval=cautious)
                now.share = done
                return judged

            plan = self._usable_plan(state, Greedy())
            now.share = 0.35 if cautious else 0.6
            mean = plan.note or "planned under the model's mean"
            found = [judge(plan.profile, mean, 0.45 if cautious else 0.7)]
            if cautious:
                shy = self._usable_plan(state, Shy(outlook.price(found[0])))
                now.share = 0.85
                found.append(judge(shy.profile, shy.note or "planned at a price for doubt", 0.9))
            if self.problem.constraints is not None:
                ran = None  # only plans on all data are sure to keep the limits
            elif state.profile is not None:
                found.append(judge(state.profile, "the last policy", 0.95 if cautious else 0.75))
            if ran is not None and ran[1] is not None and cautious:
                why = "the luckiest policy, by what it earned"
                found.append(outlook.known(ran[0], ran[1], why))
            elif ran is not None:
                found.append(judge(ran[0], "the luckiest policy", 1.0 if cautious else 0.8))
            chosen = max(found, key=lambda each: each.lower)  # of several the first
            if not cautious:
                chosen = outlook.judge(chosen.profile, chosen.how)
        return replace(chosen, transitions=len(state.data))

    def _usable_plan(self, state: LearnerState, world: AbstractOptimism) -> Plan:
        key = state.key_for(USE)
        memory = self.planner.first_memory(self._own_flow, self.problem.actions, key)
        task = self._task._replace(flow=self._own_flow)
        return self._plan(state, world, task, memory, key, state.profile)

    @property
    def _task(self) -> "_Task":
        return _Task(self.problem, self.flow, self._own_flow, self.safe)

    def _task_of(self, problem: Problem) -> "_Task":
        """What is to be planned on another day, or of the rest of one."""
        flow = self.flow.of_problem(self.optimism.joint(problem))
        safe = self.safe.from_step(problem.first)
        return _Task(problem, flow, self._own_flow.of_problem(problem), safe)

    def _plan(
        self,
        state: LearnerState,
        world: AbstractOptimism,
        task: "_Task",
        memory: Any,
        key: Key,
        last: Profile | None,
    ) -> Plan:
        models, problem = (state.model, state.reward_model), task.problem
        settings, first = (self.planner, world, self.pessimism, task), problem.first
        before: tuple[Any, ...] = (state.seen, None, None)
        if problem.constraints is not None and task.usual and state.last is not None:
            mass, profile = state.last
            before = (state.seen, mass[first:], profile.from_step(first))
        found = jax.block_until_ready(
            _plan(*settings, *models, memory, before, key, self.estimate_noise)
        )
        plan = _checked(found.plan, problem, last, state.memory)
        if float(found.share) < 1.0:
            # The mixture is not what was planned, so there is no J that was planned for it.
            plan = replace(plan, value=plan.value + jnp.nan, mass=found.expected)
        if float(found.share) == 0.0 and not found.resumed:
            plan = replace(plan, profile=task.safe)
        note = "; ".join(each for each in (plan.note, found.note) if each)
        return replace(plan, note=note)

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
        fits = self._fit([state.key for state in states], data, ends)
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
                followed=plan is not None,
            )
            for state, rows, end, fit, plan in zip(states, data, ends, fits, plans, strict=True)
        ]

    def restore(
        self, key: Key, data: Transitions, ends: tuple[int, ...], memory: Any, profile: Any
    ) -> LearnerState:
        """Restores a state from what is kept on disk; the model is fitted again.

        ``profile`` is the policy of the last episode.
        """
        fit = self._fit([key], [data], [ends])[0]
        if not ends:
            if fit.reward_model is not None:
                _check_reward_model(fit.reward_model, self.problem)
            memory = self.first_memory(_key_after(key, 0, PLAN)) if memory is None else memory
        followed = bool(ends) and profile is not None
        return LearnerState(
            data, ends, fit.model, memory, profile, key, fit.notes, fit.reward_model, followed
        )

    @stage("fitting")
    def _fit(
        self, keys: list[Key], data: list[Transitions], ends: list[tuple[int, ...]]
    ) -> list["_Fit"]:
        def keys_for(use: int) -> list[Key]:
            return [_key_after(key, len(end), use) for key, end in zip(keys, ends, strict=True)]

        models = _fit_all(self.family, data, keys_for(FIT), ends, "model")
        if self.reward_family is None:
            return [_Fit(model, None, notes) for model, notes in models]
        paid = [each.of_rewards() for each in data]
        rewards = _fit_all(self.reward_family, paid, keys_for(FIT_REWARD), ends, "reward model")
        return [
            _Fit(model, reward, (*notes, *more))
            for (model, notes), (reward, more) in zip(models, rewards, strict=True)
        ]

    def _random_plan(self, state: LearnerState) -> Plan:
        problem = self.problem
        policy = as_profile(random_policy(problem), problem.horizon)
        zero = jnp.zeros((), dtype=problem.initial.dtype)
        unknown = jnp.full((problem.horizon + 1, problem.grid.n_cells), jnp.nan)
        return Plan(
            profile=policy,
            memory=state.memory,
            value=zero + jnp.nan,
            mass=unknown.astype(zero.dtype),
            control=zero,
            note="the uniform random policy",
        )


class _Task(NamedTuple):
    """What is to be planned: a problem, its flows of joint and of own actions, a safe policy.

    It is ``usual`` if only the start may differ from that of other episodes.
    """

    problem: Problem
    flow: Flow
    own_flow: Flow
    safe: Profile
    usual: bool = True


class _Fit(NamedTuple):
    """The models of one run, and what went wrong with them."""

    model: AbstractModel
    reward_model: AbstractModel | None
    notes: tuple[str, ...]


def default_reward_family(family: AbstractModelFamily) -> AbstractModelFamily:
    """The family of the motion, with kernel, features and noise that suit a reward.

    Rewards depend on mu, often through its logarithm; they are nearly sums of a part for the
    state, one for the action and one for mu, and seldom linear.
    """
    if isinstance(family, GaussianProcess):
        return replace(
            family,
            prior=Additive(),
            mu=LogHere(),
            noise=KnownNoise(),
            variances=REWARD_VARIANCES,
            exact_points=0,
            inducing=min(family.inducing, REWARD_POINTS) or REWARD_POINTS,
        )
    if isinstance(family, DeepEnsemble):
        # Rewards are scaled by their own deviation, so that a prior of one is as wide as they are.
        plain = replace(family, prior_scale=1.0, curvature=1.0, steered=0.0)
        return replace(plain, mu=LogHere(), mu_share=1.0, noise=KnownNoise())
    raise UserError(
        f"no model of the hidden reward is known to go with {type(family).__name__}; pass "
        "reward_family, for example GaussianProcess(prior=Additive(), mu=LogHere())"
    )


@eqx.filter_jit
def _plan(
    planner: AbstractPlanner,
    optimism: AbstractOptimism,
    pessimism: AbstractPessimism,
    task: _Task,
    model: AbstractModel,
    reward_model: AbstractModel | None,
    memory: Any,
    before: tuple[Any, ...],
    key: Key,
    estimate_noise: bool,
) -> Assured:
    """Optimistic in what is earned; pessimistic in limits, if there are any.

    ``before`` is what was seen before: the population on average, and in each step of the last
    episode, with the policy that it followed.
    """
    problem, flow, own_flow, safe, _ = task
    optimism_key, planner_key = jax.random.split(key)
    flow = _with_noise(problem, flow, model, estimate_noise)
    imagined, motion = optimism.imagine(problem, flow, model, reward_model, optimism_key)
    outcomes = past = None
    if problem.constraints is not None:
        own_flow = _with_noise(problem, own_flow, model, estimate_noise)
        own, worlds_key = planner.own_moves(problem.actions), jax.random.fold_in(key, WORLDS)
        own, (seen, mass, last) = own.astype(flow.problem.initial.dtype), before
        if mass is not None:
            past = Past(mass, weights_of(problem, own, last, mass))
        outcomes = pessimism.outcomes(problem, own_flow, model, seen, own, worlds_key, past)
    plan = planner.plan(imagined, motion, problem.actions, planner_key, memory, outcomes)
    return assured(outcomes, plan, safe, past)


@eqx.filter_jit
def _with_noise(problem: Problem, flow: Flow, model: AbstractModel, estimate_noise: bool) -> Flow:
    if not estimate_noise:
        return flow
    # At most the problem's noise, which the flow's kernels were sized for.
    noise = jnp.minimum(_mean_noise(problem, model), flow.noise_std)
    estimated: Flow = eqx.tree_at(lambda f: f.noise_std, flow, noise)
    return estimated


def _mean_noise(problem: Problem, model: AbstractModel) -> Float[Array, "dim"]:
    """The model's noise, averaged over the space and the actions."""
    dtype = problem.initial.dtype
    tried = problem.actions.points(3).astype(dtype)

    def one(state: State, action: Action) -> Array:
        mu = mean_field_at(problem.grid, problem.initial, state)
        return model.predict(state, action, mu).aleatoric

    centres = jnp.asarray(problem.grid.centres, dtype=dtype)
    found = jax.vmap(lambda s: jax.vmap(lambda a: one(s, a))(tried))(centres)
    return jnp.mean(found, axis=(0, 1))


@stage("planning")
def _on_all_cores(one: Callable[[LearnerState], Plan], states: list[LearnerState]) -> list[Plan]:
    # The first alone, so that the program is compiled only once.
    found = [one(states[0])]
    if len(states) > 1:
        with ThreadPoolExecutor(os.cpu_count()) as cores:
            found += cores.map(one, states[1:])
    return found


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


def _checked(plan: Plan, problem: Problem, last: Profile | None, memory: Any) -> Plan:
    """The plan; if it is not finite, the last good policy in its place, with that memory."""
    if _is_finite((plan.profile, plan.value, plan.mass)):
        return plan
    from ..flow.trouble import trouble  # seldom needed

    why = trouble(problem)
    if last is None:
        why = why or (
            "check the reward and the planner's learning rate, or start with random_first=True"
        )
        raise PlanError(
            "the first plan is not finite and there is no earlier policy to fall back to: " + why
        )
    note = "the plan was not finite; running the last good policy again" + (why and f": {why}")
    return replace(plan, profile=last, memory=memory, note=note)


def _fit_all(
    family: AbstractModelFamily,
    data: list[Transitions],
    keys: list[Key],
    ends: list[tuple[int, ...]],
    name: str,
) -> list[tuple[AbstractModel, tuple[str, ...]]]:
    """Fits the models of several runs, each with notes, which call it ``name``, on what failed."""
    try:
        models = family.fit_many(data, keys)
        if _is_finite(models):
            return [(model, ()) for model in models]
    except FloatingPointError:
        pass
    return [_last_good_fit(family, *each, name) for each in zip(data, keys, ends, strict=True)]


def _last_good_fit(
    family: AbstractModelFamily, data: Transitions, key: Key, ends: tuple[int, ...], name: str
) -> tuple[AbstractModel, tuple[str, ...]]:
    """Leaves out the last data, one episode more each time, until the fit is finite."""
    for count in sorted({0, *ends, len(data)}, reverse=True):
        notes: tuple[str, ...] = ()
        if count < len(data):
            notes = (
                f"the {name}'s fit to {len(data)} transitions is not finite; going on with that "
                f"to the first {count}",
            )
        try:
            model = family.fit(data.first(count), key)
        except FloatingPointError:
            continue
        if _is_finite(model):
            return model, notes
    raise PlanError(
        f"no fit of the {name} is finite, not even the prior; check the model's settings and "
        "the scales of the observed data"
    )


def _is_finite(tree: Any) -> bool:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)


def _check_reward_model(model: AbstractModel, problem: Problem) -> None:
    """Raises unless the model predicts one number.

    A family that ignores ``data.of_reward`` fits motions whatever it is asked for.
    """

    def mean(state: State, mass: Mass) -> Array:
        action = jnp.asarray(problem.actions.rest, dtype=mass.dtype)
        mu = MeanField(mass=mass, here=mass[0], grid=problem.grid)
        return model.predict(state, action, mu).mean

    state = jnp.zeros(problem.grid.dim, dtype=problem.initial.dtype)
    shape = eqx.filter_eval_shape(mean, state, problem.initial).shape
    if shape != (1,):
        raise UserError(
            f"a model of the reward must predict one number, the shape (1,), got {shape}; its "
            "family must fit what data.of_reward says"
        )


def _key_after(key: Key, episodes: int, use: int) -> Key:
    return jax.random.fold_in(jax.random.fold_in(key, episodes), use)
