"""One compiled step of a block of agents."""

from functools import partial, reduce
from operator import and_
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, UInt32

from .._types import CellIndex, Key, Mass, Scalar
from ..errors import UserError
from ..fleet.trips import Ride
from ..policies.base import AbstractPolicy, ActionLaw, Profile
from ..problem import Motion, Problem
from ..space.measure import MeanField, place_agents
from ..space.move import GaussianNoise, Noise, move_with_noise
from ..space.wall_rule import Ends, Move
from ..systems import agent_aim, carried_off, outside_actions
from .draws import CellLaws, drawn, normal, random_bits, uniform

TOGETHER = 1 << 12
"""Most agents that compiled code moves at once: so many that the caches hold what is between."""


class Rules(eqx.Module):
    """What moves agents. It does not depend on their number, so that compiled code is shared."""

    problem: Problem
    motion: Motion
    noise: Noise
    lost: float = eqx.field(static=True)
    centred: bool = eqx.field(static=True)


class Step(NamedTuple):
    """What all agents share at one step.

    Attributes:
        choose: How they decide.
        number: Number of the step, from 0 at the start.
        seed: Randomness of the step.
        life_key: Randomness of when agents drop out; the same at all steps.
        now: The present distribution mu.
        seen: The distribution that policies see, which may be an older one.
    """

    rules: Rules
    choose: CellLaws | AbstractPolicy
    number: Int[Array, ""]
    seed: UInt32[ArrayLike, "parts"]
    life_key: Key
    now: Mass
    seen: Mass


class Block(NamedTuple):
    """Some of the agents: their positions and cells, and how many are in each cell.

    Positions have one array for each axis, which compiled code reads several agents at a time.
    """

    position: tuple[Float[Array, "agents"], ...]
    cell: Int[Array, "agents"]
    counts: Int[Array, "cells"]


class Moves(NamedTuple):
    """One step of some agents."""

    states: Float[Array, "*agents dim"]
    actions: Float[Array, "*agents action_dim"]
    next_states: Float[Array, "*agents dim"]
    stopped: Bool[Array, "*agents dim"]
    carried: Bool[Array, "*agents"]


class Advanced(NamedTuple):
    """A block after a step: ``valid`` if all moves are allowed and finite.

    ``rewards`` are sums over some thousand agents each.
    """

    block: Block
    rewards: Float[Array, "parts"]
    valid: Bool[Array, ""]
    tracked: Moves | None

    @property
    def earned(self) -> float:
        """Sum of the rewards, in double precision."""
        return float(np.sum(np.asarray(self.rewards), dtype=np.float64))


def choices(
    rules: Rules, profile: Profile, number: Int[Array, ""], now: Mass, seen: Mass
) -> CellLaws | AbstractPolicy:
    """How agents decide at a step: by one table if all agents of a cell have the same law."""
    if not (rules.centred or profile.by_cell):
        return _policy_at(profile, number)
    return CellLaws.build(_at_cells(profile, number, rules.problem, seen), np.asarray(now) > 0)


_policy_at = eqx.filter_jit(Profile.at)


@eqx.filter_jit
def _at_cells(profile: Profile, step: Int[Array, ""], problem: Problem, mass: Mass) -> ActionLaw:
    return profile.at(step).at_cells(problem.grid, mass, step)


@eqx.filter_jit
def begin(rules: Rules, key: Key, number: Int[Array, ""], size: int) -> Block:
    """Draws a block of agents from the initial distribution."""
    problem = rules.problem
    key = jax.random.fold_in(key, number)
    placed = place_agents(problem.grid, problem.initial, key, size, centred=rules.centred)
    return Block(
        tuple(placed.position.T), placed.cell, _counts(rules, placed.cell, jnp.asarray(True))
    )


def advance(step: Step, number: Int[Array, ""], block: Block, watched: int) -> Advanced:
    """Moves a block of agents, of which the first ``watched`` are tracked.

    Raises if an action is not allowed or a position is not finite.
    """
    problem = step.rules.problem
    dim = problem.grid.dim
    words = 1 + (dim if isinstance(step.rules.noise, GaussianNoise) else 0)
    words += 0 if problem.trips is None else 2 + dim
    bits = random_bits(np.asarray(step.seed), int(number), len(block.cell), words)
    move = partial(_advance, step, number, block, tuple(map(jnp.asarray, bits)))
    done = move(watched)
    if not bool(done.valid):
        # Repeats the step with all agents tracked, to find the one to blame.
        moves = move(len(block.cell)).tracked
        assert moves is not None
        _refuse(step, moves)
    return done


def _refuse(shared: Step, moves: Moves) -> None:
    """Raises an error about the first invalid move."""
    problem = shared.rules.problem
    step = int(shared.number)
    outside = ~np.asarray(problem.actions.contains(moves.actions))
    broken = ~np.isfinite(np.asarray(moves.next_states)).all(axis=1)
    agent = int(np.argmax(outside | broken))
    state, action = np.asarray(moves.states[agent]), np.asarray(moves.actions[agent])
    if outside[agent]:
        # Where agents stand at cell centres, functions are made tables, too.
        table = isinstance(shared.choose, CellLaws) and not shared.rules.centred
        raise outside_actions(problem, moves.actions[agent], step, f"state {state}", table=table)
    raise UserError(
        f"an agent's position is not finite: the motion returned NaN or infinity for the state "
        f"{state} and the action {action} at step {step}"
    )


