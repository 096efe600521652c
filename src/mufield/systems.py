"""Simulated systems, which know the true motion."""

import math
from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._arrays import Action, Key, Mass, Scalar, State, Step, as_key
from .episode import AbstractSystem, Episode
from .errors import UserError, whole_number
from .flow.checks import check_motion, check_moves, check_rollout
from .flow.flow import Flow
from .flow.rollout import Rollout, if_begun
from .interfaces import with_fields
from .policies.base import AbstractPolicy, Profile, checked_profile
from .problem import Motion, Problem, Reward
from .space.measure import MeanField, mean_field_at
from .space.move import Move

if TYPE_CHECKING:
    from .shocks import Path, Shocks


System = TypeVar("System", bound="AbstractSimulation")


class AbstractSimulation(AbstractSystem):
    """A system that knows the true motion, and what its problem hides."""

    _motion: eqx.AbstractVar[Motion]

    @abstractmethod
    def _truth(self) -> Problem:
        """The problem with the true reward and shocks."""

    @property
    def _agents(self) -> float:
        """Number of agents whose mass episodes have; infinity for the limit."""
        return math.inf

    @abstractmethod
    def _of(self: System, problem: Problem, truth: Problem, motion: Motion) -> System:
        """The same kind of system for another problem; ``truth`` also has what that hides."""

    @abstractmethod
    def _episode(self, profile: Profile, scouts: Profile | None, key: Key, agents: int) -> Episode:
        """`run` without shocks; agents do not report what they were paid."""

    def run(self, policy: Any, key: Key | int, *, agents: int = 1, scouts: Any = None) -> Episode:
        """Runs one episode; raises if an action is not allowed or a result is not finite.

        Tracked agents follow ``scouts``, if that is given. With shocks, the key draws a path. A
        whole number is the seed of a key.
        """
        problem, key = self.problem, as_key(key)
        profile = checked_profile(policy, problem)
        own = None if scouts is None else checked_profile(scouts, problem)
        if problem.shocks is not None:
            from .policies.shocks import profile_on_path  # not needed without shocks

            path = draw_path(self._truth(), key)
            profile = profile_on_path(profile, problem.shocks, path)
            own = None if own is None else profile_on_path(own, problem.shocks, path)
            episode = self.on_path(path).run(profile, key, agents=agents, scouts=own)
            return replace(episode, shocks=path[: problem.horizon])
        episode = self._episode(profile, own, key, agents)
        if problem.on_nodes and (own is None or math.isinf(self._agents)):
            from .models.data import with_population  # not needed on grids

            # Among finitely many agents scouts count, who do not follow the policy.
            episode = with_population(episode, problem, profile, self._agents)
        if not problem.hides_reward:
            return episode
        earned = _earned(self._truth(), episode, jax.random.fold_in(key, 1))
        if not bool(jnp.all(jnp.isfinite(earned))):
            raise UserError(
                "a tracked agent's reward is not finite: the reward returned NaN or infinity for a "
                "state that is no cell centre; for logarithms of mu use mufield.log_mass"
            )
        return replace(episode, earned=earned)

    def on_path(self: System, path: Any) -> System:
        """The system without shocks that it is on a path of them; see `Shocks.draw`."""
        from .flow.paths import motion_under, shocks_of  # not needed without shocks

        path = shocks_of(self.problem).checked_path(path, self.problem.horizon)
        known, truth = (each.under_shock(path) for each in (self.problem, self._truth()))
        return self._of(known, truth, motion_under(self.problem, self._motion, path))


