"""Simulated systems, which know the true motion."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._types import Action, Key, Mass, Scalar, State, Step
from .checks import MASS_TOLERANCE, whole_number
from .episode import AbstractSystem, Episode
from .errors import UserError
from .flow.checks import check_farthest, check_motion, check_probabilities, diagnose
from .flow.flow import Flow
from .flow.paths import flow_under, motion_under, over_paths, shocks_of
from .flow.rollout import PolicyCheck, Rollout, if_begun, under_way
from .policies.base import AbstractPolicy, Profile, checked_profile
from .policies.by_shock import profile_on_path
from .problem import Motion, Problem, Reward, check_function
from .shocks import Path, Shocks
from .space.measure import MeanField, mean_field_at
from .space.move import Move
from .space.nodes import Nodes


class SimulatedSystem(AbstractSystem):
    """An infinite population with a known motion, and tracked agents within it.

    The population's distribution follows Phi; tracked agents move in continuous space by the
    same motion, noise and wall rule. If the problem hides its reward, they also report what they
    were paid.
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
        within_cells: bool = False,
        shocks: Shocks | None = None,
    ):
        """Checks the motion by evaluating it once, then builds the system.

        Args:
            problem: What the learner may know.
            motion: The true law of motion of one agent, ``(state, action, mu) -> next state``; on
                nodes, ``(node, action, mu) -> probabilities`` of its successors.
            reward: The true reward, if the problem hides it.
            within_cells: Whether the population's flow follows where in their cells agents stand,
                as tracked agents do; see [`Flow`][].
            shocks: The true shocks, if their probabilities are unknown to the problem.
        """
        motion = check_motion(problem, motion)
        self.problem = problem
        self._motion = motion
        true = with_true_shocks(with_true_reward(problem, reward), shocks)
        self._flow = Flow(true, within_cells=within_cells)

    def reveal(self) -> tuple[Flow, Motion]:
        """The flow with the true reward, and the true motion, to evaluate learners and for tests.

        Learners must not call this.
        """
        return self._flow, self._motion

    def run(self, policy: Any, key: Key, *, agents: int = 1, scouts: Any = None) -> Episode:
        """Runs one episode; raises if an action is outside the box or a result is not finite.

        Tracked agents follow ``scouts``, if that is given. They are too few to change mu. With
        shocks, the key draws a path of them.
        """
        if self.problem.shocks is not None:
            path = draw_path(self._flow.problem, key)
            shocks, under = self.problem.shocks, self.on_path(path)
            profiles = [
                profile_on_path(checked_profile(each, self.problem), shocks, path)
                for each in (policy, policy if scouts is None else scouts)
            ]
            episode = under.run(profiles[0], key, agents=agents, scouts=profiles[1])
            return replace(episode, shocks=path[: self.problem.horizon])
        agents = whole_number(agents, "the number of tracked agents")
        profile = checked_profile(policy, self.problem)
        rollout = self.evaluate(profile)
        own = profile if scouts is None else checked_profile(scouts, self.problem)
        episode = _track(self._flow.problem, self._motion, own, rollout, key, agents)
        check_moves(self.problem, episode, own.by_cell)
        if self.problem.hides_reward:
            episode = with_earnings(self._flow.problem, episode, key)
        return episode

    def from_step(self, step: int, mass: Any) -> "SimulatedSystem":
        """The system for the rest of an episode; see `Problem.from_step`."""
        return self._with(self.problem.from_step(step, mass), self._flow.from_step(step, mass))

    def on_path(self, path: Any) -> "SimulatedSystem":
        """The system without shocks that it is on a path of them; see `Shocks.draw`."""
        path = jnp.asarray(path, jnp.int32)
        system = self._with(self.problem.under_shock(path), flow_under(self._flow, path))
        motion = motion_under(self.problem, self._motion, path)
        changed: SimulatedSystem = eqx.tree_at(lambda s: s._motion, system, motion)
        return changed

    def within_cells(self) -> "SimulatedSystem":
        """The same system, whose flow follows where in their cells agents stand; see [`Flow`][]."""
        return self._with(self.problem, Flow(self._flow.problem, within_cells=True))

    def _with(self, problem: Problem, flow: Flow) -> "SimulatedSystem":
        changed: SimulatedSystem = eqx.tree_at(
            lambda s: (s.problem, s._flow), self, (problem, flow)
        )
        return changed

    def evaluate(self, policy: Any) -> Rollout:
        """The population's flow and J under a policy, without tracked agents.

        With shocks, their expectations; `mufield.flow.over_paths` also has the standard error.
        """
        profile = checked_profile(policy, self.problem)
        if self.problem.shocks is not None:
            return over_paths(self._flow, profile, self._motion).mean()
        rollout, check = _inspect(self._flow, profile, self._motion)
        _check_rollout(self._flow.problem, self._motion, profile, rollout, check)
        return rollout


