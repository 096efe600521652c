"""Small worlds and tolerances that several tests share."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from mufield import Box, Problem, log_mass, uniform

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
"""How exactly mass is conserved, for each precision."""


def random_walls(shape, share, seed):
    """A mask with about ``share`` of the cells walled, and the first cell free."""
    walls = np.random.default_rng(seed).random(shape) < share
    walls[(0,) * len(shape)] = False
    return walls


def walking_problem(grid, *, noise=0.25, horizon=5, max_move=1.0, initial=None, **options):
    """Agents that walk as they act and avoid crowds."""
    return Problem(
        space=grid,
        actions=Box(-1.0, 1.0, dim=grid.dim),
        reward=options.pop("reward", avoid_crowds),
        horizon=horizon,
        initial=uniform(grid) if initial is None else initial,
        noise=noise,
        max_move=max_move,
        **options,
    )


def avoid_crowds(state, action, mu):
    return -log_mass(mu.density_here)


@eqx.filter_jit
def one_step(flow, mass, law):
    """One step of the flow, compiled."""
    return flow.step(mass, law, walk)


def walk(state, action, mu):
    return state + action


def random_laws(grid, seed, moves=1):
    """Random actions in every cell, with random weights."""
    from mufield.policies import ActionLaw

    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(moves), size=grid.n_cells)
    actions = rng.uniform(-1, 1, size=(grid.n_cells, moves, grid.dim))
    return ActionLaw(actions=jnp.asarray(actions), weights=jnp.asarray(weights))


def closed_while_it_works(pool, job, directory):
    """Closes a pool, as Ctrl-C does, while it computes a job without end; the job's process."""
    from mufield.jobs.job import Job, JobStore
    from mufield.jobs.pool import Task, Working

    store, begun, endless = JobStore(directory), directory / "begun", directory / "endless.py"
    endless.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(begun)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    stuck = Job("stuck", "random", job.settings | {"imports": str(endless)})
    running = pool.run([Task(stuck, store.begin(stuck))])
    while not begun.exists() or not begun.read_text():
        assert isinstance(next(running), Working)
    running.close()
    return int(begun.read_text())
