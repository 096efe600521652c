"""What a policy earns with N agents and in the limit of many."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from scipy.special import stdtrit

from .._arrays import Key
from .._progress import progress_bar
from ..learning.metrics import interval_of
from ..policies.base import Profile
from ..systems import SimulatedSystem
from .system import FiniteSystem

if TYPE_CHECKING:
    from ..learning.best import BestPlan


def play_populations(
    system: SimulatedSystem,
    profile: Profile,
    sizes: Sequence[int],
    *,
    episodes: int,
    level: float = 0.95,
    seed: int = 0,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Plays a policy in the flow and with populations of some sizes; one row for each.

    The ``loss`` of a row is what the flow, the first row, earns more; ``low`` and ``high`` are a
    confidence interval of J. ``progress`` shows a bar.
    """
    flow = system.evaluate(profile)
    limit = float(flow.value)
    first: dict[str, Any] = {"population": None, "low": None, "high": None, "by": "flow"}
    first |= {"value": limit, "loss": 0.0}
    if system.problem.constraints is not None:
        tolerance = system.problem.constraints.rule.tolerance  # of plans
        margins = system.problem.margins(flow.mass) if flow.margins is None else flow.margins
        first |= margin_figures(margins.min()[None], tolerance)
    rows = [first]
    with progress_bar("evaluating", len(sizes), shown=progress) as report:
        for number, size in enumerate(sizes, start=1):
            key = jax.random.fold_in(jax.random.key(seed), number)
            played = FiniteSystem.of(system, size).evaluate(profile, key, episodes=episodes)
            mean, low, high = interval_of(np.asarray(played.values, dtype=float).tolist(), level)
            row = {"population": size, "by": "agents", "value": mean, "low": low, "high": high}
            row["loss"] = limit - mean
            if played.margin is not None:
                row |= margin_figures(played.margin)
            rows.append(row)
            report(number, J=mean)
    return rows


def margin_figures(margins: Any, tolerance: float = 1e-6) -> dict[str, float | None]:
    """How often constraints are satisfied, and the mean of the episodes' least margins.

    The tolerance is a share of the limit, by default for rounding; infinite margins do not count.
    """
    found = np.asarray(margins, dtype=float)
    known = found[np.isfinite(found)]
    mean = float(known.mean()) if known.size else None
    return {"satisfied": float(np.mean(found >= -tolerance)), "margin": mean}


def with_chance(plan: "BestPlan", system: FiniteSystem, key: Key) -> "BestPlan":
    r"""The plan with what so many agents can expect of one episode in place of the limit.

    Agents play n = 16 episodes of ``system``, which is the model's mean (`likely_motion`). With
    their mean $\bar J$ and deviation $s$, the interval is
    $\bar J \pm (w + t\, s \sqrt{1 + 1/n})$: w is the half-width by the drawn models, t the
    quantile of Student's distribution for 95%, and the rest the spread of one more episode.
    """
    episodes, level = 16, 0.95
    key = jax.random.fold_in(key, system.agents)  # other numbers than for models
    values = np.asarray(system.evaluate(plan.profile, key, episodes=episodes).values, dtype=float)
    spread = values.std(ddof=1) * np.sqrt(1 + 1 / episodes)
    half = 0.5 * (plan.upper - plan.lower) + stdtrit(episodes - 1, 0.5 + 0.5 * level) * spread
    mean, how = float(values.mean()), f"{plan.how}; {system.agents:,} agents, with chance"
    return replace(plan, expected=mean, lower=mean - half, upper=mean + half, how=how)
