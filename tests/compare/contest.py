"""A small comparison, and learners that take no time."""

import numpy as np

from mufield.compare.comparison import ComparisonConfig
from mufield.jobs import compute

SEEDS, EPISODES, HORIZON = (0, 1), 7, 3
ROOMS = "...\n.#.\n..."
TINY = {
    "seeds": SEEDS,
    "episodes": EPISODES,
    "model_options": {"inducing": 8, "fit_kernel": False},
    "planner_options": {"points": 3, "sweeps": 2},
}
LEARNERS = ("m3ucrl", "greedy", "thompson", "bonus")
ALL = (*LEARNERS, "random", "known")
GAME = {"horizon": HORIZON, "drawing": ROOMS, "noise_intensity": 0.2}
SMALL = ComparisonConfig("discrete-rooms", ALL, options=GAME, **TINY)
CONTINUOUS = ComparisonConfig(
    "four-rooms", ALL, options={"horizon": HORIZON, "drawing": ROOMS}, **TINY
)
LIMITED = ComparisonConfig(
    "swarm-spread", ("m3ucrl", "unsafe", "random"), options={"horizon": 4, "cells": 6}, **TINY
)


def pretended(seed, episode):
    """J of a learner that only pretends."""
    return 1.0 + seed - 0.5**episode


def pretend(monkeypatch):
    """Makes learners pretend; returns the settings of those that were asked.

    Where there are limits, those that only plan to keep them break one in the first episodes.
    """
    asked = []

    def learn(settings, directory):
        asked.append(settings)
        episodes = range(settings["episodes"])
        rows = [{"episode": i + 1} for i in episodes]
        if settings["environment"] == LIMITED.environment:
            trusts = settings["pessimism"] == "none"
            rows = [row | {"margin": (row["episode"] - 3) / 10 if trusts else 0.0} for row in rows]
        values = np.array([pretended(settings["seed"], i) for i in episodes])
        return {"values": values, "rows": rows, "best_episode": int(values.argmax()) + 1}

    monkeypatch.setitem(compute.KINDS, "learn", learn)
    return asked
