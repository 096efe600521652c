"""Small comparisons, and learners that take no time."""

from types import SimpleNamespace

from mufield.comparison import contenders
from mufield.comparison.config import CONTENDERS, ComparisonConfig

SEEDS, EPISODES, HORIZON, Q_EPISODES = 2, 7, 3, 1000
ROOMS = "...\n.#.\n..."
TINY = {
    "seeds": SEEDS,
    "episodes": EPISODES,
    "q_episodes": Q_EPISODES,
    "model_options": {"members": 2, "width": 4, "steps": 3},
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
    """Makes learners pretend; returns what they were asked for, one entry for each."""
    asked = []

    def build(run):
        return SimpleNamespace(learner=run.optimism)

    def learn_many(system, learner, *, seeds, episodes, progress):
        asked.append((learner, list(seeds), episodes))
        ends = tuple(system.problem.horizon * (episode + 1) for episode in range(episodes))
        return [
            SimpleNamespace(
                state=SimpleNamespace(ends=ends),
                metrics=[SimpleNamespace(value=pretended(seed, i)) for i in range(episodes)],
            )
            for seed in seeds
        ]

    monkeypatch.setattr(contenders, "build", build)
    monkeypatch.setattr(contenders, "learn_many", learn_many)
    return asked
