"""Simulated systems: only here, and in the environments built on it, is the true motion known."""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from . import _types
from ._types import Action, Key, Mass, Scalar, State
from .episode import AbstractSystem, Episode
from .errors import UserError
from .flow.neighbours import legal_ends, unit_steps
from .flow.objective import Flow, Rollout
from .policies.base import AbstractPolicy, Profile, as_profile
from .problem import (
    GaussianNoise,
    Motion,
    NeighbourNoise,
    Noise,
    Problem,
    Reward,
    check_function,
)
from .space.grid import Grid
from .space.measure import MASS_TOLERANCE, MeanField, sample, seen_from
from .space.move import Move, move

EARNED = 1
"""Tells the randomness of observed rewards apart from that of the moves."""


class SimulatedSystem(AbstractSystem):
    """An infinite population with a known motion; tracked agents live among it.

    The population's distribution follows Phi; tracked agents move in continuous space by the
    same motion, noise and wall rule. If the problem hides its reward, they also report what they
    were paid.
    """

    problem: Problem
    _motion: Motion
    _flow: Flow

    def __init__(self, problem: Problem, motion: Motion, reward: Reward | None = None):
        """Checks the motion by evaluating it once, then builds the system.

        Args:
            problem: What the learner may know.
            motion: The true law of motion of one agent, ``(state, action, mu) -> next state``.
            reward: The true reward, if the problem hides it.
        """
        check_motion(problem, motion)
        self.problem = problem
        self._motion = motion
        self._flow = Flow(rewarded(problem, reward))

    def reveal(self) -> tuple[Flow, Motion]:
        """The flow, with the true reward, and the true motion: for referees and for tests.

        The one door to both: nothing that learns may go through it.
        """
        return self._flow, self._motion

    def run(self, policy: Any, key: Key, *, agents: int = 1) -> Episode:
        """Runs one episode; raises if an action is outside the box or a result is not finite."""
        if agents < 1:
            raise UserError(f"at least one agent must be tracked, got {agents}")
        profile = as_profile(policy, self.problem.horizon)
        episode = _play(self._flow, self._motion, profile, key, agents)
        if self.problem.hides_reward:
            episode = with_earnings(self._flow.problem, episode, key)
        _check_result(self._flow, self._motion, profile, episode.mass, episode.rewards)
        _check_agents(self.problem, episode)
        return episode

    def evaluate(self, policy: Any) -> Rollout:
        """The population's flow and J under a policy, without tracked agents."""
        profile = as_profile(policy, self.problem.horizon)
        rollout = _evaluate(self._flow, self._motion, profile)
        _check_result(self._flow, self._motion, profile, rollout.mass, rollout.rewards)
        return rollout

    def mean_actions(
        self, policy: Any, mass: _types.Flow
    ) -> Float[Array, "steps cells action_dim"]:
        """Average action in every cell at each step, given the distributions of an episode."""
        return self._flow.mean_actions(policy, mass)


def rewarded(problem: Problem, reward: Reward | None) -> Problem:
    """The problem with the true reward, its own or the hidden one; raises if it has both or none.

    Args:
        problem: What the learner may know.
        reward: The true reward, if the problem hides it.
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
    check_function(problem, reward, "the reward", ())
    return problem.with_reward(reward)


def with_earnings(problem: Problem, episode: Episode, key: Key) -> Episode:
    """The episode with what its tracked agents were paid, as they observe it.

    Args:
        problem: The problem with its true reward.
        episode: What they did.
        key: The episode's randomness.
    """
    earned = _earned(problem, episode, jax.random.fold_in(key, EARNED))
    if not bool(jnp.all(jnp.isfinite(earned))):
        raise UserError(
            "a tracked agent's reward is not finite: the reward returned NaN or infinity for a "
            "state that is no cell centre; for logarithms of mu use mufield.log_mass"
        )
    return replace(episode, earned=earned)


@eqx.filter_jit
def _earned(problem: Problem, episode: Episode, key: Key) -> Float[Array, "agents steps"]:
    def one(state: State, action: Action, mass: Mass) -> Scalar:
        return jnp.asarray(problem.reward(state, action, seen_from(problem.grid, mass, state)))

    along = jax.vmap(one)
    paid = jax.vmap(along, in_axes=(0, 0, None))(
        episode.states, episode.actions, episode.mass[:-1]
    ).astype(episode.mass.dtype)
    return paid + problem.reward_noise * jax.random.normal(key, paid.shape, paid.dtype)


def agent_step(
    problem: Problem, motion: Motion, policy: AbstractPolicy, state: State, mass: Mass, key: Key
) -> tuple[Array, Move]:
    """One agent's action and move in continuous space: decide, aim, add noise, meet walls."""
    action_key, noise_key = jax.random.split(key)
    mu = seen_from(problem.grid, mass, state)
    action = policy.law(state, mu).sample(action_key)
    draws = noise_draws(problem.grid, problem.noise, noise_key, (), state.dtype)
    return action, agent_move(problem.grid, problem.noise, motion, state, action, mu, draws)


