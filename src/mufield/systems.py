"""Simulated systems, which know the true motion."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from . import _types
from ._types import Action, Key, Mass, Scalar, State, Step
from .checks import MASS_TOLERANCE
from .episode import AbstractSystem, Episode
from .errors import UserError
from .fleet.trips import Ride
from .flow.diagnose import diagnose
from .flow.flow import Flow
from .flow.rollout import PolicyCheck, Rollout, if_begun
from .policies.base import AbstractPolicy, Profile, fitting_profile
from .problem import Motion, Problem, Reward, check_function
from .space.grid import Grid
from .space.measure import MeanField, mean_field_at
from .space.move import Noise
from .space.wall_rule import Move


class SimulatedSystem(AbstractSystem):
    """An infinite population with a known motion, and tracked agents within it.

    The population's distribution follows Phi; tracked agents move in continuous space by the
    same motion, noise and wall rule. If the problem hides its reward, they also report what they
    were paid.
    """

    problem: Problem
    _motion: Motion
    _flow: Flow

    def __init__(
        self,
        problem: Problem,
        motion: Motion,
        reward: Reward | None = None,
        *,
        within_cells: bool = False,
    ):
        """Checks the motion by evaluating it once, then builds the system.

        Args:
            problem: What the learner may know.
            motion: The true law of motion of one agent, ``(state, action, mu) -> next state``.
            reward: The true reward, if the problem hides it.
            within_cells: Whether the population's flow follows where in their cells agents stand,
                as tracked agents do; see [`Flow`][].
        """
        check_motion(problem, motion)
        self.problem = problem
        self._motion = motion
        self._flow = Flow(rewarded(problem, reward), within_cells=within_cells)

    def reveal(self) -> tuple[Flow, Motion]:
        """The flow with the true reward, and the true motion, to evaluate learners and for tests.

        Learners must not call this.
        """
        return self._flow, self._motion

    def run(self, policy: Any, key: Key, *, agents: int = 1, initial: Any = None) -> Episode:
        """Runs one episode; raises if an action is outside the box or a result is not finite.

        ``initial`` is where the population starts, if not from the problem's distribution.
        """
        if agents < 1:
            raise UserError(f"at least one agent must be tracked, got {agents}")
        if initial is not None:
            return self.starting_from(initial).run(policy, key, agents=agents)
        profile = fitting_profile(policy, self.problem)
        rollout = self.evaluate(profile)
        episode = _track(self._flow.problem, self._motion, profile, rollout, key, agents)
        _check_agents(self.problem, profile, episode)
        if self.problem.hides_reward:
            episode = with_earnings(self._flow.problem, episode, key)
        return episode

    def starting_from(self, initial: Any) -> "SimulatedSystem":
        """The same system with episodes that start from another distribution."""
        return self._with(self.problem.starting_from(initial), self._flow.starting_from(initial))

    def from_step(self, step: int, mass: Any) -> "SimulatedSystem":
        """The system for the rest of an episode; see `Problem.from_step`."""
        return self._with(self.problem.from_step(step, mass), self._flow.from_step(step, mass))

    def _with(self, problem: Problem, flow: Flow) -> "SimulatedSystem":
        changed: SimulatedSystem = eqx.tree_at(
            lambda s: (s.problem, s._flow), self, (problem, flow)
        )
        return changed

    def evaluate(self, policy: Any) -> Rollout:
        """The population's flow and J under a policy, without tracked agents."""
        profile = fitting_profile(policy, self.problem)
        rollout, check = _inspect(self._flow, profile, self._motion)
        _check_rollout(self._flow.problem, self._motion, profile, rollout, check)
        return rollout

    def within_cells(self) -> "SimulatedSystem":
        """The same system, whose flow follows where in their cells agents stand; see [`Flow`][]."""
        return self._with(self.problem, Flow(self._flow.problem, within_cells=True))

    def mean_actions(
        self, policy: Any, mass: _types.Masses
    ) -> Float[Array, "steps cells action_dim"]:
        """Average action in every cell at each step, given the distributions of an episode."""
        return self._flow.mean_actions(policy, mass)


