"""Run directories as the learner writes them, but made up, so that they cost nothing."""

import threading
from contextlib import contextmanager

import jax.numpy as jnp
import numpy as np

from mufield import save_policy
from mufield.io import sealed as files
from mufield.learning.metrics import EpisodeMetrics
from mufield.policies.base import Profile
from mufield.policies.tables import TablePolicy
from mufield.report.server import PageServer
from mufield.runs.config import RunConfig
from mufield.runs.layout import LAYOUT

ROOMS = RunConfig(environment="four-rooms", episodes=30, precision="float64")
SMALL = RunConfig(
    environment="four-rooms",
    options={"horizon": 3, "drawing": "...\n.#.\n..."},
    episodes=5,
    precision="float64",
)
LINE = RunConfig(
    environment="swarm",
    options={"horizon": 4, "cells": 24},
    episodes=2,
    precision="float64",
)


def begin(directory, config):
    """A run without episodes."""
    for part in ("policies", "plans", "episodes"):
        (directory / part).mkdir(parents=True)
    files.write_json(directory / "versions.json", {"mufield": "0.1.0", "python": "3.11"})
    files.write_json(directory / "config.json", config.document())
    return directory


def add_episode(directory, problem, number, **changes):
    """One more episode, with random distributions and actions."""
    draw = np.random.default_rng(number)
    cells, dim, steps = problem.grid.n_cells, problem.grid.dim, problem.horizon
    shares = draw.exponential(size=(steps + 1, cells)) ** 2
    masses = shares / shares.sum(axis=1, keepdims=True)
    actions = draw.uniform(-1, 1, size=(steps, cells, problem.actions.dim))
    profile = Profile.stacked(TablePolicy.deterministic(jnp.asarray(actions)), steps)
    save_policy(directory / "policies" / f"{number:04d}.policy", profile)
    path = directory / "plans" / f"{number:04d}.safetensors"
    files.write_sealed(path, {}, {"mass": masses}, kind=LAYOUT.plan)
    stopped = np.zeros((1, steps, dim), dtype=bool)
    stopped[0, 0, 0] = True
    arrays = {
        "states": np.zeros((1, steps, dim)),
        "actions": np.zeros((1, steps, problem.actions.dim)),
        "next_states": np.zeros((1, steps, dim)),
        "stopped": stopped,
        "mass": masses,
        "rewards": np.zeros(steps),
    }
    row = metrics(number, **changes).row()
    about = {"source": {}, "metrics": row | {"notes": list(row["notes"])}}
    path = directory / "episodes" / f"{number:04d}.safetensors"
    files.write_sealed(path, about, arrays, kind=LAYOUT.episode)
    timings = files.read_lines(directory / "timings.jsonl")
    files.write_lines(
        directory / "timings.jsonl",
        [*timings, {"episode": number, "fit": 0.5, "plan": 1.25}, {"episode": number, "run": 0.25}],
    )
    return masses, actions


def metrics(number, **changes):
    value = 80.0 - 40.0 / number
    figures = {
        "value": value,
        "optimistic": 81.0,
        "beta": 3.0,
        "spread": 1.0 / number,
        "control": 0.5,
        "w1_end": 2.0 / number,
        "coverage": 1.0,
        "transitions": 20 * (number - 1),
        "best": value,
    }
    return EpisodeMetrics(episode=number, **(figures | changes))


@contextmanager
def serving(*directories, host="127.0.0.1", port=0):
    """A server of the live page, for as long as the block lasts."""
    server = PageServer(directories, host, port, None)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()
