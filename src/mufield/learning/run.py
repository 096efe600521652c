"""The closed loop over any system: ask, run, tell, repeat."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax

from .._progress import progress_bar
from ..episode import AbstractSystem, Episode
from ..errors import UserError
from ..models.data import Transitions
from ..planning.planner import Plan
from ..policies.base import Profile
from ..problem import Problem
from .best_episode import best_episode
from .forecast import BestPlan
from .m3ucrl import M3UCRL
from .metrics import EpisodeMetrics, Usable, measure
from .state import LearnerState, Use


class LearnResult(eqx.Module):
    """What a run ended with; `best` gives the policy to use.

    Attributes:
        learner: The learner.
        state: Its state, to go on from.
        metrics: One row for each episode.
        profile: The last policy that was run, which explored.
        best_profile: The policy of the episode with the highest realised J, of those that began as
            the problem says if any did.
    """

    learner: M3UCRL = eqx.field(static=True)
    state: LearnerState
    metrics: tuple[EpisodeMetrics, ...] = eqx.field(static=True)
    profile: Profile
    best_profile: Profile

    def best(self, *, cautious: bool = False) -> BestPlan:
        """The policy that all data together make best, as `M3UCRL.best`; takes one more plan."""
        earned = [row.earned for row in self.metrics]
        value, elsewhere = earned[best_episode(earned)]
        ran = (self.best_profile, value if elsewhere is None else None)
        return self.learner.best(self.state, cautious=cautious, ran=ran)


Watcher = Callable[[int, LearnerState, Plan, Episode, EpisodeMetrics], Any]
"""Called after every episode of every seed: the seed, state before it, plan, episode, metrics."""


def learn(
    system: AbstractSystem,
    learner: M3UCRL | None = None,
    *,
    episodes: int = 30,
    seed: int = 0,
    agents: int = 1,
    data: Transitions | None = None,
    reference: float | None = None,
    judge: bool = False,
    progress: bool = True,
) -> LearnResult:
    """Learns on a system for a number of episodes.

    Args:
        system: A simulator or anything else that can be run for an episode.
        learner: The learner; by default a Gaussian process and mirror ascent.
        episodes: Number of episodes.
        seed: Seed of all randomness.
        agents: Agents that are tracked in each episode.
        data: Transitions that are known before the first episode, from logs for example.
        reference: J of a reference plan, for the regret.
        judge: Whether to plan once more in every episode, without optimism, and to run that plan,
            too: the metrics `usable` and `usable_expected` show what the data are worth by then.
            Nothing is learned from these runs. With mirror ascent the plan takes about a fifth of
            the time of the optimistic one.
        progress: Whether to show a bar with the figures of the last episode.
    """
    return learn_many(
        system,
        learner,
        seeds=[seed],
        episodes=episodes,
        agents=agents,
        data=data,
        reference=reference,
        judge=judge,
        progress=progress,
    )[0]


def learn_many(
    system: AbstractSystem,
    learner: M3UCRL | None = None,
    *,
    seeds: Sequence[int],
    episodes: int = 30,
    agents: int = 1,
    data: Transitions | None = None,
    reference: float | None = None,
    judge: bool = False,
    progress: bool = True,
    watch: Watcher | None = None,
) -> list[LearnResult]:
    """`learn` for several seeds side by side, with the same compiled programs."""
    if isinstance(system, Problem):
        raise UserError(
            "learning needs a system whose episodes can be run, got a Problem, which does not say "
            "how agents move; give SimulatedSystem(problem, motion), or ask and tell a M3UCRL"
        )
    if learner is not None and not isinstance(learner, M3UCRL):
        raise UserError(
            f"expected the learner to be a M3UCRL, got {learner!r}; make one, such as "
            "mufield.M3UCRL(system.problem, mufield.GaussianProcess()), or leave it out"
        )
    if not seeds or episodes < 1:
        raise UserError(
            f"expected at least one seed and one episode, got {len(seeds)} and {episodes}"
        )
    learner = M3UCRL(system.problem) if learner is None else learner
    states = [learner.init(jax.random.key(seed), data) for seed in seeds]
    rows: list[list[EpisodeMetrics]] = [[] for _ in seeds]
    plans: list[Plan] = []
    tops: list[Profile] = []
    with progress_bar("learning", episodes, shown=progress) as report:
        for done in range(episodes):
            began = time.perf_counter()
            plans = learner.plans(states)
            planned = time.perf_counter()
            runs = [
                system.run(plan.profile, state.key_for(Use.RUN), agents=agents)
                for plan, state in zip(plans, states, strict=True)
            ]
            ran = time.perf_counter()
            after = learner.tell_many(states, runs, list(plans))
            fitted = time.perf_counter()
            usable = judged(system, learner, states) if judge else [None] * len(states)
            tops = tops or [plan.profile for plan in plans]
            for i, (state, plan, run) in enumerate(zip(states, plans, runs, strict=True)):
                row = measure(
                    state,
                    plan,
                    run,
                    after[i].data,
                    earlier=[row.earned for row in rows[i]],
                    reference=reference,
                    usable=usable[i],
                )
                rows[i].append(row)
                if best_episode([row.earned for row in rows[i]]) == done:
                    tops[i] = plan.profile
                if watch is not None:
                    watch(seeds[i], state, plan, run, row)
            states = after
            report(done + 1, **_figures(rows, planned - began, fitted - ran))
    return [
        LearnResult(learner, state, tuple(row), plan.profile, top)
        for state, row, plan, top in zip(states, rows, plans, tops, strict=True)
    ]


def judged(
    system: AbstractSystem, learner: M3UCRL, states: list[LearnerState]
) -> list[Usable | None]:
    """Plans without optimism for each run, and runs the plans; nothing is learned from that.

    Before there are data, no plan is the one that they make best.
    """
    if not all(len(state.data) for state in states):
        return [None] * len(states)
    plans = learner.usable_plans(states)
    return [
        Usable(float(system.run(plan.profile, state.key_for(Use.JUDGE)).value), float(plan.value))
        for plan, state in zip(plans, states, strict=True)
    ]


def _figures(rows: list[list[EpisodeMetrics]], planning: float, fitting: float) -> dict[str, float]:
    """What the progress bar shows: means over the seeds."""
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
    if last[0].usable is not None:
        figures["usable"] = mean([row.usable for row in last])
    if last[0].margin is not None:
        figures["margin"] = min(row.margin for row in last if row.margin is not None)
    if last[0].reference is not None:
        figures["reference"] = last[0].reference
    return {**figures, "plan_s": planning, "fit_s": fitting}