@eqx.filter_jit
def _advance(
    step: Step,
    number: Int[Array, ""],
    block: Block,
    bits: tuple[UInt32[Array, "agents"], ...],
    watched: int,
) -> Advanced:
    rules, choose = step.rules, step.choose
    problem, grid = rules.problem, rules.problem.grid
    clock = step.number
    size, dtype = block.cell.shape[0], block.position[0].dtype
    centres = jnp.asarray(grid.centres, dtype=dtype)
    pushes = bits[1 : 1 + grid.dim]
    if not isinstance(rules.noise, GaussianNoise):
        key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(step.seed)), number)
        pushes = tuple(rules.noise.draws(grid, key, (size,), dtype).T)

    def decide(place: tuple[Scalar, ...], cell: CellIndex, choice: Any) -> tuple[Any, ...]:
        """One agent's action, where it aims, its reward, and whether the action is allowed."""
        state = jnp.stack(place)
        mu = MeanField(mass=step.now, here=step.now[cell], grid=grid, step=clock)
        if isinstance(choose, CellLaws):
            action = choose.action(cell, choice)
        else:
            seen = MeanField(step.seen, step.seen[cell], grid, clock)
            action = drawn(choose.law(state, seen), choice)
        problem.check_action(action.shape)
        aim = agent_aim(grid, rules.motion, state, action, mu)
        reward = problem.reward(centres[cell], action, mu)
        return tuple(action), tuple(aim), reward, problem.actions.contains(action)

    def some(agents: tuple[Any, ...]) -> tuple[Any, ...]:
        """Moves as many agents as the caches hold."""
        place, cell, first, pushes, paid = agents
        chance = uniform(first, dtype)
        if isinstance(rules.noise, GaussianNoise):
            pushes = tuple(normal(push, dtype) for push in pushes)
        choice = choose.find(cell, chance) if isinstance(choose, CellLaws) else chance
        actions, aims, rewards, allowed = jax.vmap(decide)(place, cell, choice)
        moved = move_with_noise(grid, rules.noise, place, cell, aims, pushes)
        valid = reduce(and_, map(jnp.isfinite, moved.position), allowed)
        return actions, moved, jnp.sum(jnp.where(paid, rewards, 0.0)), jnp.all(valid)

    parts = -(-size // TOGETHER)
    extra = -size % parts  # the last agent moves so often again

    def split(each: Array) -> Array:
        return jnp.pad(each, (0, extra), mode="edge").reshape(parts, -1)

    life_key = jax.random.fold_in(step.life_key, number)
    since = step.number if problem.first is None else step.number - problem.first
    here, later = _present(rules, since, life_key, size, watched)
    paid = jnp.pad(jnp.broadcast_to(here, size), (0, extra)).reshape(parts, -1)
    rows = jax.tree.map(split, (block.position, block.cell, bits[0], pushes))
    *found, rewards, valid = jax.lax.map(some, (*rows, paid))
    actions, crowd = jax.tree.map(lambda each: each.reshape(-1)[:size], tuple(found))
    carried = jnp.zeros(size, dtype=bool)
    if problem.trips is not None:
        chance = problem.trips.chances(grid, step.now, clock)[block.cell]
        landings = problem.trips.landings(clock)
        uniforms = uniform(jnp.stack(bits[-(2 + grid.dim) :], axis=1), dtype)
        rides = jax.vmap(partial(Ride.of, grid, landings))(block.cell, chance, uniforms)
        crowd, carried = jax.vmap(partial(_after_ride, problem))(crowd, rides), rides.taken
    position = tuple(centres[crowd.cell].T) if rules.centred else crowd.position
    moves = (block.position, actions, crowd.position, crowd.stopped)
    states, taken, ends, stopped = (
        jnp.stack([column[:watched] for column in columns], axis=1) for columns in moves
    )
    tracked = Moves(states, taken, ends, stopped, carried[:watched])
    return Advanced(
        block=Block(position, crowd.cell, _counts(rules, crowd.cell, later)),
        rewards=rewards,
        valid=jnp.all(valid),
        tracked=tracked if watched else None,
    )


def _after_ride(problem: Problem, crowd: Ends, ride: Ride) -> Ends:
    """Where one agent is if a trip may have carried it off."""
    walked = Move(jnp.stack(crowd.position), jnp.stack(crowd.stopped), crowd.cell)
    moved = carried_off(problem, walked, ride)
    return Ends(tuple(moved.position), tuple(moved.stopped), moved.index)


def _present(
    rules: Rules, step: Int[Array, ""], key: Key, size: int, watched: int
) -> tuple[Bool[Array, "*agents"], Bool[Array, "*agents"]]:
    """Which agents have not dropped out at a step, and which not at the next one.

    Lifetimes are drawn again from the same key at each step, which is cheaper than storing them.
    """
    if rules.lost == 0:
        return jnp.ones((), dtype=bool), jnp.ones((), dtype=bool)
    life = jax.random.uniform(key, (size,))
    spared = jnp.arange(size) < watched
    survival = 1.0 - rules.lost
    return (life < survival**step) | spared, (life < survival ** (step + 1)) | spared


def _counts(
    rules: Rules, cell: Int[Array, "agents"], present: Bool[Array, "*agents"]
) -> Int[Array, "cells"]:
    cells = rules.problem.grid.n_cells
    return jnp.zeros(cells, dtype=jnp.int32).at[cell].add(present.astype(jnp.int32))
