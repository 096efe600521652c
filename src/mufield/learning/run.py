"""The closed loop over any system: ask, run, tell, repeat."""

import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax

from .._arrays import Key
from .._progress import progress_bar, stage
from .._runtime import enable_compilation_cache
from ..episode import AbstractSystem, Episode
from ..errors import UserError, is_a, whole_number
from ..models.data import Transitions
from ..planning.planner import Plan
from ..policies.base import Profile
from ..problem import Problem
from .diagnostics import GreedyRun, measure
from .m3ucrl import M3UCRL
from .metrics import EpisodeMetrics, bar_figures, best_episode
from .state import LearnerState, Use

if TYPE_CHECKING:
    from .best import BestPlan


class LearnResult(eqx.Module):
    """What a run ended with; `best` gives the policy to use.

    Attributes:
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
        curves = import_module("mufield.viz.curves")  # pictures are a layer above, and an extra
        rows = {"": [row.row() for row in self.metrics]}
        return curves.metrics_figure(rows, self.metrics[-1].reference)


Watcher = Callable[[LearnerState, Plan, Episode, EpisodeMetrics], Any]
"""``watch(state, plan, episode, metrics)``; the state is that before the episode."""


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
        watch: Called after every episode with the learner's state before the episode, the plan,
            the episode and its `EpisodeMetrics`, for trackers:
            ``watch=lambda state, plan, episode, row: tracker.log(row.row())``.

    Compiled programs are kept on disk (`enable_compilation_cache`). Runs with other seeds may share
    the learner, and so its programs, in threads.
    """
    whole_number(agents, "the number of tracked agents")
    learner = _checked(system, learner, episodes)
    enable_compilation_cache()
    state, rows = learner.init(jax.random.key(seed), data), list[EpisodeMetrics]()
    with progress_bar("learning", episodes, shown=progress) as report:
        for done in range(episodes):
            began = time.perf_counter()
            plan = learner.ask(state)
            planned = time.perf_counter()
            episode = run_plan(system, plan, state.key_for(Use.RUN), agents)
            ran = time.perf_counter()
            after = learner.tell(state, episode, plan)
            fitted = time.perf_counter()
            judged = run_greedy_plan(system, learner, state) if judge else None
            past = [row.earned for row in rows]
            row = measure(state, plan, episode, earlier=past, reference=reference, greedy=judged)
            rows.append(row)
            if best_episode([*past, row.earned]) == done:
                best_profile = plan.profile
            if watch is not None:
                watch(state, plan, episode, row)
            state = after
            times = {"plan_s": planned - began, "fit_s": fitted - ran}
            report(done + 1, **bar_figures(row.row()), **times)
    return LearnResult(learner, state, tuple(rows), plan.profile, best_profile)


def _checked(system: AbstractSystem, learner: M3UCRL | None, episodes: int) -> M3UCRL:
    """The learner, or the usual one; raises unless it can learn on the system."""
    if isinstance(system, Problem):
        raise UserError(
            "learning needs a system whose episodes can be run, got a Problem, which does not say "
            "how agents move; give SimulatedSystem(problem, motion), or ask and tell a M3UCRL"
        )
    whole_number(episodes, "the number of episodes")
    learner = M3UCRL(system.problem) if learner is None else learner
    example = "mufield.M3UCRL(system.problem, mufield.GaussianProcess())"
    is_a(learner, M3UCRL, "the learner", f"make one, such as {example}, or leave it out")
    own, other = learner.problem, system.problem
    if (own.horizon, own.grid) != (other.horizon, other.grid):
        raise UserError(
            f"the learner plans {own.horizon} steps on {own.grid.describe()}, the system's "
            f"episodes have {other.horizon} on {other.grid.describe()}; make M3UCRL(system.problem)"
        )
    check_scouts(system, learner)
    return learner


def check_scouts(system: AbstractSystem, learner: M3UCRL) -> None:
    """Raises if the learner sends scouts and the system cannot run them."""
    if learner.scouts is not None and "scouts" not in signature(system.run).parameters:
        raise UserError(
            f"the learner sends scouts, but {type(system).__name__}.run takes no argument scouts, "
            "the policy of the tracked agents; add it, or leave out the learner's scouts"
        )


def run_plan(system: AbstractSystem, plan: Plan, key: Key, agents: int) -> Episode:
    """Runs an episode of a plan; systems need not know of scouts unless a plan has some."""
    scouts = {} if plan.scouts is None else {"scouts": plan.scouts}
    return system.run(plan.profile, key, agents=agents, **scouts)


def run_greedy_plan(
    system: AbstractSystem, learner: M3UCRL, state: LearnerState
) -> GreedyRun | None:
    """Plans without optimism and runs the plan; None before there are data to plan by."""
    if not len(state.data):
        return None
    with stage("planning"):
        plan = learner.greedy_plan(state)
    run = system.run(plan.profile, state.key_for(Use.JUDGE))
    return GreedyRun(float(run.value), float(plan.value))
