"""The figures of an episode, and which episode was the best, for runs in memory and on disk.

No JAX here, so that commands that only read such figures start at once.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

Distribution = Float[np.ndarray, "cells"]

COVERAGE_LEVEL = 0.95
"""Level of the intervals whose coverage is reported."""


class Earned(NamedTuple):
    """What later episodes are compared with.

    Attributes:
        value: J that was earned.
        elsewhere: Share of the population that did not begin as the problem says, if any did.
        finding: As of `EpisodeMetrics`.
    """

    value: float
    elsewhere: float | None = None
    finding: str | None = None


@dataclass(frozen=True)
class EpisodeMetrics:
    """One row of a run's metrics; figures that a run does not have are None.

    Attributes:
        episode: Number of the episode, from 1.
        value: J that the population realised.
        optimistic: J that the plan expected; None for a mixture with the safe policy, for the
            random one, and for a day that was planned anew.
        beta: Scale of the confidence band.
        spread: Mean epistemic standard deviation along the plan, in units of the farthest move.
        control: Mean |eta| along the plan.
        w1_end: W1 between the imagined and the realised distribution at the end.
        coverage: Share of the tracked agents' moves inside the 95% interval of the model before
            the episode; None on nodes, and if walls censored all of them.
        transitions: Number of transitions that the plan was based on, those of logs included.
        best: Best J so far, of episodes that began as the problem says if any did.
        reference: J of a reference plan.
        notes: Warnings in words, such as of a fallback or a band that is too narrow.
        greedy: J of the plan without optimism on the same data, which does not explore.
        greedy_expected: J that the model's mean expected of it.
        margin: The least of `margins`: -0.01 is a violation by 1% of the constraint.
        assured: The least margin of any constraint over all sampled models.
        margins: The margin of each constraint after each move, by name; None where it need not
            hold.
        elsewhere: Share of the population that did not begin as the problem says; None if that
            may be chance. Such an episode does not count as the best.
        served: Share of a fleet's demand that found a vehicle.
        finding: What the data so far showed the motion to depend on besides state and action.
        paths: With shocks, what the plan expected over their paths: the fields of `Bands`; and
            under ``realised`` the rewards and entropies of the path that came.
    """

    episode: int
    value: float
    optimistic: float | None
    beta: float
    spread: float | None
    control: float
    w1_end: float | None
    coverage: float | None
    transitions: int
    best: float
    reference: float | None = None
    notes: tuple[str, ...] = field(default=())
    greedy: float | None = None
    greedy_expected: float | None = None
    margin: float | None = None
    assured: float | None = None
    margins: dict[str, list[float | None]] | None = None
    elsewhere: float | None = None
    served: float | None = None
    finding: str | None = None
    paths: dict[str, Any] | None = None

    @property
    def earned(self) -> Earned:
        """What later episodes are compared with."""
        return Earned(self.value, self.elsewhere, self.finding)

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
        # Most runs have no such figures.
        rare = ("greedy", "greedy_expected", "margin", "assured", "margins", "elsewhere")
        absent = [name for name in (*rare, "served", "finding", "paths") if row[name] is None]
        return {name: value for name, value in row.items() if name not in absent}


def bar_figures(row: Mapping[str, Any]) -> dict[str, float]:
    """What a progress bar shows of an episode."""
    names = ("value", "optimistic", "best", "beta", "spread", "greedy", "reference", "margin")
    known = {name: float(row[name]) for name in names if row.get(name) is not None}
    return {"J" if name == "value" else name: number for name, number in known.items()}


def best_episode(episodes: Sequence[Earned]) -> int:
    """Index of the episode with the highest J of those that began as the problem says.

    From elsewhere even a bad policy may earn more. If none began as the problem says, of all; of
    several with the same J, the first.
    """
    home = [i for i, each in enumerate(episodes) if each.elsewhere is None]
    return max(home or range(len(episodes)), key=lambda i: episodes[i].value)


def began_elsewhere(
    initial: Distribution, planned: Distribution, observed: Distribution, agents: int
) -> float | None:
    """Share of the population that did not begin as the problem says; None if that may be chance.

    ``planned`` is what the plan expected at first, not finite if nothing was expected, and
    ``agents`` the number of agents that were tracked.
    """
    if np.isfinite(planned).all():
        share = total_variation(initial, planned)
        if share > 1e-4:  # two distributions that were given are alike below that
            return share
    return share_beyond_chance(initial, observed, agents)


def share_beyond_chance(
    expected: Distribution, observed: Distribution, agents: int | None
) -> float | None:
    """Share of agents elsewhere than expected; None if it is small or may be chance.

    ``agents`` is None if ``observed`` is exact.
    """
    # The right agents differ, too: by the mean over the cells and, once in a hundred, so much more.
    chance = 0.0
    if agents is not None:
        chance = float(np.sqrt(2 / math.pi * expected * (1 - expected) / agents).sum()) / 2
        chance += 1.5 / math.sqrt(agents)  # McDiarmid: each agent changes the share by 1 / agents
    nowhere = float(observed[expected <= 0].sum())  # chance leads nobody there
    share = total_variation(expected, observed)
    matters = 0.1
    return share if share > matters + chance or nowhere > matters else None


def total_variation(one: Distribution, other: Distribution) -> float:
    """Share of the population that is elsewhere in one distribution than in the other."""
    return 0.5 * float(np.abs(one - other).sum())


class Interval(NamedTuple):
    """A mean and the ends of its confidence interval, which are None for a single value."""

    mean: float
    low: float | None
    high: float | None


def interval_of(values: Sequence[float], level: float = 0.95) -> Interval:
    """The mean of values and its confidence interval, by Student's t distribution."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return Interval(mean, None, None)
    from scipy.special import stdtrit

    quantile = float(stdtrit(count - 1, 0.5 + level / 2))
    half = quantile * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)
