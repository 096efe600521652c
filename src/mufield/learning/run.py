"""The closed loop over any system: ask, run, tell, repeat."""

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np

from .._progress import progress_bar
from .._runtime import enable_compilation_cache
from ..checks import is_a
from ..episode import AbstractSystem, Episode
from ..errors import UserError
from ..models.data import Transitions
from ..planning.planner import Plan
from ..policies.base import Profile
from ..problem import Problem
from .diagnostics import GreedyRun, measure
from .m3ucrl import M3UCRL
from .metrics import EpisodeMetrics, bar_figures, best_episode
from .plan import in_threads
from .state import LearnerState, Use

if TYPE_CHECKING:
    from .best import BestPlan


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

    def __repr__(self) -> str:
        last = self.metrics[-1]
        warnings = sum(len(row.notes) for row in self.metrics)
        return (
            f"LearnResult(episodes={len(self.metrics)}, transitions={len(self.state.data)}, "
            f"last J={last.value:.6g}, best J={last.best:.6g}"
            + (f", regret={last.regret:.3g}" if last.regret is not None else "")
            + (f", notes={warnings}" if warnings else "")
            + ")"
        )

    def best(self, *, cautious: bool = False) -> "BestPlan":
        """The policy that all data together make best, as `M3UCRL.best`; takes one more plan."""
        earned = [row.earned for row in self.metrics]
        best = earned[best_episode(earned)]
        best_run = (self.best_profile, best.value if best.elsewhere is None else None)
        return self.learner.best(self.state, cautious=cautious, best_run=best_run)

    def to_frame(self) -> Any:
        """The metrics as a pandas data frame; without pandas, as a list of dictionaries."""
        rows = [row.row() for row in self.metrics]
        if find_spec("pandas") is None:
            return rows
        return import_module("pandas").DataFrame(rows).set_index("episode")

    def plot(self) -> Any:
        """A figure of J against episodes: realised, and expected by the optimistic plans.

        Needs the extra ``viz``.
        """
        columns = {
            "realised while exploring": "value",
            "expected by the optimistic plan": "optimistic",
            "realised without optimism": "greedy",
        }
        rows = self.metrics
        values = {
            name: np.array([getattr(row, column) for row in rows], dtype=float)  # None becomes nan
            for name, column in columns.items()
        }
        reference = rows[-1].reference
        viz = import_module("mufield.viz")  # pictures are a layer above, and an extra
        return viz.curve_figure(
            {name: each for name, each in values.items() if np.isfinite(each).any()},
            x_label="episode",
            y_label="total reward J",
            reference={} if reference is None else {"reference plan": reference},
            first_x=1,
        )


Watcher = Callable[[int, LearnerState, Plan, Episode, EpisodeMetrics], Any]
"""``watch(seed, state, plan, episode, metrics)``; the state is that before the episode."""


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
    watch: Watcher | None = None,
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
            too: the metrics `greedy` and `greedy_expected` show what the data are worth by then.
            Nothing is learned from these runs. With mirror ascent the plan takes about a fifth of
            the time of the optimistic one.
        progress: Whether to show a bar with the figures of the last episode.
        watch: Called after every episode with the seed, the learner's state before the episode,
            the plan, the episode and its `EpisodeMetrics`, for trackers:
            ``watch=lambda seed, state, plan, episode, row: tracker.log(row.row())``.

    Compiled programs are kept on disk (`enable_compilation_cache`).
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
        watch=watch,
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
    if not seeds or episodes < 1:
        raise UserError(
            f"expected at least one seed and one episode, got {len(seeds)} and {episodes}"
        )
    enable_compilation_cache()
    learner = M3UCRL(system.problem) if learner is None else learner
    example = "mufield.M3UCRL(system.problem, mufield.GaussianProcess())"
    is_a(learner, M3UCRL, "the learner", f"make one, such as {example}, or leave it out")
    if learner.scouts is not None and "scouts" not in signature(system.run).parameters:
        raise UserError(
            f"the learner sends scouts, but {type(system).__name__}.run takes no argument scouts, "
            "the policy of the tracked agents; add it, or leave out the learner's scouts"
        )
    states = [learner.init(jax.random.key(seed), data) for seed in seeds]
    rows: list[list[EpisodeMetrics]] = [[] for _ in seeds]
    plans: list[Plan] = []
    best_profiles: list[Profile] = []
    with progress_bar("learning", episodes, shown=progress) as report:
        for done in range(episodes):
            began = time.perf_counter()
            plans = learner.ask_many(states)
            planned = time.perf_counter()
            runs = [
                system.run(plan.profile, state.key_for(Use.RUN), agents=agents, **scouts_of(plan))
                for plan, state in zip(plans, states, strict=True)
            ]
            ran = time.perf_counter()
            after = [learner.tell(*each) for each in zip(states, runs, plans, strict=True)]
            fitted = time.perf_counter()
            greedy = run_greedy_plans(system, learner, states) if judge else [None] * len(states)
            best_profiles = best_profiles or [plan.profile for plan in plans]
            for i, (state, plan, run) in enumerate(zip(states, plans, runs, strict=True)):
                row = measure(
                    state,
                    plan,
                    run,
                    earlier=[row.earned for row in rows[i]],
                    reference=reference,
                    greedy=greedy[i],
                )
                rows[i].append(row)
                if best_episode([row.earned for row in rows[i]]) == done:
                    best_profiles[i] = plan.profile
                if watch is not None:
                    watch(seeds[i], state, plan, run, row)
            states = after
            times = {"plan_s": planned - began, "fit_s": fitted - ran}
            report(done + 1, **bar_figures([row[-1].row() for row in rows]), **times)
    return [
        LearnResult(learner, state, tuple(row), plan.profile, best)
        for state, row, plan, best in zip(states, rows, plans, best_profiles, strict=True)
    ]


def scouts_of(plan: Plan) -> dict[str, Profile]:
    """The argument of a system's ``run`` for scouts; none if the plan has no scouts.

    So that systems need not know of scouts unless a learner sends some.
    """
    return {} if plan.scouts is None else {"scouts": plan.scouts}


def run_greedy_plans(
    system: AbstractSystem, learner: M3UCRL, states: list[LearnerState]
) -> list[GreedyRun | None]:
    """Plans without optimism for each run, and runs the plans; nothing is learned from that.

    Before there are data, no plan is the one that they make best.
    """
    if not all(len(state.data) for state in states):
        return [None] * len(states)
    plans = in_threads(learner.greedy_plan, states)
    return [
        GreedyRun(
            float(system.run(plan.profile, state.key_for(Use.JUDGE)).value), float(plan.value)
        )
        for plan, state in zip(plans, states, strict=True)
    ]