def rewarded(problem: Problem, reward: Reward | None) -> Problem:
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
    check_function(problem, reward, "the reward", ())
    return problem.with_reward(reward)


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
) -> tuple[Array, Move, Any]:
    """One agent's action, where it comes to rest, and whether it was carried off by a trip."""
    grid = problem.grid
    action_key, noise_key = jax.random.split(key)
    mu = mean_field_at(grid, mass, state, step)
    action = policy.law(state, mu).sample(action_key)
    draws = problem.noise.draws(grid, noise_key, (), state.dtype)
    moved = agent_move(grid, problem.noise, motion, state, action, mu, draws)
    if problem.trips is None:
        return action, moved, jnp.zeros((), dtype=bool)
    trips, cell = problem.trips, grid.index_of(state)
    chance = trips.chances(grid, mass, step)[cell]
    uniforms = jax.random.uniform(jax.random.fold_in(key, 2), (2 + grid.dim,), dtype=state.dtype)
    ride = Ride.of(grid, trips.landings(step), cell, chance, uniforms)
    return action, carried_off(problem, moved, ride), ride.taken


def carried_off(problem: Problem, moved: Move, ride: Ride) -> Move:
    """Where an agent comes to rest: by its own move, or where its trip ends."""
    centre = jnp.asarray(problem.grid.centres, dtype=ride.position.dtype)[ride.index]
    end = centre if problem.noise.centred else ride.position
    return Move(
        position=jnp.where(ride.taken, end, moved.position),
        stopped=moved.stopped & ~ride.taken,
        index=jnp.where(ride.taken, ride.index, moved.index),
    )


def agent_move(
    grid: Grid,
    noise: Noise,
    motion: Motion,
    state: State,
    action: Action,
    mu: MeanField,
    draws: Float[Array, "draws"],
) -> Move:
    """One agent's move, given its action and the random numbers of the noise."""
    return noise.move(grid, state, agent_aim(grid, motion, state, action, mu), draws)


def agent_aim(grid: Grid, motion: Motion, state: State, action: Action, mu: MeanField) -> State:
    """Where one agent would be without noise and walls."""
    # The shorter way round on periodic axes, as in the flow.
    wanted = jnp.asarray(motion(state, action, mu), dtype=state.dtype)
    return state + grid.displacement(state, wanted)


_inspect = eqx.filter_jit(Flow.inspect)


@eqx.filter_jit
def _track(
    problem: Problem, motion: Motion, profile: Profile, rollout: Rollout, key: Key, agents: int
) -> Episode:
    """An episode of tracked agents within the population of a rollout."""
    start_key, key = jax.random.split(key)

    def step(states: Array, inputs: Any) -> tuple[Array, Any]:
        part, mass, step_key, number = inputs
        policy = profile.join(part)
        keys = jax.random.split(step_key, agents)
        actions, moved, carried = jax.vmap(
            lambda state, k: agent_step(problem, motion, policy, state, mass, k, number)
        )(states, keys)
        return moved.position, (actions, moved.stopped, carried)

    def begun(states: Array, inputs: Any) -> tuple[Array, Any]:
        moved, kept = if_begun(problem, inputs[-1], lambda now: step(now, inputs), states)
        return moved, (states, *kept)

    keys = jax.random.split(key, problem.horizon)
    inputs = (profile.per_step, rollout.mass[:-1], keys, problem.steps)
    last, paths = jax.lax.scan(begun, problem.draw_starts(start_key, agents), inputs)
    states, actions, stopped, carried = (jnp.swapaxes(path, 0, 1) for path in paths)
    return Episode(
        states=states,
        actions=actions,
        # Not a result of its own, which the compiler might round otherwise than the next state.
        next_states=jnp.concatenate([states[:, 1:], last[:, None]], axis=1),
        stopped=stopped,
        mass=rollout.mass,
        rewards=rollout.rewards,
        present=None if problem.first is None else jnp.broadcast_to(problem.begun, carried.shape),
        carried=None if problem.trips is None else carried,
    )


