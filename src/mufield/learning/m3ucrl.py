"""M3-UCRL (algorithm M^3_outline): `init`, `ask` and `tell`.

Neither `ask` nor `tell` touches a simulator: a real fleet can stand between them.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .._types import Key
from ..episode import Episode
from ..errors import UserError
from ..models.base import AbstractModel, AbstractModelFamily
from ..models.data import Transitions
from ..models.ensemble import DeepEnsemble
from ..policies.base import Profile, as_profile
from ..policies.tables import random_policy
from ..problem import Problem
from .believed import reward_family as same_kind
from .fits import PlanError as PlanError
from .fits import check_reward_model, fit_all, is_finite
from .imagine import Imagination
from .mirror import MirrorPlanner
from .plan import AbstractPlanner, Plan

FIT, PLAN, RUN, FIT_REWARD = 1, 2, 3, 4
"""What an episode's randomness is used for."""


class LearnerState(eqx.Module):
    """All that a learner knows.

    Attributes:
        data: The transitions of all episodes so far.
        ends: Number of transitions after each episode.
        model: The model fitted to them.
        memory: What the planner starts from.
        profile: The last policy that was planned, none before the first.
        key: The run's randomness; every episode derives its own from it.
        notes: What went wrong since the last episode, for people.
        reward_model: The model of the reward, fitted to the same, where the problem hides it.
    """

    data: Transitions
    ends: tuple[int, ...] = eqx.field(static=True)
    model: AbstractModel
    memory: Any
    profile: Profile | None
    key: Key
    notes: tuple[str, ...] = eqx.field(static=True, default=())
    reward_model: AbstractModel | None = None

    @property
    def episode(self) -> int:
        """Number of episodes so far."""
        return len(self.ends)

    def key_for(self, use: int) -> Key:
        """The randomness of the next episode for one use."""
        return _key_after(self.key, self.episode, use)


