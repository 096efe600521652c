"""A budget so small that everything can be computed in a test, and results that nobody computed."""

import jax
import jax.numpy as jnp
import numpy as np

from mufield import save_policy
from mufield.jobs.compute import simulated
from mufield.jobs.job import write_result
from mufield.policies.base import Profile
from mufield.policies.tables import TablePolicy
from reproduction.paper import Budget

TINY = Budget(
    name="tiny",
    rooms_seeds=2,
    rooms_episodes=2,
    rooms_options={"points": 3, "sweeps": 2},
    network_seeds=2,
    network_episodes=2,
    network_options={"steps": 2, "table_steps": 2, "fit_steps": 2, "sweeps": 2, "points": 3},
    model="ensemble",
    model_options={"members": 2, "width": 4, "steps": 3},
    swarm_episodes=2,
    swarm_steps=2,
    known_steps=2,
    known_starts=1,
    known_swarm_steps=2,
    sweeps=2,
    discrete_sweeps=2,
    q_episodes=100,
    q_every=10,
    precision="float64",
    rooms={"horizon": 3, "drawing": "...\n.#.\n..."},
    swarm={"horizon": 6, "cells": 8},
    fine_swarm={"horizon": 8, "cells": 8},
    films=1,
)


def pretend(results, items, *, policies=True):
    """Writes results of jobs that were never computed; policies are random tables."""
    jobs = {job.folder: job for item in items for job in item.jobs(results.budget)}
    for job in jobs.values():
        path = results.begin(job)
        if policies and job.kind == "plan":
            save_policy(path / "plan.policy", _random_plan(job))
        if policies and job.kind == "learn":
            (path / "run" / "policies").mkdir(parents=True)
            for episode in range(1, job.settings["episodes"] + 1):
                save_policy(path / f"run/policies/{episode:04d}.policy", _random_plan(job))
        write_result(path, job, _figures(job), 1.5)


def _random_plan(job):
    problem = simulated(job.settings).problem
    shape = (problem.horizon, problem.grid.n_cells, problem.grid.dim)
    actions = jax.random.uniform(jax.random.key(0), shape, minval=-1.0, maxval=1.0)
    return Profile.stacked(
        TablePolicy.deterministic(jnp.asarray(actions, dtype=float)), problem.horizon
    )


def _figures(job):
    steps = {
        "rewards": np.array([0.0, 1.0, 2.0, 2.0]),
        "action_sizes": np.array([1.0, 0.5, 0.25]),
    }
    if job.kind == "learn":
        values = np.array([70.0, 78.0 + job.settings["seed"]])
        return {"rows": [], "values": values, "best_episode": 2, **steps}
    if job.kind == "qlearning":
        curve = {"training": np.array([1.0, 2.0]), "evaluation": np.array([3.0, 4.0])}
        return {"episodes": np.array([50, 100]), "entries": 10_400, **curve}
    return {"value": 78.0, "upper": 79.0, **steps}
