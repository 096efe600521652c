"""The closed loop over any system: ask, run, tell, repeat; and the figures of every episode."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import _types
from .._progress import progress_bar
from .._types import Action, Mass, Scalar, State
from ..constraints import Constraints
from ..episode import AbstractSystem, Episode
from ..errors import UserError
from ..models.base import AbstractModel, predict_rows
from ..models.data import Transitions
from ..planning.planner import Plan
from ..policies.base import Profile
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField, at_all_cells
from ..space.transport import approximate_wasserstein
from .best import BestPlan
from .luck import Earned, began_elsewhere, luckiest
from .m3ucrl import JUDGE, M3UCRL, RUN, LearnerState

LEVEL = 0.95
"""Level of the intervals whose coverage is reported."""

SUSPICIOUS = 1e-3
"""What is less likely than this by chance alone is no chance."""

MATTERS = 1.5
"""So many times the expected misses matter: errors are then a tenth wider than the band says."""


BROKEN = 0.01
"""A limit that is broken by less than this share of it is not worth a note."""

RARE = (
    "reward_coverage",
    "usable",
    "usable_expected",
    "margin",
    "assured",
    "margins",
    "w1_error",
    "elsewhere",
)
"""Metrics that are left out of rows if they are unknown."""


@dataclass(frozen=True)
class EpisodeMetrics:
    """One row of a run's metrics.

    Attributes:
        episode: Number of the episode, from 1.
        value: J that the population realised.
        optimistic: J that the planner expected.
        beta: Scale of the confidence band.
        spread: Mean epistemic standard deviation along the plan, in units of the farthest move.
        control: Mean |eta| along the plan.
        w1_middle: W1 between the imagined and the realised distribution half-way.
        w1_end: The same at the end.
        w1_error: By how much these two may be off on a map that is too large for the exact
            distance (`approximate_wasserstein`); None if they are exact.
        coverage: Share of the tracked agents' moves inside the 95% interval of the model before
            the episode; None if walls censored all of them.
        transitions: Number of transitions that the plan was based on, those of logs included.
        best: Best J so far, of episodes that began as the problem says if any did.
        reference: J of a reference plan, if known.
        notes: Warnings in words, such as of a fallback or a band that is too narrow.
        reward_coverage: The same share for the agents' rewards, by the model of the reward; None
            if the reward is known, and without data, when the scale of rewards is unknown.
        usable: J of the plan without optimism on the same data, which does not explore; None
            without data, and unless the run is judged.
        usable_expected: J that the model's mean expected of it.
        margin: The least margin of any limit after any move, as a share of the limit: -0.01 is a
            break by 1%. None if the problem has no limits, as for the next two.
        assured: The least margin that the plan was sure of; None if it was sure of none.
        margins: The margin of each limit after each move, by name; None where it need not hold.
        elsewhere: Share of the population that did not begin as the problem says; None if that
            may be chance. Such an episode does not count as the luckiest.
    """

    episode: int
    value: float
    optimistic: float | None
    beta: float
    spread: float | None
    control: float
    w1_middle: float | None
    w1_end: float | None
    coverage: float | None
    transitions: int
    best: float
    reference: float | None = None
    notes: tuple[str, ...] = field(default=())
    reward_coverage: float | None = None
    usable: float | None = None
    usable_expected: float | None = None
    margin: float | None = None
    assured: float | None = None
    margins: dict[str, list[float | None]] | None = None
    w1_error: float | None = None
    elsewhere: float | None = None

    @property
    def earned(self) -> Earned:
        """What the episode counts with among others."""
        return Earned(self.value, self.elsewhere)

    @property
    def optimism(self) -> float | None:
        """Optimistic minus realised J."""
        return None if self.optimistic is None else self.optimistic - self.value

    @property
    def regret(self) -> float | None:
        """J of the reference plan minus realised J."""
        return None if self.reference is None else self.reference - self.value

    def row(self) -> dict[str, Any]:
        """The figures by name, for files and tables."""
        row = {**asdict(self), "optimism": self.optimism, "regret": self.regret}
        for name in RARE:  # most runs have no such figures
            if row[name] is None:
                del row[name]
        return row


class LearnResult(eqx.Module):
    """What a run ended with; `best` gives the policy to use.

    Attributes:
        learner: The learner.
        state: Its state, to go on from.
        metrics: One row for each episode.
        profile: The last policy that was run, which explored.
        luckiest: The policy of the episode with the highest realised J, of those that began as the
            problem says if any did.
    """

    learner: M3UCRL = eqx.field(static=True)
    state: LearnerState
    metrics: tuple[EpisodeMetrics, ...] = eqx.field(static=True)
    profile: Profile
    luckiest: Profile

    def best(self, *, cautious: bool = False) -> BestPlan:
        """The policy that all data together make best, as `M3UCRL.best`; takes one more plan."""
        earned = [row.earned for row in self.metrics]
        value, elsewhere = earned[luckiest(earned)]
        ran = (self.luckiest, value if elsewhere is None else None)
        return self.learner.best(self.state, cautious=cautious, ran=ran)


Watcher = Callable[[int, LearnerState, Plan, Episode, EpisodeMetrics], Any]
"""Called after every episode of every seed: index of the seed, state before it, plan, episode,
metrics."""


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
                system.run(plan.profile, state.key_for(RUN), agents=agents)
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
                if luckiest([row.earned for row in rows[i]]) == done:
                    tops[i] = plan.profile
                if watch is not None:
                    watch(i, state, plan, run, row)
            states = after
            report(done + 1, **_figures(rows, planned - began, fitted - ran))
    return [
        LearnResult(learner, state, tuple(row), plan.profile, top)
        for state, row, plan, top in zip(states, rows, plans, tops, strict=True)
    ]


class Usable(NamedTuple):
    """What a plan without optimism earned on the system, and what the model expected of it."""

    value: float
    expected: float


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
        Usable(float(system.run(plan.profile, state.key_for(JUDGE)).value), float(plan.value))
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


def measure(
    state: LearnerState,
    plan: Plan,
    episode: Episode,
    data: Transitions,
    *,
    earlier: Sequence[Earned] = (),
    reference: float | None = None,
    usable: Usable | None = None,
    notes: Sequence[str] = (),
) -> EpisodeMetrics:
    """Computes the metrics of an episode.

    ``state`` is that before the episode, and ``earlier`` what the episodes before it earned;
    ``data`` includes it. The metrics' notes begin with ``notes``.
    """
    problem = state.data.problem
    grid, far = problem.grid, problem.max_move
    value, elsewhere = float(episode.value), _elsewhere(problem, plan, episode)
    earned = [*earlier, Earned(value, elsewhere)]
    notes = [*notes, *state.notes, *([plan.note] if plan.note else [])]
    spread = w1_middle = w1_end = w1_error = None
    if bool(jnp.all(jnp.isfinite(plan.mass))):  # the random policy was not planned
        spread = float(_mean_spread(state.model, plan.profile, plan.mass, grid, far))
        middle = episode.mass.shape[0] // 2
        apart = [approximate_wasserstein(grid, plan.mass[h], episode.mass[h]) for h in (middle, -1)]
        w1_middle, w1_end = (each.value for each in apart)
        w1_error = max(each.error for each in apart) or None
    fresh = Transitions.of(problem, [episode])
    coverage, warning = _coverage(state.model, fresh, data, "moves")
    rewards_inside, doubt = None, ""
    if state.reward_model is not None and len(state.data):
        rewards_inside, doubt = _coverage(
            state.reward_model, fresh.of_rewards(), data.of_rewards(), "rewards"
        )
    margins = _margins(problem, episode)
    kept = [m for each in margins.values() for m in each if m is not None]
    broken = _broken(margins)
    notes += [note for note in (_missing(episode), warning, doubt, broken) if note]
    return EpisodeMetrics(
        episode=state.episode + 1,
        value=value,
        optimistic=_number(plan.value),
        beta=float(state.model.beta),
        spread=spread,
        control=float(plan.control),
        w1_middle=w1_middle,
        w1_end=w1_end,
        coverage=coverage,
        transitions=len(state.data),
        best=earned[luckiest(earned)].value,
        reference=reference,
        notes=tuple(notes),
        reward_coverage=rewards_inside,
        usable=None if usable is None else usable.value,
        usable_expected=None if usable is None else _number(usable.expected),
        margin=min(kept, default=None),
        assured=None if plan.least is None else _number(jnp.min(plan.least)),
        margins=margins or None,
        w1_error=w1_error,
        elsewhere=elsewhere,
    )


def _elsewhere(problem: Problem, plan: Plan, episode: Episode) -> float | None:
    """Share of an episode's population that did not begin as the problem says."""
    seen = len(episode.states) if episode.present is None else int(episode.present[:, 0].sum())
    starts = np.asarray([problem.initial, plan.mass[0], episode.mass[0]], dtype=float)
    return began_elsewhere(starts[0], starts[1], starts[2], max(seen, 1))


