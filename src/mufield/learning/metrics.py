"""The figures of an episode: what was earned and expected, and whether the model was right."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import _types
from .._types import Action, Mass, Scalar, State
from ..constraints.constraint import Constraints
from ..episode import Episode
from ..models.base import AbstractModel
from ..models.calibration import predict_rows
from ..models.data import Transitions
from ..planning.planner import Plan
from ..policies.base import Profile
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField, at_all_cells
from ..space.transport import approximate_wasserstein
from .best_episode import Earned, began_elsewhere, best_episode
from .coverage import COVERAGE_LEVEL, band_widening, too_narrow
from .diagnosis import diagnosis
from .state import LearnerState


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
            violation by 1%. None if the problem has no limits, as for the next two.
        assured: The least margin of any constraint over all sampled models; None without them.
        margins: The margin of each limit after each move, by name; None where it need not hold.
        elsewhere: Share of the population that did not begin as the problem says; None if that
            may be chance. Such an episode does not count as the best.
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
        rare = ("reward_coverage", "usable", "usable_expected", "margin", "assured", "margins")
        for name in (*rare, "w1_error", "elsewhere"):  # most runs have no such figures
            if row[name] is None:
                del row[name]
        return row


class Usable(NamedTuple):
    """What a plan without optimism earned on the system, and what the model expected of it."""

    value: float
    expected: float


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
    rewards_inside, reward_warning = None, ""
    if state.reward_model is not None and len(state.data):
        rewards_inside, reward_warning = _coverage(
            state.reward_model, fresh.of_rewards(), data.of_rewards(), "rewards"
        )
    margins = _margins(problem, episode)
    finite = [m for each in margins.values() for m in each if m is not None]
    violations = _violations(margins)
    notes += [note for note in (_missing(episode), warning, reward_warning, violations) if note]
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
        best=earned[best_episode(earned)].value,
        reference=reference,
        notes=tuple(notes),
        reward_coverage=rewards_inside,
        usable=None if usable is None else usable.value,
        usable_expected=None if usable is None else _number(usable.expected),
        margin=min(finite, default=None),
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


def _violations(margins: dict[str, list[float | None]]) -> str:
    """A note on constraints that an episode violated by more than 1% of them."""
    notes = []
    for name, row in margins.items():
        known = [(margin, step) for step, margin in enumerate(row, start=1) if margin is not None]
        margin, step = min(known, default=(0.0, 0))
        if margin < -0.01:
            notes.append(f"{name!r} was violated by {-margin:.1%} of it, after move {step}")
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
        actions = profile.join(part).at_cells(grid, now, number).mean()

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
    inside = found.quantiles(band_widening(model)) <= COVERAGE_LEVEL
    hits = int((inside & found.observed).sum())
    if not too_narrow(hits, count):
        return hits / count, ""
    return hits / count, (
        f"the confidence band is too narrow: {hits:,} of {count:,} {name} lie inside the "
        f"{COVERAGE_LEVEL:.0%} interval; {diagnosis(model, fresh, data)}"
    )


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