class SimulatedSystem(AbstractSimulation):
    """An infinite population with a known motion, and tracked agents within it.

    The population's distribution follows Phi; tracked agents move in continuous space by the
    same motion, noise and wall rule. If the problem hides its reward, they also report their pay.
    """

    problem: Problem
    _motion: Motion
    _flow: Flow = eqx.field(repr=False)

    def __init__(
        self,
        problem: Problem,
        motion: Motion,
        reward: Reward | None = None,
        *,
        shocks: "Shocks | None" = None,
    ):
        """Checks the motion by evaluating it once, then builds the system.

        Args:
            problem: What the learner may know.
            motion: The true law of motion of one agent, ``(state, action, mu) -> next state``; on
                nodes, ``(node, action, mu) -> probabilities`` of its successors.
            reward: The true reward, if the problem hides it.
            shocks: The true shocks, if their probabilities are unknown to the problem.
        """
        motion = check_motion(problem, motion)
        self.problem = problem
        self._motion = motion
        self._flow = Flow(true_problem(problem, motion, reward, shocks))

    def reveal(self) -> tuple[Flow, Motion]:
        """The flow with the true reward, and the true motion, to evaluate learners and for tests.

        Learners must not call this.
        """
        return self._flow, self._motion

    def _truth(self) -> Problem:
        return self._flow.problem

    def _of(self, problem: Problem, truth: Problem, motion: Motion) -> "SimulatedSystem":
        flow = self._flow.of_problem(truth)
        return with_fields(self, problem=problem, _flow=flow, _motion=motion)

    def _episode(self, profile: Profile, scouts: Profile | None, key: Key, agents: int) -> Episode:
        agents = whole_number(agents, "the number of tracked agents")
        rollout = self.evaluate(profile)
        own = profile if scouts is None else scouts  # they are too few to change mu
        episode = _track(self._truth(), self._motion, own, rollout, key, agents)
        check_moves(self.problem, episode, own.by_cell)
        return episode

    def from_step(self, step: int, mass: Any, shock: int | None = None) -> "SimulatedSystem":
        """The system for the rest of an episode; see `Problem.from_step`."""
        known, truth = (p.from_step(step, mass, shock) for p in (self.problem, self._truth()))
        return self._of(known, truth, self._motion)

    def evaluate(self, policy: Any) -> Rollout:
        """The population's flow and J under a policy, without tracked agents.

        With shocks, their expectations; `mufield.flow.over_paths` also has the standard error.
        """
        profile = checked_profile(policy, self.problem)
        if self.problem.shocks is not None:
            from .flow.paths import over_paths  # not needed without shocks

            return over_paths(self._flow, profile, self._motion).mean()
        rollout, check = _inspect(self._flow, profile, self._motion)
        check_rollout(self._truth(), self._motion, profile, rollout, check)
        return rollout


def true_problem(
    problem: Problem, motion: Motion, reward: Reward | None, shocks: "Shocks | None"
) -> Problem:
    """The problem with what it hides: its reward, or the probabilities of its shocks.

    Raises if something is given that it does not hide, or the other way round, or if the true
    ``motion`` contradicts what the problem says of shocks.
    """
    if problem.hides_reward == (reward is None):
        raise UserError(
            "the problem hides its reward, so the system needs the true one: pass reward=..."
            if reward is None
            else "the problem's reward is known; leave out the system's, or hide the problem's "
            "with reward=None"
        )
    if reward is not None:
        reward = problem.discounted(reward)
        problem.check_function(reward, "the reward")
        problem = problem.replace(reward=reward)
    own = problem.shocks
    if own is not None and not own.moves:
        from .flow.paths import sees_shock  # not needed without shocks

        if sees_shock(problem, motion):
            raise UserError(
                "the motion reads mu.shock, but by Shocks(..., moves=False) it does not depend on "
                "it; leave out moves=False, or the shock in the motion"
            )
    if own is None or own.known:
        if shocks is not None:
            raise UserError("the problem has no unknown shocks; leave out those of the system")
        return problem
    given = shocks if isinstance(shocks, type(own)) else None
    if given is None or not given.known or not np.array_equal(given.values, own.values):
        raise UserError(
            "the problem does not say how likely its shocks are, so the system must: give "
            "shocks=Shocks(values, probabilities) with the same values"
        )
    return problem.replace(shocks=shocks)


@eqx.filter_jit
def draw_path(problem: Problem, key: Key) -> "Path":
    """The path of an episode; ``problem`` knows the true shocks."""
    assert problem.shocks is not None
    return problem.shocks.draw(jax.random.fold_in(key, 3), problem.paid_steps)