def _margins(problem: Problem, episode: Episode) -> dict[str, list[float | None]]:
    """The margins of an episode's population, by the names of the limits."""
    limits = problem.constraints
    if limits is None:
        return {}
    found = np.asarray(_worst(limits, episode.mass), dtype=float).T
    return {
        name: [_number(margin) for margin in row]
        for name, row in zip(limits.names, found, strict=True)
    }


@eqx.filter_jit
def _worst(limits: Constraints, mass: _types.Masses) -> Array:
    return limits.worst(mass)


def _broken(margins: dict[str, list[float | None]]) -> str:
    """A note on limits that an episode broke by more than `BROKEN`."""
    notes = []
    for name, row in margins.items():
        known = [(margin, step) for step, margin in enumerate(row, start=1) if margin is not None]
        margin, step = min(known)
        if margin < -BROKEN:
            notes.append(f"{name!r} was broken by {-margin:.1%} of it, after move {step}")
    return "; ".join(notes)


@eqx.filter_jit
def _mean_spread(
    model: AbstractModel,
    profile: Profile,
    mass: _types.Masses,
    grid: Grid,
    farthest: tuple[float, ...],
) -> Scalar:
    far = jnp.asarray(farthest, dtype=mass.dtype)

    def step(inputs: tuple[Any, Mass, Array]) -> Scalar:
        part, now, number = inputs
        actions = profile.join(part).at_cells(grid, now).mean()

        def spread(state: State, action: Action, mu: MeanField) -> Scalar:
            return jnp.mean(model.predict(state, action, mu).epistemic / far)

        return jnp.vdot(now, at_all_cells(grid, now, spread, actions[:, None], number)[:, 0])

    numbers = jnp.arange(len(mass) - 1, dtype=jnp.int32)
    return jnp.mean(jax.lax.map(step, (profile.per_step, mass[:-1], numbers)))