class M3UCRL:
    """The learner: settings, and what is prepared once for all episodes.

    Attributes:
        problem: What is known of the system.
        family: The statistical model.
        reward_family: The statistical model of the reward, where the problem hides it.
        planner: The planner.
        imagination: The world that it plans in.
        first: The first episode: ``"prior"`` plans under the model's prior, ``"random"`` runs the
            uniform random policy.
        prepared: What the planner computed for all episodes.
    """

    def __init__(
        self,
        problem: Problem,
        family: AbstractModelFamily | None = None,
        planner: AbstractPlanner | None = None,
        *,
        optimism: str = "hallucinated",
        scale: float = 2 / 3,
        first: str = "prior",
        estimate_noise: bool = False,
        reward_family: AbstractModelFamily | None = None,
    ):
        """Prepares a learner.

        Args:
            problem: What is known of the system.
            family: The statistical model; a deep ensemble by default.
            planner: The planner; mirror ascent over randomised policies by default.
            optimism: ``"hallucinated"``, ``"shared"``, ``"bonus"``, ``"thompson"`` or
                ``"greedy"``; see `Imagination`.
            scale: Factor on the model's beta, or the bonus's weight. The default plans with two
                thirds of the band: one that holds the truth nearly everywhere is wider than pays
                to explore, and with all of it learning is slower (`benchmarks/learning.py`).
            first: ``"prior"`` or ``"random"``.
            estimate_noise: Whether the noise of the imagined flow is the model's estimate.
            reward_family: The statistical model of a hidden reward; by default one of the same
                kind as ``family`` that sees the logarithm of mu at the agent
                (`mufield.learning.believed.reward_family`). The reward's band is as wide, in its
                beta times ``scale``, as the motion's.
        """
        if first not in ("prior", "random"):
            raise UserError(f"first must be 'prior' or 'random', got {first!r}")
        if reward_family is not None and not problem.hides_reward:
            raise UserError(
                "the problem's reward is known, so there is nothing to model; leave out "
                "reward_family, or hide the reward with Problem(reward=None)"
            )
        self.problem = problem
        self.family = DeepEnsemble() if family is None else family
        self.planner = MirrorPlanner() if planner is None else planner
        self.imagination = Imagination(
            problem, optimism, optimism=scale, estimate_noise=estimate_noise
        )
        self.first = first
        self.reward_family: AbstractModelFamily | None = None
        if problem.hides_reward:
            self.reward_family = reward_family or same_kind(self.family)
        data, key = Transitions.empty(problem), jax.random.key(0)
        self.prepared = self.planner.prepare(
            *self._world(self.family.fit(data, key), self._reward_prior(data, key))
        )

    def init(self, key: Key) -> LearnerState:
        """The state before the first episode."""
        data = Transitions.empty(self.problem)
        return LearnerState(
            data=data,
            ends=(),
            model=self.family.fit(data, _key_after(key, 0, FIT)),
            memory=self.planner.first_memory(self.imagination, _key_after(key, 0, PLAN)),
            profile=None,
            key=key,
            reward_model=self._reward_prior(data, _key_after(key, 0, FIT_REWARD)),
        )

    def ask(self, state: LearnerState) -> Plan:
        """The policy to run next; raises `PlanError` if none can be found.

        A plan that is not finite is replaced by the last good policy, with a note.
        """
        return self.plans([state])[0]

    def plans(self, states: list[LearnerState]) -> list[Plan]:
        """The next policies of several runs: one compiled program, run on all cores at once.

        Planning reads the same few megabytes over and over. Lifted over many runs they would no
        longer fit into a core's cache, and one run after the other is faster; so each core takes
        the next run that waits.
        """

        def one(state: LearnerState) -> Plan:
            if state.episode == 0 and self.first == "random":
                return self._random_plan(state)
            plan = _plan(
                self.planner,
                self.prepared,
                *self._world(state.model, state.reward_model),
                state.memory,
                state.key_for(PLAN),
            )
            return _checked(jax.block_until_ready(plan), state)

        # The first alone, so that the program is compiled only once.
        found = [one(states[0])]
        if len(states) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as cores:
                found += cores.map(one, states[1:])
        return found

    def tell(self, state: LearnerState, episode: Episode, plan: Plan | None = None) -> LearnerState:
        """Adds an episode and fits the model anew; raises, and changes nothing, if it is unfit.

        Args:
            state: The state that was asked.
            episode: What was observed.
            plan: The plan that was run, so that the next one may start from it.
        """
        return self.tell_many([state], [episode], [plan])[0]

    def tell_many(
        self,
        states: list[LearnerState],
        episodes: list[Episode],
        plans: list[Plan | None],
    ) -> list[LearnerState]:
        """`tell` for several runs; families that can fit all models in one program."""
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
            )
            for state, rows, end, fit, plan in zip(states, data, ends, fits, plans, strict=True)
        ]

    def restore(
        self, key: Key, data: Transitions, ends: tuple[int, ...], memory: Any, profile: Any
    ) -> LearnerState:
        """The state of a run from what is kept on disk: the model is fitted again."""
        if not ends:
            return self.init(key)
        fit = self._fit([key], [data], [ends])[0]
        return LearnerState(
            data, ends, fit.model, memory, profile, key, fit.notes, fit.reward_model
        )

    def _world(
        self, model: AbstractModel, reward_model: AbstractModel | None
    ) -> tuple[Imagination, AbstractModel]:
        """What is planned in, with models in the form that planning needs."""
        if self.imagination.kind == "thompson":
            model = model.drawable()
            reward_model = None if reward_model is None else reward_model.drawable()
        return self.imagination.with_reward(reward_model), model

    def _reward_prior(self, data: Transitions, key: Key) -> AbstractModel | None:
        if self.reward_family is None:
            return None
        prior = self.reward_family.fit(data.of_rewards(), key)
        check_reward_model(prior, self.problem)
        return prior

    def _fit(
        self, keys: list[Key], data: list[Transitions], ends: list[tuple[int, ...]]
    ) -> list["_Fit"]:
        """The models of several runs, by their randomness, their data and where episodes end."""

        def keys_for(use: int) -> list[Key]:
            return [_key_after(key, len(end), use) for key, end in zip(keys, ends, strict=True)]

        models = fit_all(self.family, data, keys_for(FIT), ends, "model")
        if self.reward_family is None:
            return [_Fit(model, None, notes) for model, notes in models]
        paid = [each.of_rewards() for each in data]
        rewards = fit_all(self.reward_family, paid, keys_for(FIT_REWARD), ends, "reward model")
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
            spread=zero + jnp.nan,
            note="the uniform random policy",
        )


class _Fit(NamedTuple):
    """The models of one run, and what went wrong with them."""

    model: AbstractModel
    reward_model: AbstractModel | None
    notes: tuple[str, ...]


def _checked(plan: Plan, state: LearnerState) -> Plan:
    """The plan, or the last good policy in its place if the plan is not finite."""
    if plan.note or is_finite((plan.profile, plan.value, plan.mass)):
        return plan
    if state.profile is None:
        raise PlanError(
            "the first plan is not finite and there is no earlier policy to fall back to; check "
            "the reward and the planner's learning rate, or start with first='random'"
        )
    return Plan(
        profile=state.profile,
        memory=state.memory,
        value=plan.value,
        mass=plan.mass,
        control=plan.control,
        spread=plan.spread,
        note="the plan was not finite; running the last good policy again",
    )


def _key_after(key: Key, episodes: int, use: int) -> Key:
    """A run's randomness after a number of episodes, for one use."""
    return jax.random.fold_in(jax.random.fold_in(key, episodes), use)


@eqx.filter_jit
def _plan(
    planner: AbstractPlanner,
    prepared: Any,
    imagination: Imagination,
    model: AbstractModel,
    memory: Any,
    key: Key,
) -> Plan:
    return planner.plan(prepared, imagination, model, memory, key)