def noise_draws(
    grid: Grid, noise: Noise, key: Key, shape: tuple[int, ...], dtype: Any
) -> Float[Array, "*agents draws"]:
    """The random numbers that `agent_move` needs, for agents in any shape."""
    if isinstance(noise, GaussianNoise):
        return jax.random.normal(key, (*shape, grid.dim), dtype=dtype)
    return jax.random.gumbel(key, (*shape, len(unit_steps(grid.dim))), dtype=dtype)


def agent_move(
    grid: Grid,
    noise: Noise,
    motion: Motion,
    state: State,
    action: Action,
    mu: MeanField,
    draws: Float[Array, "draws"],
) -> Move:
    """One agent's move after it has decided, a pure function of the noise's random numbers."""
    # The shorter way round on periodic axes, as in the flow.
    wanted = jnp.asarray(motion(state, action, mu), dtype=state.dtype)
    aim = state + grid.displacement(state, wanted)
    if isinstance(noise, GaussianNoise):
        std = jnp.asarray(noise.std, dtype=state.dtype)
        return move(grid, state, aim + std * draws)
    return _pushed(grid, noise, move(grid, state, aim), draws)


def _pushed(
    grid: Grid, noise: NeighbourNoise, moved: Move, draws: Float[Array, "directions"]
) -> Move:
    """The second move of the discrete rooms' noise."""
    steps = unit_steps(grid.dim)
    legal = jnp.asarray(legal_ends(grid, steps) >= 0)[moved.index]
    weights = noise.intensity * legal / jnp.sum(legal)
    weights = weights.at[0].add(1.0 - noise.intensity)
    # The largest of logarithms of weights and Gumbel draws has the weights as probabilities.
    step = jnp.asarray(steps)[jnp.argmax(jnp.log(weights) + draws)]
    size = jnp.asarray(grid.cell_size, dtype=moved.position.dtype)
    pushed = move(grid, moved.position, moved.position + step * size)
    # Agents of the discrete rooms stand in the middle of their cells.
    centre = jnp.asarray(grid.centres, dtype=moved.position.dtype)[pushed.index]
    return Move(position=centre, stopped=moved.stopped, index=pushed.index)


@eqx.filter_jit
def _play(flow: Flow, motion: Motion, profile: Profile, key: Key, agents: int) -> Episode:
    problem = flow.problem
    grid = problem.grid
    rollout = flow.rollout(profile, motion)
    start_key, key = jax.random.split(key)
    if isinstance(problem.noise, NeighbourNoise):
        cells = jax.random.categorical(start_key, jnp.log(problem.initial), shape=(agents,))
        start = jnp.asarray(grid.centres, dtype=problem.initial.dtype)[cells]
    else:
        start = sample(grid, problem.initial, start_key, agents)

    def step(states: Array, inputs: Any) -> tuple[Array, Any]:
        part, mass, step_key = inputs
        policy = profile.join(part)
        keys = jax.random.split(step_key, agents)
        actions, moved = jax.vmap(
            lambda state, k: agent_step(problem, motion, policy, state, mass, k)
        )(states, keys)
        return moved.position, (states, actions, moved.position, moved.stopped)

    keys = jax.random.split(key, problem.horizon)
    _, (states, actions, ends, stopped) = jax.lax.scan(
        step, start, (profile.per_step, rollout.mass[:-1], keys)
    )
    return Episode(
        states=jnp.swapaxes(states, 0, 1),
        actions=jnp.swapaxes(actions, 0, 1),
        next_states=jnp.swapaxes(ends, 0, 1),
        stopped=jnp.swapaxes(stopped, 0, 1),
        mass=rollout.mass,
        rewards=rollout.rewards,
    )


@eqx.filter_jit
def _evaluate(flow: Flow, motion: Motion, profile: Profile) -> Rollout:
    return flow.rollout(profile, motion)


class _Audit(NamedTuple):
    """What is looked at after an episode, in cells that agents can be in."""

    inside: Bool[Array, "steps cells moves"]
    total_weight: Float[Array, "steps cells"]
    least_weight: Scalar
    farthest: Float[Array, "dim"]