def _check_rollout(
    problem: Problem, motion: Motion, profile: Profile, rollout: Rollout, check: PolicyCheck
) -> None:
    """Raises if an action was not allowed, a result not finite or a move beyond ``max_move``."""
    allowed = np.asarray(check.allowed | ~problem.begun)
    if not allowed.all():
        step = int(np.argmin(allowed))
        mass = rollout.mass[step]
        law = profile.at(step).at_cells(problem.grid, mass, step)
        used = (law.weights != 0) & (mass[:, None] > 0)
        outside = np.argwhere(~np.asarray(problem.actions.contains(law.actions) | ~used))
        cell, choice = (int(i) for i in outside[0])
        where = f"cell {tuple(int(c) for c in problem.grid.free_cells[cell])}"
        action = law.actions[cell, choice]
        raise outside_actions(problem, action, step, where, table=profile.by_cell)
    finite = jnp.all(jnp.isfinite(rollout.mass)) & jnp.all(jnp.isfinite(rollout.rewards))
    if bool(finite) and not bool(jnp.isfinite(rollout.value)):
        raise UserError(
            f"the sum of the rewards overflows, as each is as large as "
            f"{float(jnp.max(jnp.abs(rollout.rewards))):.3g}; divide the reward by a constant"
        )
    if not bool(finite):
        raise UserError(
            "the episode is not finite: "
            + (
                diagnose(problem, motion, rollout.mass)
                or "the motion or the reward returned NaN or infinity for a state, action or "
                "distribution that the policy led to"
            )
        )
    check_weights(float(jnp.max(check.weight_error)), float(jnp.min(check.least_weight)))
    _check_farthest(problem, np.asarray(jnp.max(check.farthest, axis=0)))


def _check_agents(problem: Problem, profile: Profile, episode: Episode) -> None:
    """Raises if a tracked agent's action was not allowed or its position is not finite."""
    if not bool(jnp.all(jnp.isfinite(episode.next_states))):
        raise UserError(
            "a tracked agent's position is not finite: the motion returned NaN or infinity for a "
            "state that is no cell centre"
        )
    inside = np.asarray(problem.actions.contains(episode.actions) | ~problem.begun)
    if not inside.all():
        agent, step = (int(i) for i in np.argwhere(~inside)[0])
        where = f"state {np.asarray(episode.states[agent, step])}"
        action = episode.actions[agent, step]
        raise outside_actions(problem, action, step, where, table=profile.by_cell)


def outside_actions(
    problem: Problem, action: Action, step: int, where: str, *, table: bool
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


def check_weights(error: float, least: float) -> None:
    """Raises unless a randomised policy's weights are distributions.

    ``error`` is the largest difference of a cell's sum from 1, ``least`` the smallest weight.
    """
    if not (error <= MASS_TOLERANCE and least >= 0):
        raise UserError(
            "the weights of a randomised policy must be non-negative and sum to 1 in every cell; "
            f"the sums are off by up to {error:.3g}, the least weight is {least:.3g}; "
            "normalise them"
        )


def check_motion(problem: Problem, motion: Motion) -> None:
    """Raises if the motion has the wrong shape, is not finite, or goes beyond ``max_move``."""
    grid = problem.grid
    aims = check_function(problem, motion, "the motion", (grid.dim,), problem.actions.points(3))
    moved = np.abs(grid.displacement(grid.centres[:, None], aims))
    _check_farthest(problem, moved.max(axis=(0, 1)))


def _check_farthest(problem: Problem, farthest: Float[np.ndarray, "dim"]) -> None:
    if np.any(farthest > np.asarray(problem.max_move) * (1 + 1e-4)):
        raise UserError(
            f"the motion carries agents up to {farthest} in one step, farther than the problem's "
            f"max_move {problem.max_move}; raise max_move, so that the flow's windows reach"
        )
