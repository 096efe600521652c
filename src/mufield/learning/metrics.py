"""What is recorded of every episode."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..episode import Episode
from ..models.base import AbstractModel
from ..models.calibration import predict_rows
from ..models.data import Transitions
from ..space.transport import wasserstein
from .m3ucrl import LearnerState
from .plan import Plan

LEVEL = 0.95
"""Level at which coverage of the visited states is watched."""

SUSPICIOUS = 1e-3
"""Chance below which too few moves inside the band are no accident."""


@dataclass(frozen=True)
class EpisodeMetrics:
    """One row of a run's metrics.

    Attributes:
        episode: Number of the episode, from 1.
        value: J that the population realised.
        optimistic: J that the planner expected in its imagined world.
        beta: Scale of the confidence band.
        spread: Mean epistemic standard deviation along the plan, in units of the farthest move.
        control: Mean |eta| along the plan.
        w1_middle: W1 between the imagined and the realised distribution half-way.
        w1_end: The same at the end.
        coverage: Share of the tracked agents' moves inside the model's 95% interval, made with
            the model before the episode; None if all were censored.
        transitions: Number of transitions that the plan was based on.
        best: Best J so far.
        reference: J of a reference plan, if known.
        notes: What people should know: fallbacks, a band that is too narrow.
        reward_coverage: The same share of what the agents earned, by the model of the reward;
            None where the reward is known, and in the first episode, because before data nothing
            tells the scale of rewards.
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

    @property
    def optimism(self) -> float | None:
        """Optimistic minus realised J."""
        return None if self.optimistic is None else self.optimistic - self.value

    @property
    def regret(self) -> float | None:
        """What the reference plan would have earned more."""
        return None if self.reference is None else self.reference - self.value

    def row(self) -> dict[str, Any]:
        """The figures under short names, for files and tables."""
        row = {**asdict(self), "optimism": self.optimism, "regret": self.regret}
        if self.reward_coverage is None:  # most runs have no such figure
            del row["reward_coverage"]
        return row


def measure(
    state: LearnerState,
    plan: Plan,
    episode: Episode,
    *,
    best: float | None = None,
    reference: float | None = None,
) -> EpisodeMetrics:
    """The figures of an episode, from the state before it was told.

    Args:
        state: The state that was asked for the plan.
        plan: The plan that was run.
        episode: What was observed.
        best: Best J before.
        reference: J of a reference plan.
    """
    grid = state.data.problem.grid
    value = float(episode.value)
    notes = [*state.notes, plan.note] if plan.note else list(state.notes)
    middle = episode.mass.shape[0] // 2
    imagined = bool(jnp.all(jnp.isfinite(plan.mass)))
    told = Transitions.empty(state.data.problem).append(episode)
    coverage, warning = _coverage(state.model, told, "moves")
    rewards_inside, doubt = None, ""
    if state.reward_model is not None and state.episode:
        rewards_inside, doubt = _coverage(state.reward_model, told.of_rewards(), "rewards")
    notes += [note for note in (warning, doubt) if note]
    return EpisodeMetrics(
        episode=state.episode + 1,
        value=value,
        optimistic=_number(plan.value),
        beta=float(state.model.beta),
        spread=_number(plan.spread),
        control=float(plan.control),
        w1_middle=(
            float(wasserstein(grid, plan.mass[middle], episode.mass[middle])) if imagined else None
        ),
        w1_end=float(wasserstein(grid, plan.mass[-1], episode.mass[-1])) if imagined else None,
        coverage=coverage,
        transitions=len(state.data),
        best=value if best is None else max(best, value),
        reference=reference,
        notes=tuple(notes),
        reward_coverage=rewards_inside,
    )


def _coverage(model: AbstractModel, data: Transitions, name: str) -> tuple[float | None, str]:
    """Coverage of an episode by the model before it, and a warning if it is too low."""
    from scipy.special import bdtr  # slow to import

    told = predict_rows(model, data)
    count = int(told.observed.sum())
    if count == 0:
        return None, ""
    # Beta is meant as a band of two standard deviations or more.
    widening = max(1.0, float(model.beta) / 2.0)
    inside = told.quantiles(widening) <= LEVEL
    hits = int((inside & told.observed).sum())
    warning = ""
    if bdtr(hits, count, LEVEL) < SUSPICIOUS:
        warning = (
            f"the confidence band is too narrow: {hits} of {count} {name} lie inside the "
            f"{LEVEL:.0%} interval; raise beta or recalibrate the model"
        )
    return hits / count, warning


def _number(value: Any) -> float | None:
    number = float(np.asarray(value))
    return number if math.isfinite(number) else None
