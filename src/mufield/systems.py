"""Systems: what stands on the other side of an episode. Only here is the true motion known."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from . import _types
from ._types import Key, Mass, Scalar, State
from .flow.neighbours import legal_ends, unit_steps
from .flow.objective import Flow, Rollout
from .policies.base import AbstractPolicy, Profile, as_profile
from .policies.randomised import spread_actions
from .problem import Box, GaussianNoise, Motion, NeighbourNoise, Problem, check_function
from .space.grid import Grid
from .space.measure import sample, seen_from
from .space.move import Move, move


class Episode(eqx.Module):
    """What was observed in one episode, by tracked agents and of the whole population.

    Attributes:
        states: States of the tracked agents before each move.
        actions: What they did.
        next_states: Where they came to rest.
        stopped: Axes on which a wall or border stopped them: there the displacement is censored.
        mass: The population's distributions mu_0, ..., mu_H.
        rewards: Integrated rewards r-hat of the population, one for each paid step.
    """

    states: Float[Array, "agents steps dim"]
    actions: Float[Array, "agents steps action_dim"]
    next_states: Float[Array, "agents steps dim"]
    stopped: Bool[Array, "agents steps dim"]
    mass: _types.Flow
    rewards: Float[Array, "paid_steps"]

    @property
    def value(self) -> Scalar:
        """The episode's total reward J."""
        return jnp.sum(self.rewards)


class AbstractSystem(eqx.Module):
    """A population that can be run for one episode under a policy profile.

    A real fleet, a black-box simulator and [`SimulatedSystem`][] all look the same to a learner:
    it sees `problem` and the episodes, never the motion.
    """

    problem: eqx.AbstractVar[Problem]

    @abstractmethod
    def run(self, policy: Any, key: Key, *, agents: int = 1) -> Episode:
        """Runs one episode from the initial distribution.

        Args:
            policy: A profile, a policy, or a function ``(state, mu, step) -> action``.
            key: Randomness of the tracked agents.
            agents: How many agents to track.
        """


class SimulatedSystem(AbstractSystem):
    """An infinite population with a known motion; tracked agents live among it.

    The population's distribution follows Phi; tracked agents move in continuous space by the
    same motion, noise and wall rule.
    """

    problem: Problem
    _motion: Motion
    _flow: Flow

    def __init__(self, problem: Problem, motion: Motion):
        """Checks the motion by evaluating it once, then builds the system.

        Args:
            problem: What the learner may know.
            motion: The true law of motion of one agent, ``(state, action, mu) -> next state``.
        """
        _check_motion(problem, motion)
        self.problem = problem
        self._motion = motion
        self._flow = Flow(problem)

    def reveal(self) -> tuple[Flow, Motion]:
        """The flow and the true motion, for planning with known dynamics and for tests.

        The one door to the true motion: nothing that learns may go through it.
        """
        return self._flow, self._motion

    def run(self, policy: Any, key: Key, *, agents: int = 1) -> Episode:
        """Runs one episode; raises if an action is outside the box or a result is not finite."""
        if agents < 1:
            raise ValueError(f"at least one agent must be tracked, got {agents}")
        profile = as_profile(policy, self.problem.horizon)
        episode = _play(self._flow, self._motion, profile, key, agents)
        _check_result(self.problem, profile, episode.mass, episode.rewards)
        return episode

    def evaluate(self, policy: Any) -> Rollout:
        """The population's flow and J under a policy, without tracked agents."""
        profile = as_profile(policy, self.problem.horizon)
        rollout = _evaluate(self._flow, self._motion, profile)
        _check_result(self.problem, profile, rollout.mass, rollout.rewards)
        return rollout

    def mean_actions(
        self, policy: Any, mass: _types.Flow
    ) -> Float[Array, "steps cells action_dim"]:
        """Average action in every cell at each step, given the distributions of an episode."""
        return self._flow.mean_actions(policy, mass)


