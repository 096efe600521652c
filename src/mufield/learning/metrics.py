"""What is recorded of every episode."""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _types
from .._types import Action, Mass, Scalar, State
from ..episode import Episode
from ..models.base import AbstractModel
from ..models.calibration import predict_rows
from ..models.data import Transitions
from ..planning.planner import Plan
from ..policies.base import Profile
from ..space.grid import Grid
from ..space.measure import MeanField, at_all_cells
from ..space.transport import wasserstein
from .m3ucrl import LearnerState

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
    data: Transitions,
    *,
    best: float | None = None,
    reference: float | None = None,
) -> EpisodeMetrics:
    """The figures of an episode, from the state before it was told.

    Args:
        state: The state that was asked for the plan.
        plan: The plan that was run.
        episode: What was observed.
        data: All transitions so far, those of the episode included.
        best: Best J before.
        reference: J of a reference plan.
    """
    problem = state.data.problem
    grid, far = problem.grid, problem.max_move
    value = float(episode.value)
    notes = [*state.notes, plan.note] if plan.note else list(state.notes)
    middle = episode.mass.shape[0] // 2
    imagined, spread = bool(jnp.all(jnp.isfinite(plan.mass))), None
    if imagined:
        spread = float(_mean_spread(state.model, plan.profile, plan.mass, grid, far))
    fresh = _since(data, len(state.data))
    coverage, warning = _coverage(state.model, fresh, "moves")
    rewards_inside, doubt = None, ""
    if state.reward_model is not None and state.episode:
        rewards_inside, doubt = _coverage(state.reward_model, fresh.of_rewards(), "rewards")
    notes += [note for note in (warning, doubt) if note]
    return EpisodeMetrics(
        episode=state.episode + 1,
        value=value,
        optimistic=_number(plan.value),
        beta=float(state.model.beta),
        spread=spread,
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


@eqx.filter_jit
def _mean_spread(
    model: AbstractModel,
    profile: Profile,
    mass: _types.Masses,
    grid: Grid,
    farthest: tuple[float, ...],
) -> Scalar:
    """Mean epistemic standard deviation at a plan's mean actions, in units of the farthest move."""
    far = jnp.asarray(farthest, dtype=mass.dtype)

    def step(inputs: tuple[Any, Mass]) -> Scalar:
        part, now = inputs
        actions = profile.join(part).at_cells(grid, now).mean()

        def spread(state: State, action: Action, mu: MeanField) -> Scalar:
            return jnp.mean(model.predict(state, action, mu).epistemic / far)

        return jnp.vdot(now, at_all_cells(grid, now, spread, actions[:, None])[:, 0])

    return jnp.mean(jax.lax.map(step, (profile.per_step, mass[:-1])))


def _coverage(model: AbstractModel, data: Transitions, name: str) -> tuple[float | None, str]:
    """Coverage of an episode by the model before it, and a warning if it is too low."""
    from scipy.special import bdtr  # slow to import

    found = predict_rows(model, data)
    count = int(found.observed.sum())
    if count == 0:
        return None, ""
    # Beta is meant as a band of two standard deviations or more.
    widening = max(1.0, float(model.beta) / 2.0)
    inside = found.quantiles(widening) <= LEVEL
    hits = int((inside & found.observed).sum())
    warning = ""
    if bdtr(hits, count, LEVEL) < SUSPICIOUS:
        warning = (
            f"the confidence band is too narrow: {hits} of {count} {name} lie inside the "
            f"{LEVEL:.0%} interval; raise beta or recalibrate the model"
        )
    return hits / count, warning


def _since(data: Transitions, count: int) -> Transitions:
    """The transitions after the first ``count``, with their own distributions only."""
    fresh = data.rows(np.arange(count, len(data)))
    first = int(fresh.moment.min())
    return replace(fresh, mass=data.mass[first:], moment=fresh.moment - first)


def _number(value: Any) -> float | None:
    number = float(np.asarray(value))
    return number if math.isfinite(number) else None
