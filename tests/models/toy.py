"""Data of small made-up worlds for the tests of models; nothing here compiles a flow."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from helpers import walking_problem

from mufield import Episode, Grid
from mufield.models.kernels import AbstractPrior, Product, Select, SquaredExponential

LINE = Grid.box(0.0, 4.0, 4)
RING = Grid.box(0.0, 1.0, 8, periodic=True)
PLANE = Grid.box(0.0, 4.0, (4, 4))


def toy_problem(grid=PLANE, *, noise=0.1, horizon=20, max_move=1.0):
    return walking_problem(grid, noise=noise, horizon=horizon, max_move=max_move)


def toy_episode(problem, seed, agents=1, slope=0.8):
    """Agents anywhere that move by ``slope`` times their action; the box's border stops them."""
    rng = np.random.default_rng(seed)
    grid, steps = problem.grid, problem.horizon
    low, high = np.asarray(grid.lower), np.asarray(grid.upper)
    shape = (agents, steps, grid.dim)
    states = rng.uniform(low + 1e-3, high - 1e-3, size=shape)
    actions = rng.uniform(-1, 1, size=shape)
    moved = slope * actions * np.asarray(problem.max_move)
    aims = states + moved + rng.normal(size=shape) * np.asarray(problem.noise.std)
    ends = np.where(grid.periodic, low + (aims - low) % (high - low), np.clip(aims, low, high))
    stopped = ~np.asarray(grid.periodic) & (ends != aims)
    return Episode(
        states=jnp.asarray(states),
        actions=jnp.asarray(actions),
        next_states=jnp.asarray(ends),
        stopped=jnp.asarray(stopped),
        mass=jnp.asarray(rng.dirichlet(np.ones(grid.n_cells), size=steps + 1)),
        rewards=jnp.asarray(rng.normal(size=problem.paid_steps)),
    )


class Smooth(AbstractPrior):
    """A user's own prior: a squared exponential for state and action, times one for mu if seen."""

    def __call__(self, features):
        of_state, of_action, of_mu = features.parts
        own = SquaredExponential(jnp.full(features.own_size, 2.0), 0.5)
        if not of_mu:
            return own
        return Product(Select(own, of_state + of_action), Select(SquaredExponential(2.0), of_mu))


def left_out(data):
    """Stopped moves that end inside their cells, so that nobody knows on which side the wall is."""
    centres = np.minimum(np.floor(data.next_states), 3.0) + 0.5
    return replace(data, next_states=np.where(data.observed, data.next_states, centres))
