"""One compiled step of a block of agents."""

from functools import partial, reduce
from operator import and_
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, UInt32

from .._arrays import CellIndex, Key, Mass, Scalar
from ..flow.checks import check_moves
from ..policies.base import AbstractPolicy, ActionLaw, Profile
from ..problem import Motion, Problem
from ..space.measure import MeanField, place_agents
from ..space.move import Ends, Move
from ..systems import agent_target
from .draws import CellLaws, drawn, random_bits, uniform


class Rules(eqx.Module):
    """What moves agents, however many there are; `centred` is that of `FiniteSystem`."""

    problem: Problem
    motion: Motion
    centred: bool = eqx.field(static=True)


class Step(NamedTuple):
    """What all agents share at one step."""

    rules: Rules
    choose: CellLaws | AbstractPolicy
    number: Int[Array, ""]
    seed: UInt32[ArrayLike, "parts"]
    mass: Mass


class Block(NamedTuple):
    """Some of the agents: their positions and cells, and how many are in each cell.

    Positions have one array for each axis, which compiled code reads several agents at a time.
    ``until`` is the step from which an agent is free: later than the present one if it is under
    way, and then its cell is where it will arrive. Rows of ``counts`` are the steps until then.
    """

    position: tuple[Float[Array, "agents"], ...]
    cell: Int[Array, "agents"]
    until: Int[Array, "agents"]
    counts: Int[Array, "stages_and_one cells"]


class Moves(NamedTuple):
    """One step of some agents."""

    states: Float[Array, "*agents dim"]
    actions: Float[Array, "*agents action_dim"]
    next_states: Float[Array, "*agents dim"]
    stopped: Bool[Array, "*agents dim"]
    carried: Bool[Array, "*agents"]
    present: Bool[Array, "*agents"]