def with_true_shocks(problem: Problem, shocks: Shocks | None) -> Problem:
    """The problem with the true probabilities of its shocks; raises if there are two or none."""
    if problem.shocks is None or problem.shocks.known:
        if shocks is not None:
            raise UserError(
                "the problem has no shocks, or says how likely they are; leave out those of the "
                "system"
            )
        return problem
    if shocks is None or not shocks.known or shocks.values.shape != problem.shocks.values.shape:
        raise UserError(
            "the problem does not say how likely its shocks are, so the system must: give "
            "shocks=Shocks(values, probabilities) with the same values"
        )
    return problem.replace(shocks=shocks)


def draw_path(problem: Problem, key: Key) -> Path:
    """The path of an episode; ``problem`` knows the true shocks."""
    return _draw_path(shocks_of(problem), jax.random.fold_in(key, 3), problem.paid_steps)


_draw_path = eqx.filter_jit(Shocks.draw)


def with_true_reward(problem: Problem, reward: Reward | None) -> Problem:
    """The problem with its true reward, which is ``reward`` if the problem hides it.

    Raises if there are two rewards or none.
    """
    if problem.hides_reward == (reward is None):
        raise UserError(
            "the problem hides its reward, so the system needs the true one: pass reward=..."
            if reward is None
            else "the problem's reward is known; leave out the system's, or hide the problem's "
            "with reward=None"
        )
    if reward is None:
        return problem
    reward = problem.rewarding(reward)
    check_function(problem, reward, "the reward", ())
    return problem.replace(reward=reward)


def with_earnings(problem: Problem, episode: Episode, key: Key) -> Episode:
    """The episode with the noisy rewards of its tracked agents; ``problem`` has the true reward."""
    earned = _earned(problem, episode, jax.random.fold_in(key, 1))
    if not bool(jnp.all(jnp.isfinite(earned))):
        raise UserError(
            "a tracked agent's reward is not finite: the reward returned NaN or infinity for a "
            "state that is no cell centre; for logarithms of mu use mufield.log_mass"
        )
    return replace(episode, earned=earned)


@eqx.filter_jit
def _earned(problem: Problem, episode: Episode, key: Key) -> Float[Array, "agents steps"]:
    def one(state: State, action: Action, mass: Mass, step: Array) -> Scalar:
        mu = mean_field_at(problem.grid, mass, state, step)
        return jnp.asarray(problem.reward(state, action, mu))

    paid = jax.vmap(jax.vmap(one), in_axes=(0, 0, None, None))(
        episode.states, episode.actions, episode.mass[:-1], problem.steps
    ).astype(episode.mass.dtype)
    return paid + problem.reward_noise * jax.random.normal(key, paid.shape, paid.dtype)


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
    """Where one agent would be without noise and walls; on nodes its successors' probabilities."""
    return mu.grid.aim(state, jnp.asarray(motion(state, action, mu), dtype=state.dtype))


_inspect = eqx.filter_jit(Flow.inspect)


