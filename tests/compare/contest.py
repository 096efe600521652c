"""A small comparison, and learners that take no time."""

import numpy as np

from mufield.compare.config import CONTENDERS, ComparisonConfig
from mufield.jobs import compute

SEEDS, EPISODES, HORIZON, Q_EPISODES = (0, 1), 7, 3, 1000
ROOMS = "...\n.#.\n..."
TINY = {
    "seeds": SEEDS,
    "episodes": EPISODES,
    "q_episodes": Q_EPISODES,
    "model_options": {"inducing": 8, "fit_kernel": False},
    "planner_options": {"points": 3, "sweeps": 2},
}
SMALL = ComparisonConfig(
    "four-rooms", CONTENDERS, options={"horizon": HORIZON, "drawing": ROOMS}, **TINY
)
LEARNERS, Q_LEARNERS = CONTENDERS[:4], CONTENDERS[-2:]


def pretended(seed, episode):
    """J of a learner that only pretends."""
    return 1.0 + seed - 0.5**episode


def pretend(monkeypatch):
    """Makes learners pretend; returns the settings of those that were asked."""
    asked = []

    def learn(settings, directory):
        asked.append(settings)
        episodes = range(settings["episodes"])
        return {"values": np.array([pretended(settings["seed"], i) for i in episodes])}

    monkeypatch.setitem(compute.KINDS, "learn", learn)
    return asked