def agent_step(
    problem: Problem, motion: Motion, policy: AbstractPolicy, state: State, mass: Mass, key: Key
) -> tuple[Array, Move]:
    """One agent's action and move in continuous space: decide, aim, add noise, meet walls."""
    grid = problem.grid
    action_key, noise_key = jax.random.split(key)
    mu = seen_from(grid, mass, state)
    action = policy.law(state, mu).sample(action_key)
    aim = jnp.asarray(motion(state, action, mu), dtype=state.dtype)
    if isinstance(problem.noise, GaussianNoise):
        std = jnp.asarray(problem.noise.std, dtype=state.dtype)
        aim = aim + std * jax.random.normal(noise_key, (grid.dim,), dtype=state.dtype)
        return action, move(grid, state, aim)
    moved = move(grid, state, aim)
    return action, _pushed(grid, problem.noise, moved, noise_key)


def _pushed(grid: Grid, noise: NeighbourNoise, moved: Move, key: Key) -> Move:
    """The second move of the discrete rooms' noise."""
    steps = unit_steps(grid.dim)
    legal = jnp.asarray(legal_ends(grid, steps) >= 0)[moved.index]
    weights = noise.intensity * legal / jnp.sum(legal)
    weights = weights.at[0].add(1.0 - noise.intensity)
    step = jnp.asarray(steps)[jax.random.categorical(key, jnp.log(weights))]
    size = jnp.asarray(grid.cell_size, dtype=moved.position.dtype)
    pushed = move(grid, moved.position, moved.position + step * size)
    return Move(position=pushed.position, stopped=moved.stopped, index=pushed.index)


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


@eqx.filter_jit
def _actions_inside(
    problem: Problem, profile: Profile, mass: _types.Flow
) -> Bool[Array, "steps cells moves"]:
    """Which actions lie in the action space, in cells that agents can be in."""

    def step(_: None, inputs: Any) -> tuple[None, Array]:
        part, now = inputs
        law = profile.join(part).at_cells(problem.grid, now)
        used = (law.weights > 0) & (now[:, None] > 0)
        return None, problem.actions.contains(law.actions) | ~used

    return jax.lax.scan(step, None, (profile.per_step, mass[:-1]))[1]


def _check_result(problem: Problem, profile: Profile, mass: _types.Flow, rewards: Array) -> None:
    """Raises if an episode left the action space or the finite numbers."""
    inside = np.asarray(_actions_inside(problem, profile, mass))
    if not inside.all():
        step, cell, choice = (int(i) for i in np.argwhere(~inside)[0])
        law = profile.at(step).at_cells(problem.grid, mass[step])
        raise ValueError(
            f"the policy's action {np.asarray(law.actions[cell, choice])} at step {step} in the "
            f"cell {tuple(int(c) for c in problem.grid.free_cells[cell])} is outside "
            f"{problem.actions.describe()}; clip or squash it, for example with jnp.clip or "
            "jnp.tanh"
        )
    if not (bool(jnp.all(jnp.isfinite(mass))) and bool(jnp.all(jnp.isfinite(rewards)))):
        raise ValueError(
            "the episode is not finite: the motion or the reward returned NaN or infinity for a "
            "state, action or distribution that the policy led to"
        )


def _check_motion(problem: Problem, motion: Motion) -> None:
    """Raises if the motion has the wrong shape, is not finite, or goes beyond ``max_move``."""
    grid = problem.grid
    check_function(problem, motion, "the motion", (grid.dim,))
    if isinstance(problem.actions, Box):
        actions = spread_actions(problem.actions.lower, problem.actions.upper, 3, border=True)
    else:
        actions = problem.actions.moves
    actions = actions.astype(problem.initial.dtype)
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
        raise ValueError(
            f"the motion returned NaN or infinity for the state {grid.centres[cell]} and the "
            f"action {np.asarray(actions[choice])}"
        )
    farthest = moved.reshape(-1, grid.dim).max(axis=0)
    limit = np.asarray(problem.max_move)
    if np.any(farthest > limit * (1 + 1e-4)):
        raise ValueError(
            f"the motion carries agents up to {farthest} in one step, farther than the problem's "
            f"max_move {problem.max_move}; raise max_move, so that the flow's windows reach"
        )
