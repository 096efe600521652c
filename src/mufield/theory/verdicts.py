"""Every bound of the paper beside what a run realised and what cannot be exceeded anyway."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Mass, Scalar
from ..problem import Problem
from ..space.measure import at_all_cells
from .bounds import Constants, Log, episode_bound, gap_bound, log, logs, regret_bound
from .constants import of_episode
from .run import EpisodeEvidence, RunData
from .run_information import Information, Prior


@dataclass(frozen=True, eq=False)
class Findings:
    """All that was found out about a run, for `verdicts_of` and the report.

    Attributes:
        betas: For each episode, the scale of a band that holds the imagined motion, and the true
            one if the model's own band does.
        flows: For each episode, bounds of the distance of imagined and realised flow.
        reference: J of the best policy, if known.
        diameter: Greatest distance in the space, which no W1 exceeds.
        value_range: Greatest difference of two policies' J.
    """

    run: RunData
    evidence: Sequence[EpisodeEvidence]
    constants: Constants
    betas: Sequence[float]
    flows: Sequence[Float[np.ndarray, "moments"]]
    prior: Prior | None
    information: Information | None
    reference: float | None
    diameter: float
    value_range: float

    @property
    def own_information(self) -> Information | None:
        """The information if the process is the run's own and its prior variance is known."""
        known = self.information is not None and self.information.complexity_bound is not None
        return self.information if known and self.prior is not None and self.prior.own else None

    @property
    def paid(self) -> int:
        """Number of paid distributions of an episode, the paper's H."""
        return self.run.setup.problem.paid_steps

    def violations(self) -> tuple[int, int]:
        """How many realised distances exceed their bounds, and how many there are."""
        pairs = zip(self.evidence, self.flows, strict=True)
        planned = [(e.distances, f) for e, f in pairs if e.distances is not None]
        off = [logs(d[1:]) > flow[1:] + 1e-6 for d, flow in planned]
        return int(sum(map(np.sum, off))), sum(map(len, off))


@dataclass(frozen=True)
class Verdict:
    """A bound beside what was realised.

    Attributes:
        name: Label of the bound in the paper.
        quantity: Name of what it bounds.
        realised: Realised value; None if unknown.
        bound: Natural logarithm of the bound.
        trivial: A value that the quantity cannot exceed anyway.
        trivial_name: What that value is.
    """

    name: str
    quantity: str
    realised: float | None
    bound: Log
    trivial: float
    trivial_name: str

    @property
    def vacuous(self) -> bool:
        """Whether the bound is no smaller than the trivial one."""
        return self.bound >= log(self.trivial)

    @property
    def holds(self) -> bool | None:
        """Whether the realised value keeps to the bound; rounding is forgiven."""
        return None if self.realised is None else log(self.realised) <= self.bound + 1e-6

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        seen = "not known" if self.realised is None else f"{self.realised:.4g}"
        known = f"{self.trivial_name} is {self.trivial:.4g}"
        end = f"vacuous, as {known}" if self.vacuous else f"not vacuous: {known}"
        if self.holds is False:
            end = "IT DOES NOT HOLD, so that an assumption or an estimated constant is wrong"
        return f"{self.name}: {self.quantity} is {seen}, the bound is {power(self.bound)}; {end}."


