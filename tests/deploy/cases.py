"""One policy of every kind that can be exported, each with its problem."""

from functools import cache

import jax
import jax.numpy as jnp

import mufield as mf
from mufield.deploy.export import describe

HORIZON = 4
KEY = jax.random.key(5)


@cache
def rooms(dtype="float64"):
    """Four small rooms in one unit and a half, away from the origin."""
    grid = mf.Grid.from_map("..#..\n.....\n#.#.#", cell_size=(1.5, 0.5), lower=(-2.0, 3.0))
    return problem(grid, mf.Box((-1.0, 0.0), (1.0, 3.0)), dtype)


@cache
def ring(dtype="float64"):
    """A torus on one axis, bounded on the other, with three actions."""
    grid = mf.Grid.box((0.0, -1.0), (1.0, 1.0), (6, 4), periodic=(True, False))
    return problem(grid, mf.Box(-0.25, 0.5, dim=3), dtype)


@cache
def line(dtype="float64"):
    """One dimension and two moves."""
    return problem(mf.Grid.box(0.0, 7.0, 7), mf.MoveSet([[-1.0], [1.0]]), dtype)


def problem(grid, actions, dtype):
    made = mf.Problem(
        space=grid,
        actions=actions,
        reward=lambda state, action, mu: -mf.log_mass(mu.here),
        horizon=HORIZON,
        initial=mf.uniform(grid),
        noise=0.1,
    )
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if isinstance(leaf, jax.Array) else leaf, made
    )


def table(problem, steps=(HORIZON,)):
    shape = (*steps, problem.grid.n_cells, problem.actions.dim)
    share = jax.random.uniform(KEY, shape, problem.initial.dtype)
    lower, upper = (
        jnp.asarray(b, share.dtype) for b in (problem.actions.lower, problem.actions.upper)
    )
    return mf.TablePolicy.deterministic(lower + (upper - lower) * share)


def weights(problem, moves, steps=(HORIZON,)):
    """Uneven weights, many of them zero."""
    shape = (*steps, problem.grid.n_cells, moves)
    raw = jnp.maximum(jax.random.normal(KEY, shape, problem.initial.dtype), 0.0)
    raw = raw.at[..., 1].add(1e-3)
    return raw / raw.sum(axis=-1, keepdims=True)


def randomised(problem, points=3, steps=(HORIZON,)):
    moves = mf.random_policy(problem, points).actions[0].astype(problem.initial.dtype)
    return mf.TablePolicy.mixing(moves, weights(problem, len(moves), steps))


def own_moves(problem, moves=5, steps=(HORIZON,)):
    """Each cell has moves of its own; their weights are the same everywhere."""
    actions = table(problem, (moves, *steps)).actions[..., 0, :]
    return mf.TablePolicy(jnp.moveaxis(actions, 0, -2), weights(problem, moves, steps)[..., :1, :])


def stacked(policy):
    return mf.Profile.stacked(policy, HORIZON)


def stationary(policy):
    return mf.Profile.stationary(policy, HORIZON)


def network(problem, mu=mf.policies.Unseen(), **options):  # noqa: B008
    return mf.policies.network_profile(problem, KEY, mu=mu, **options)


CASES = {
    "network that sees nobody": lambda d: (network(rooms(d)), rooms(d)),
    "network of every cell": lambda d: (
        network(rooms(d), mf.policies.Pooled(1), width=5, depth=1),
        rooms(d),
    ),
    "network of blocks": lambda d: (network(ring(d), mf.policies.Pooled(2), depth=3), ring(d)),
    "stationary network": lambda d: (
        stationary(network(ring(d), mf.policies.Pooled(1)).at(1)),
        ring(d),
    ),
    "own moves by step": lambda d: (stacked(own_moves(rooms(d))), rooms(d)),
    "stationary own moves": lambda d: (stationary(own_moves(ring(d), 2, ())), ring(d)),
    "table by step": lambda d: (stacked(table(rooms(d))), rooms(d)),
    "stationary table": lambda d: (stationary(table(ring(d), ())), ring(d)),
    "randomised by step": lambda d: (stacked(randomised(rooms(d))), rooms(d)),
    "stationary randomised": lambda d: (stationary(randomised(ring(d), 2, ())), ring(d)),
    "moves of a set": lambda d: (stacked(randomised(line(d))), line(d)),
    "uniform": lambda d: (stationary(mf.random_policy(rooms(d), 3)), rooms(d)),
}
CASES = {name: cache(make) for name, make in CASES.items()}


@cache
def deployed(case, dtype="float64"):
    """A case as a reader would have it."""
    return describe(*CASES[case](dtype))