@eqx.filter_jit
def _audit(flow: Flow, motion: Motion, profile: Profile, mass: _types.Flow) -> _Audit:
    problem = flow.problem

    def step(_: None, inputs: Any) -> tuple[None, _Audit]:
        part, now = inputs
        law = profile.join(part).at_cells(problem.grid, now)
        used = (law.weights != 0) & (now[:, None] > 0)
        moved = jnp.where(used[..., None], jnp.abs(flow.displacements(motion, now, law)), 0.0)
        return None, _Audit(
            problem.actions.contains(law.actions) | ~used,
            jnp.where(now > 0, jnp.sum(law.weights, axis=1), 1.0),
            jnp.min(law.weights),
            jnp.max(moved, axis=(0, 1)),
        )

    audit = jax.lax.scan(step, None, (profile.per_step, mass[:-1]), length=problem.horizon)[1]
    return _Audit(
        audit.inside,
        audit.total_weight,
        jnp.min(audit.least_weight),
        jnp.max(audit.farthest, axis=0),
    )


def _check_result(
    flow: Flow, motion: Motion, profile: Profile, mass: _types.Flow, rewards: Array
) -> None:
    """Raises if an episode left the action space, the flow's windows or the finite numbers."""
    problem = flow.problem
    audit = _audit(flow, motion, profile, mass)
    inside = np.asarray(audit.inside)
    if not inside.all():
        step, cell, choice = (int(i) for i in np.argwhere(~inside)[0])
        law = profile.at(step).at_cells(problem.grid, mass[step])
        raise UserError(
            f"the policy's action {np.asarray(law.actions[cell, choice])} at step {step} in the "
            f"cell {tuple(int(c) for c in problem.grid.free_cells[cell])} is outside "
            f"{problem.actions.describe()}; clip or squash it, for example with jnp.clip or "
            "jnp.tanh"
        )
    if not (bool(jnp.all(jnp.isfinite(mass))) and bool(jnp.all(jnp.isfinite(rewards)))):
        raise UserError(
            "the episode is not finite: the motion or the reward returned NaN or infinity for a "
            "state, action or distribution that the policy led to"
        )
    off = float(jnp.max(jnp.abs(audit.total_weight - 1.0)))
    if off > MASS_TOLERANCE or float(audit.least_weight) < 0:
        raise UserError(
            "the weights of a randomised policy must be non-negative and sum to 1 in every cell; "
            f"the sums are off by up to {off:.3g}, the least weight is "
            f"{float(audit.least_weight):.3g}; normalise them"
        )
    _check_farthest(problem, np.asarray(audit.farthest))


def _check_agents(problem: Problem, episode: Episode) -> None:
    """Raises if a tracked agent, away from the cell centres, left the box or finite numbers."""
    if not bool(jnp.all(jnp.isfinite(episode.next_states))):
        raise UserError(
            "a tracked agent's position is not finite: the motion returned NaN or infinity for a "
            "state that is no cell centre"
        )
    inside = np.asarray(problem.actions.contains(episode.actions))
    if not inside.all():
        agent, step = np.argwhere(~inside)[0]
        raise UserError(
            f"the policy's action {np.asarray(episode.actions[agent, step])} at step {step} in "
            f"the state {np.asarray(episode.states[agent, step])} is outside "
            f"{problem.actions.describe()}; clip or squash it"
        )


def _check_farthest(problem: Problem, farthest: Float[np.ndarray, "dim"]) -> None:
    if np.any(farthest > np.asarray(problem.max_move) * (1 + 1e-4)):
        raise UserError(
            f"the motion carries agents up to {farthest} in one step, farther than the problem's "
            f"max_move {problem.max_move}; raise max_move, so that the flow's windows reach"
        )


def check_motion(problem: Problem, motion: Motion) -> None:
    """Raises if the motion has the wrong shape, is not finite, or goes beyond ``max_move``."""
    grid = problem.grid
    check_function(problem, motion, "the motion", (grid.dim,))
    actions = problem.actions.points(3).astype(problem.initial.dtype)
    centres = jnp.asarray(grid.centres, dtype=problem.initial.dtype)

    @jax.jit
    def displacements() -> Array:
        def one(state: State, action: Array) -> Array:
            return motion(state, action, seen_from(grid, problem.initial, state))

        aims = jax.vmap(lambda s: jax.vmap(lambda a: one(s, a))(actions))(centres)
        return grid.displacement(centres[:, None], aims)

    moved = np.abs(np.asarray(displacements()))
    if not np.isfinite(moved).all():
        cell, choice = np.argwhere(~np.isfinite(moved).all(axis=-1))[0]
        raise UserError(
            f"the motion returned NaN or infinity for the state {grid.centres[cell]} and the "
            f"action {np.asarray(actions[choice])}"
        )
    _check_farthest(problem, moved.reshape(-1, grid.dim).max(axis=0))
