"""One compiled step of a block of agents."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, UInt32

from .._types import CellIndex, Key, Mass, Scalar, State
from ..errors import UserError
from ..policies.base import AbstractPolicy, ActionLaw, Profile
from ..problem import Motion, Problem
from ..space.measure import MeanField, place_agents
from ..space.move import GaussianNoise, Noise
from ..systems import agent_move, carried_off, outside_actions
from ..trips import Ride
from .draws import CellLaws, drawn, normal, random_bits, uniform


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
    """Some of the agents: their positions and cells, and how many are in each cell."""

    position: Float[Array, "agents dim"]
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
    """A block after a step: ``valid`` if all moves are allowed and finite."""

    block: Block
    rewards: Float[Array, "agents"]
    valid: Bool[Array, ""]
    tracked: Moves | None

    @property
    def earned(self) -> float:
        """Sum of the rewards; NumPy adds them in double precision, and faster than JAX."""
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
    return profile.at(step).at_cells(problem.grid, mass)


@eqx.filter_jit
def begin(rules: Rules, key: Key, number: Int[Array, ""], size: int) -> Block:
    """Draws a block of agents from the initial distribution."""
    problem = rules.problem
    key = jax.random.fold_in(key, number)
    placed = place_agents(problem.grid, problem.initial, key, size, centred=rules.centred)
    return Block(placed.position, placed.cell, _counts(rules, placed.cell, jnp.asarray(True)))


def advance(step: Step, number: Int[Array, ""], block: Block, watched: int) -> Advanced:
    """Moves a block of agents, of which the first ``watched`` are tracked.

    Raises if an action is not allowed or a position is not finite.
    """
    problem = step.rules.problem
    dim = problem.grid.dim
    words = 1 + (dim if isinstance(step.rules.noise, GaussianNoise) else 0)
    words += 0 if problem.trips is None else 2 + dim
    bits = random_bits(np.asarray(step.seed), int(number), len(block.cell), words)
    move = partial(_advance, step, number, block, jnp.asarray(bits))
    done = move(watched)
    if not bool(done.valid):
        # Repeats the step with all agents tracked, to find the one to blame.
        moves = move(len(block.cell)).tracked
        assert moves is not None
        _refuse(step, moves)
    return done


def _refuse(shared: Step, moves: Moves) -> None:
    """Raises an error about the first invalid move."""
    problem, step = shared.rules.problem, int(shared.number)
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
    bits: UInt32[Array, "agents words"],
    watched: int,
) -> Advanced:
    rules, choose = step.rules, step.choose
    problem, grid = rules.problem, rules.problem.grid
    size, dtype = block.cell.shape[0], block.position.dtype
    centres = jnp.asarray(grid.centres, dtype=dtype)
    chances = uniform(bits[:, 0], dtype)
    if isinstance(rules.noise, GaussianNoise):
        draws = normal(bits[:, 1 : 1 + grid.dim], dtype)
    else:
        key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(step.seed)), number)
        draws = rules.noise.draws(grid, key, (size,), dtype)

    # Without a barrier the compiler would compute these again wherever they are used.
    chances, draws = jax.lax.optimization_barrier((chances, draws))

    def one(state: State, cell: CellIndex, chance: Scalar, draws: Array) -> tuple[Any, ...]:
        mu = MeanField(mass=step.now, here=step.now[cell], grid=grid, step=step.number)
        if isinstance(choose, CellLaws):
            action = choose.draw(cell, chance)
        else:
            seen = MeanField(step.seen, step.seen[cell], grid, step.number)
            action = drawn(choose.law(state, seen), chance)
        problem.check_action(action.shape)
        moved = agent_move(grid, rules.noise, rules.motion, state, action, mu, draws)
        valid = problem.actions.contains(action) & jnp.all(jnp.isfinite(moved.position))
        return action, moved, problem.reward(centres[cell], action, mu), valid

    actions, moved, rewards, valid = jax.vmap(one)(block.position, block.cell, chances, draws)
    carried = jnp.zeros(size, dtype=bool)
    if problem.trips is not None:
        chance = problem.trips.chances(grid, step.now, step.number)[block.cell]
        landings = problem.trips.landings(step.number)
        luck = uniform(bits[:, bits.shape[1] - (2 + grid.dim) :], dtype)
        rides = jax.vmap(partial(Ride.of, grid, landings))(block.cell, chance, luck)
        moved, carried = jax.vmap(partial(carried_off, problem))(moved, rides), rides.taken
    life_key = jax.random.fold_in(step.life_key, number)
    here, later = _present(rules, step.number - problem.first, life_key, size, watched)
    position = centres[moved.index] if rules.centred else moved.position
    moves = Moves(block.position, actions, moved.position, moved.stopped, carried)
    return Advanced(
        block=Block(position, moved.index, _counts(rules, moved.index, later)),
        rewards=jnp.where(here, rewards, 0.0),
        valid=jnp.all(valid),
        tracked=jax.tree.map(lambda values: values[:watched], moves) if watched else None,
    )


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
    kept = 1.0 - rules.lost
    return (life < kept**step) | spared, (life < kept ** (step + 1)) | spared


def _counts(
    rules: Rules, cell: Int[Array, "agents"], present: Bool[Array, "*agents"]
) -> Int[Array, "cells"]:
    cells = rules.problem.grid.n_cells
    return jnp.zeros(cells, dtype=jnp.int32).at[cell].add(present.astype(jnp.int32))