def _coverage(
    model: AbstractModel, fresh: Transitions, data: Transitions, name: str
) -> tuple[float | None, str]:
    """Share of fresh data inside the model's interval, and advice if it is too low to ignore."""
    found = predict_rows(model, fresh)
    count = int(found.observed.sum())
    if count == 0:
        return None, ""
    inside = found.quantiles(band_widening(model)) <= LEVEL
    hits = int((inside & found.observed).sum())
    if not too_narrow(hits, count):
        return hits / count, ""
    from .advice import advice  # seldom needed

    return hits / count, (
        f"the confidence band is too narrow: {hits:,} of {count:,} {name} lie inside the "
        f"{LEVEL:.0%} interval; {advice(model, fresh, data)}"
    )


def too_narrow(inside: int, count: int) -> bool:
    """Whether a coverage is too low to be chance, and low enough to matter."""
    from scipy.special import bdtr  # slow to import

    matters = count - inside > MATTERS * (1 - LEVEL) * count
    return bool(matters and bdtr(inside, count, LEVEL) < SUSPICIOUS)


def band_widening(model: AbstractModel) -> float:
    """The factor on the epistemic deviation: a beta of 2 stands for two deviations, for 95%."""
    return max(1.0, float(model.beta) / 2.0)


def _missing(episode: Episode) -> str:
    """A note on moves of tracked agents that were not seen."""
    if episode.present is None or bool(jnp.all(episode.present)):
        return ""
    present = np.asarray(episode.present)
    return (
        f"{int((~present).sum()):,} of {present.size:,} moves of tracked agents were not seen, by "
        f"{int((~present).any(axis=1).sum()):,} of {len(present):,} agents"
    )


def _number(value: Any) -> float | None:
    number = float(np.asarray(value))
    return number if math.isfinite(number) else None
