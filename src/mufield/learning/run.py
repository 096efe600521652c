"""The closed loop over any system: ask, run, tell, repeat."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax

from .._progress import progress_bar
from ..episode import AbstractSystem, Episode
from ..errors import UserError
from ..planning.planner import Plan
from ..policies.base import Profile
from .m3ucrl import M3UCRL, RUN, LearnerState
from .metrics import EpisodeMetrics, measure


class LearnResult(eqx.Module):
    """What a run ended with.

    Attributes:
        state: The learner's state, to go on from.
        metrics: One row for each episode.
        profile: The last policy that was run.
        best: The policy of the episode with the highest realised J.
    """

    state: LearnerState
    metrics: tuple[EpisodeMetrics, ...] = eqx.field(static=True)
    profile: Profile
    best: Profile


Watcher = Callable[[int, LearnerState, Plan, Episode, EpisodeMetrics], Any]
"""Called after every episode of every seed: seed, state before it, plan, episode, metrics."""


def learn(
    system: AbstractSystem,
    learner: M3UCRL | None = None,
    *,
    episodes: int = 30,
    seed: int = 0,
    agents: int = 1,
    reference: float | None = None,
    progress: bool = True,
) -> LearnResult:
    """Learns on a system for a number of episodes.

    Args:
        system: A simulator or anything else that can be run for an episode.
        learner: The learner; by default a deep ensemble and mirror ascent.
        episodes: Number of episodes.
        seed: Seed of all randomness.
        agents: Agents that are tracked in each episode.
        reference: J of a reference plan, for the regret.
        progress: Whether to show a bar with the figures of the last episode.
    """
    return learn_many(
        system,
        learner,
        seeds=[seed],
        episodes=episodes,
        agents=agents,
        reference=reference,
        progress=progress,
    )[0]


def learn_many(
    system: AbstractSystem,
    learner: M3UCRL | None = None,
    *,
    seeds: Sequence[int],
    episodes: int = 30,
    agents: int = 1,
    reference: float | None = None,
    progress: bool = True,
    watch: Watcher | None = None,
) -> list[LearnResult]:
    """Learns with several seeds side by side: models and plans of all are one program each."""
    if not seeds or episodes < 1:
        raise UserError(
            f"expected at least one seed and one episode, got {len(seeds)} and {episodes}"
        )
    learner = M3UCRL(system.problem) if learner is None else learner
    states = [learner.init(jax.random.key(seed)) for seed in seeds]
    rows: list[list[EpisodeMetrics]] = [[] for _ in seeds]
    plans: list[Plan] = []
    best: list[Profile] = []
    with progress_bar("learning", episodes, shown=progress) as report:
        for done in range(episodes):
            began = time.perf_counter()
            plans = learner.plans(states)
            planned = time.perf_counter()
            runs = [
                system.run(plan.profile, state.key_for(RUN), agents=agents)
                for plan, state in zip(plans, states, strict=True)
            ]
            ran = time.perf_counter()
            after = learner.tell_many(states, runs, list(plans))
            fitted = time.perf_counter()
            best = best or [plan.profile for plan in plans]
            for i, (state, plan, run) in enumerate(zip(states, plans, runs, strict=True)):
                before = rows[i][-1].best if rows[i] else -math.inf
                row = measure(state, plan, run, after[i].data, best=before, reference=reference)
                if row.value > before:
                    best[i] = plan.profile
                rows[i].append(row)
                if watch is not None:
                    watch(i, state, plan, run, row)
            states = after
            report(done + 1, **_figures(rows, planned - began, fitted - ran))
    return [
        LearnResult(state=state, metrics=tuple(row), profile=plan.profile, best=top)
        for state, row, plan, top in zip(states, rows, plans, best, strict=True)
    ]


def _figures(rows: list[list[EpisodeMetrics]], planning: float, fitting: float) -> dict[str, float]:
    """What the bar shows: means over the seeds."""
    last = [row[-1] for row in rows]

    def mean(values: list[float | None]) -> float:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else float("nan")

    figures = {
        "J": mean([row.value for row in last]),
        "optimistic": mean([row.optimistic for row in last]),
        "best": mean([row.best for row in last]),
        "beta": mean([row.beta for row in last]),
        "spread": mean([row.spread for row in last]),
    }
    if last[0].reference is not None:
        figures["reference"] = last[0].reference
    return {**figures, "plan_s": planning, "fit_s": fitting}