class Advanced(NamedTuple):
    """A block after a step: ``valid`` if all moves of free agents are allowed and finite.

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
    rules: Rules, profile: Profile, number: Int[Array, ""], mass: Mass
) -> CellLaws | AbstractPolicy:
    """How agents decide at a step: by one table if all agents of a cell have the same law."""
    if not (rules.centred or profile.by_cell):
        return _policy_at(profile, number)
    return CellLaws.build(_laws_at(profile, number, rules.problem, mass), np.asarray(mass) > 0)


_policy_at = eqx.filter_jit(Profile.at)


@eqx.filter_jit
def _laws_at(profile: Profile, step: Int[Array, ""], problem: Problem, mass: Mass) -> ActionLaw:
    return profile.at(step).at_cells(problem.grid, mass, step)


@eqx.filter_jit
def begin(rules: Rules, key: Key, number: Int[Array, ""], size: int) -> Block:
    """Draws a block of agents from the initial distribution."""
    problem, begins = rules.problem, rules.problem.initial_arrivals
    key, mass = jax.random.fold_in(key, number), jnp.sum(begins, axis=0)
    placed = place_agents(problem.grid, mass, key, size, centred=rules.centred)
    first = jnp.asarray(0 if problem.first is None else problem.first, dtype=jnp.int32)
    until = jnp.full(size, first)
    if len(begins) > 1:
        chances = jnp.cumsum(begins, axis=0)[:, placed.cell] / mass[placed.cell]
        draws = jax.random.uniform(jax.random.fold_in(key, 1), (size,))
        until += jnp.sum(chances[:-1] <= draws, axis=0, dtype=jnp.int32)
    return _block(rules, tuple(placed.position.T), placed.cell, until, first)


def advance(step: Step, number: Int[Array, ""], block: Block, watched: int) -> Advanced:
    """Moves a block of agents, of which the first ``watched`` are tracked.

    Raises if an action is not allowed or a position is not finite.
    """
    rules, problem = step.rules, step.rules.problem
    words = 1 + problem.noise.numbers(problem.grid)
    words += 0 if problem.trips is None else 2 + problem.grid.dim
    bits = random_bits(np.asarray(step.seed), int(number), len(block.cell), words)
    move = partial(_advance, step, block, tuple(map(jnp.asarray, bits)))
    done = move(watched)
    if not bool(done.valid):
        # Repeats the step with all agents tracked, to find the one to blame. Where agents stand at
        # cell centres, functions are made tables, too.
        table = isinstance(step.choose, CellLaws) and not rules.centred
        check_moves(problem, move(len(block.cell)).tracked, table, int(step.number))
    return done


@eqx.filter_jit
def _advance(
    step: Step, block: Block, bits: tuple[UInt32[Array, "agents"], ...], watched: int
) -> Advanced:
    rules, choose = step.rules, step.choose
    problem, grid, noise = rules.problem, rules.problem.grid, rules.problem.noise
    size, dtype = block.cell.shape[0], block.position[0].dtype
    centres = jnp.asarray(grid.centres, dtype=dtype)

    def decide(place: tuple[Scalar, ...], cell: CellIndex, choice: Any) -> tuple[Any, ...]:
        """One agent's action, where it would go, its reward, and whether the action is allowed."""
        state = jnp.stack(place)
        mu = MeanField(mass=step.mass, here=step.mass[cell], grid=grid, step=step.number)
        if isinstance(choose, CellLaws):
            action = choose.action(cell, choice)
        else:
            action = drawn(choose.law(state, mu), choice)
        problem.check_action(action.shape)
        target = agent_target(rules.motion, state, action, mu)
        reward = problem.reward(centres[cell], action, mu)
        return tuple(action), noise.parts(target), reward, problem.actions.contains(action, cell)

    def some(agents: tuple[Any, ...]) -> tuple[Any, ...]:
        """Moves as many agents as the caches hold."""
        place, cell, (first, *more), paid = agents
        chance = uniform(first, dtype)
        draws = tuple(noise.from_uniform(uniform(each, dtype)) for each in more)
        choice = choose.find(cell, chance) if isinstance(choose, CellLaws) else chance
        actions, targets, rewards, allowed = jax.vmap(decide)(place, cell, choice)
        moved = noise.move_many(grid, place, cell, targets, draws)
        valid = reduce(and_, map(jnp.isfinite, moved.position), allowed)
        return actions, moved, jnp.sum(jnp.where(paid, rewards, 0.0)), jnp.all(valid | ~paid)

    parts = -(-size // 4096)  # so few at a time that the caches hold what is between
    extra = -size % parts  # repeats of the last agent, which fill the last part

    def split(each: Array) -> Array:
        return jnp.pad(each, (0, extra), mode="edge").reshape(parts, -1)

    free = block.until <= step.number
    paid = jnp.pad(free, (0, extra)).reshape(parts, -1)
    used = bits[: 1 + noise.numbers(grid)]
    rows = jax.tree.map(split, (block.position, block.cell, used))
    *found, rewards, valid = jax.lax.map(some, (*rows, paid))
    actions, crowd = jax.tree.map(lambda each: each.reshape(-1)[:size], tuple(found))
    carried, until = jnp.zeros(size, dtype=bool), jnp.full(size, step.number + 1)
    if problem.trips is not None:
        uniforms = uniform(jnp.stack(bits[len(used) :], axis=1), dtype)
        ride = jax.vmap(partial(_after_trip, step))
        crowd, carried, lasts = ride(block.cell, crowd, uniforms)
        until = step.number + lasts
    if len(problem.initial_arrivals) > 1:
        own, rest = (crowd.position, crowd.cell, until), (block.position, block.cell, block.until)
        position, cell, until = jax.tree.map(partial(jnp.where, free), own, rest)
        crowd, carried = Ends(position, crowd.stopped, cell), carried & free
    position = tuple(centres[crowd.cell].T) if rules.centred else crowd.position
    moves = (block.position, actions, crowd.position, crowd.stopped)
    states, taken, ends, stopped = (
        jnp.stack([column[:watched] for column in columns], axis=1) for columns in moves
    )
    tracked = Moves(states, taken, ends, stopped, carried[:watched], free[:watched])
    return Advanced(
        block=_block(rules, position, crowd.cell, until, step.number + 1),
        rewards=rewards,
        valid=jnp.all(valid),
        tracked=tracked if watched else None,
    )


def _after_trip(
    step: Step, cell: CellIndex, crowd: Ends, uniforms: Float[Array, "draws"]
) -> tuple[Ends, Bool[Array, ""], Int[Array, ""]]:
    """Where one agent is if a trip may have carried it off, whether one did, and how long."""
    problem = step.rules.problem
    assert problem.trips is not None
    moved = Move(jnp.stack(crowd.position), jnp.stack(crowd.stopped), crowd.cell)
    ended, carried, lasts = problem.trips.carry(
        problem.grid, step.mass, step.number, cell, moved, uniforms, centred=problem.noise.centred
    )
    return Ends(tuple(ended.position), tuple(ended.stopped), ended.index), carried, lasts


def _block(
    rules: Rules,
    position: tuple[Float[Array, "agents"], ...],
    cell: Int[Array, "agents"],
    until: Int[Array, "agents"],
    now: Int[Array, ""],
) -> Block:
    rows, cells = rules.problem.initial_arrivals.shape
    row = jnp.clip(until - now, 0, rows - 1)
    counts = jnp.zeros((rows, cells), dtype=jnp.int32).at[row, cell].add(1)
    return Block(position, cell, until, counts)