@eqx.filter_jit
def _earned(problem: Problem, episode: Episode, key: Key) -> Float[Array, "agents steps"]:
    of_agents = jax.vmap(jax.vmap(partial(reward_at, problem)), in_axes=(0, 0, None, None))
    paid = of_agents(episode.states, episode.actions, episode.mass[:-1], problem.steps)
    paid = paid.astype(episode.mass.dtype)
    return paid + problem.reward_noise * jax.random.normal(key, paid.shape, paid.dtype)


def reward_at(problem: Problem, state: State, action: Action, mass: Mass, step: Step) -> Scalar:
    """The reward of one agent, which need not be at a cell's centre."""
    mu = mean_field_at(problem.grid, mass, state, step)
    return jnp.asarray(problem.reward(state, action, mu))


def agent_step(
    problem: Problem,
    motion: Motion,
    policy: AbstractPolicy,
    state: State,
    mass: Mass,
    key: Key,
    step: Step,
) -> tuple[Array, Move, Any, Any]:
    """One agent's action, where it comes to rest, whether a trip carried it there, and how long.

    That is the number of steps after which it is free again.
    """
    grid, noise = problem.grid, problem.noise
    action_key, noise_key = jax.random.split(key)
    mu = mean_field_at(grid, mass, state, step)
    action = policy.law(state, mu).sample(action_key)
    target = agent_target(motion, state, action, mu)
    moved = noise.move(grid, state, target, noise.draws(grid, noise_key, state.dtype))
    if problem.trips is None:
        return action, moved, jnp.zeros((), dtype=bool), jnp.ones((), dtype=jnp.int32)
    uniforms = jax.random.uniform(jax.random.fold_in(key, 2), (2 + grid.dim,), dtype=state.dtype)
    where = (grid, mass, step, grid.index_of(state))
    return action, *problem.trips.carry(*where, moved, uniforms, centred=noise.centred)


def agent_target(motion: Motion, state: State, action: Action, mu: MeanField) -> Array:
    """An agent's displacement without noise and walls; on nodes its successors' probabilities."""
    return mu.grid.targets(state, jnp.asarray(motion(state, action, mu), dtype=state.dtype))


_inspect = eqx.filter_jit(Flow.inspect)


@eqx.filter_jit
def _track(
    problem: Problem, motion: Motion, profile: Profile, rollout: Rollout, key: Key, agents: int
) -> Episode:
    start_key, key = jax.random.split(key)

    def step(now: tuple[Array, Array], inputs: Any) -> tuple[tuple[Array, Array], Any]:
        (states, until), (part, mass, step_key, number) = now, inputs
        policy = profile.join(part)
        keys = jax.random.split(step_key, agents)
        actions, moved, carried, lasts = jax.vmap(
            lambda state, k: agent_step(problem, motion, policy, state, mass, k, number)
        )(states, keys)
        free = until <= number  # the others are under way
        ends = jnp.where(free[:, None], moved.position, states)
        until = jnp.where(free, number + lasts, until)
        return (ends, until), (actions, moved.stopped, carried & free, free)

    def begun(now: tuple[Array, Array], inputs: Any) -> tuple[tuple[Array, Array], Any]:
        moved, kept = if_begun(problem, inputs[-1], lambda carry: step(carry, inputs), now)
        return moved, (now[0], *kept)

    keys = jax.random.split(key, problem.horizon)
    inputs = (profile.per_step, rollout.mass[:-1], keys, problem.steps)
    start = problem.draw_starts(start_key, agents), jnp.zeros(agents, dtype=jnp.int32)
    (last, _), paths = jax.lax.scan(begun, start, inputs)
    states, actions, stopped, carried, free = (jnp.swapaxes(path, 0, 1) for path in paths)
    whole = problem.first is None and len(problem.initial_arrivals) == 1
    return Episode(
        states=states,
        actions=actions,
        # Not a result of its own, which the compiler might round otherwise than the next state.
        next_states=jnp.concatenate([states[:, 1:], last[:, None]], axis=1),
        stopped=stopped,
        mass=rollout.mass,
        rewards=rollout.rewards,
        present=None if whole else problem.begun & free,
        carried=None if problem.trips is None else carried,
    )