@eqx.filter_jit
def _track(
    problem: Problem, motion: Motion, profile: Profile, rollout: Rollout, key: Key, agents: int
) -> Episode:
    """An episode of tracked agents within the population of a rollout."""
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
    whole = problem.first is None and under_way(problem) is None
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


def _check_rollout(
    problem: Problem, motion: Motion, profile: Profile, rollout: Rollout, check: PolicyCheck
) -> None:
    """Raises if an action was not allowed, a result not finite or a move beyond ``max_move``."""
    allowed = np.asarray(check.allowed) | (np.arange(problem.horizon) < problem.first_step)
    if not allowed.all():
        step = int(np.argmin(allowed))
        mass = rollout.mass[step]
        law = profile.at(step).at_cells(problem.grid, mass, step)
        used = (law.weights != 0) & (mass[:, None] > 0)
        cells = np.arange(len(mass))[:, None]
        outside = np.argwhere(~np.asarray(problem.allowed(law.actions, cells) | ~used))
        cell, choice = (int(i) for i in outside[0])
        where = problem.grid.place(cell)
        raise _outside_actions(problem, law.actions[cell, choice], step, where, profile.by_cell)
    if not (np.isfinite(rollout.value) and np.isfinite(rollout.mass).all()):
        why = diagnose(problem, motion, rollout.mass) or (
            "the motion or the reward returned NaN or infinity, or rewards too large to be added "
            "up, for a state, action or distribution that the policy led to"
        )
        raise UserError(f"the episode is not finite: {why}")
    error = float(np.asarray(check.weight_error).max())
    least = float(np.asarray(check.least_weight).min())
    if not (error <= MASS_TOLERANCE and least >= 0):
        raise UserError(
            "the weights of a randomised policy must be non-negative and sum to 1 in every cell; "
            f"the sums are off by up to {error:.3g}, the least weight is {least:.3g}; "
            "normalise them"
        )
    farthest = np.asarray(check.farthest).max(axis=0)
    if isinstance(problem.grid, Nodes):
        if not (farthest <= MASS_TOLERANCE).all():
            for step in range(problem.first_step, problem.horizon):
                check_probabilities(problem, motion, rollout.mass[step], step)
    else:
        check_farthest(problem, farthest)


def check_moves(problem: Problem, moves: Any, table: bool, step: int | None = None) -> None:
    """Raises if an agent's action is not allowed or its position is not finite.

    Args:
        problem: The problem.
        moves: ``states``, ``actions`` and ``next_states`` of an `Episode`, or of one step of it.
        table: Whether the policy is a table, for the advice.
        step: Number of the step, if there is one only.
    """
    cells = problem.grid.index_of(np.asarray(moves.states))
    outside = ~np.asarray(problem.allowed(np.asarray(moves.actions), cells))
    if step is None:
        outside &= np.arange(problem.horizon) >= problem.first_step
    broken = ~np.isfinite(np.asarray(moves.next_states)).all(axis=-1)
    if not (outside | broken).any():
        return
    index = tuple(int(i) for i in np.argwhere(outside | broken)[0])
    number = index[1] if step is None else step
    state, action = np.asarray(moves.states[index]), np.asarray(moves.actions[index])
    if outside[index]:
        raise _outside_actions(problem, action, number, f"state {state}", table)
    raise UserError(
        f"an agent's position is not finite: the motion returned NaN or infinity for the state "
        f"{state} and the action {action} at step {number}"
    )


def _outside_actions(
    problem: Problem, action: Any, step: int, where: str, table: bool
) -> UserError:
    """The error for an action that is not in the action space.

    A ``table``, often from a file, was planned for other actions; functions lack a bound.
    """
    remedy = "clip or squash it, for example with jnp.clip or jnp.tanh"
    if table:
        remedy = "the policy was made for other actions: name the options that it was planned for"
    return UserError(
        f"the policy's action {np.asarray(action)} at step {step} in the {where} is outside "
        f"{problem.actions.describe()}; {remedy}"
    )