def verdicts_of(found: Findings) -> Iterator[Verdict]:
    """All verdicts, in the order of the proofs."""
    episodes, beta = len(found.evidence), max(found.betas)
    last, own = found.evidence[-1], of_episode(found.constants, found.evidence[-1])
    diameter = "the greatest distance in the space"
    values = "the greatest difference of two policies' J that was found"
    # The distances of the last episode that was planned, after one step and at the end.
    for t in [t for t, each in enumerate(found.evidence) if each.distances is not None][-1:]:
        distances = np.asarray(found.evidence[t].distances)
        for h, when in {1: "after one step", len(distances) - 1: "at the end"}.items():
            yield Verdict(
                "lemma MFFlowW1Bound",
                f"W1 of the imagined and the realised flow {when} of episode {t + 1}",
                float(distances[h]),
                float(found.flows[t][h]),
                found.diameter,
                diameter,
            )
    if last.distances is not None and last.optimistic is not None:
        yield Verdict(
            "lemma regretOptBound",
            f"expected minus realised J of episode {episodes}",
            last.optimistic - last.value,
            gap_bound(own, logs(last.distances[: found.paid])),
            found.value_range,
            values,
        )
    yield Verdict(
        "lemma episodeRegretSquareBound",
        f"the regret of episode {episodes}",
        None if found.reference is None else found.reference - last.value,
        episode_bound(own, beta, last.deviations, found.paid),
        found.value_range,
        values,
    )
    complexities = {"theorem main": log(sum(each.squared for each in found.evidence))}
    info, own_info = found.information, found.own_information
    if own_info is not None and own_info.factor is not None:
        complexities["theorem GPRegretBound"] = own_info.factor + log(own_info.everywhere[-1])
    earned = sum(each.value for each in found.evidence)
    for name, complexity in complexities.items():
        yield Verdict(
            name,
            f"the regret of {episodes} episodes",
            None if found.reference is None else episodes * found.reference - earned,
            regret_bound(found.constants, beta, complexity, episodes, found.paid),
            episodes * found.value_range,
            f"{episodes} times {values}",
        )
    if info is not None:
        yield Verdict(
            "definition MaximumInformationGain",
            "the information of the data",
            float(info.gathered[-1]),
            log(float(info.everywhere[-1])),
            float(info.prior_most[-1]),
            "what data without anything in common would give",
        )
    if own_info is not None and (bounds := own_info.complexity_bound) is not None:
        yield Verdict(
            "eq. ChodhuryOnlineLemma11Partial",
            "the complexity I_T of the data under the last kernel",
            float(own_info.complexity[-1]),
            log(bounds[-1]),
            float(own_info.prior_complexity[-1]),
            "what the prior variance alone gives",
        )


def value_range(problem: Problem, masses: Float[np.ndarray, "moments cells"]) -> float:
    """Estimates the greatest possible regret of an episode.

    It is the greatest minus the least integrated reward, times the number of paid steps, among
    point masses, the uniform distribution and ``masses``, with actions spread over the box.
    """
    n, dtype = problem.grid.n_cells, problem.initial.dtype
    # Distributions of a run that are tried for the range of J.
    most_distributions = 200
    stride = max(1, len(masses) // most_distributions)
    tried = np.concatenate([np.eye(n), np.full((1, n), 1.0 / n), masses[::stride]])
    # Actions on each axis of a box that are tried for the range of J, its ends among them.
    points = 3
    moves = problem.actions.points(points).astype(dtype)
    low, high = _extremes(problem, jnp.asarray(tried, dtype), moves)
    return float(jnp.max(high) - jnp.min(low)) * problem.paid_steps


@eqx.filter_jit
def _extremes(
    problem: Problem, masses: Float[Array, "rows cells"], moves: Float[Array, "moves dim"]
) -> tuple[Array, Array]:
    """Least and greatest integrated reward of each distribution."""
    everywhere = jnp.broadcast_to(moves, (problem.grid.n_cells, *moves.shape))

    def of(mass: Mass) -> tuple[Scalar, Scalar]:
        rewards = at_all_cells(problem.grid, mass, problem.reward, everywhere)
        return jnp.vdot(mass, rewards.min(axis=1)), jnp.vdot(mass, rewards.max(axis=1))

    found: tuple[Array, Array] = jax.lax.map(of, masses)
    return found


def power(number: Log) -> str:
    """Formats a number given by its natural logarithm, if large or small as a power of ten."""
    if number == math.inf:
        return "infinite"
    if number == -math.inf:
        return "0"
    digits = number / math.log(10)
    return f"{math.exp(number):.4g}" if -4 < digits < 5 else f"10^{digits:.1f}"
