"""What `mufield theory` says of a run: numbers, verdicts and plain sentences."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from .bounds import Log
from .constants import SYMBOLS, Constants


@dataclass(frozen=True)
class Assumption:
    """One of the theory's assumptions.

    Attributes:
        name: Its label in the paper.
        holds: Whether it holds; None where that cannot be seen.
        sentence: Why.
    """

    name: str
    holds: bool | None
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """A bound beside what was realised.

    Attributes:
        name: Its label in the paper.
        quantity: What it bounds.
        realised: The realised value; None where it is not known.
        bound: Natural logarithm of the bound.
        trivial: What the quantity cannot exceed anyway.
        trivial_name: Why it cannot.
    """

    name: str
    quantity: str
    realised: float | None
    bound: Log
    trivial: float
    trivial_name: str

    @property
    def vacuous(self) -> bool:
        """Whether the bound says no more than is known anyway."""
        return self.bound >= math.log(self.trivial) if self.trivial > 0 else True

    @property
    def holds(self) -> bool | None:
        """Whether the realised value keeps to the bound; rounding is forgiven."""
        if self.realised is None:
            return None
        return self.realised <= 0 or math.log(self.realised) <= self.bound + 1e-6

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        bound = f"the bound is {power(self.bound)}"
        if self.realised is None:
            seen = f"{self.quantity} is not known"
        else:
            seen = f"{self.quantity} is {self.realised:.4g}"
        known = f"{self.trivial_name} is {self.trivial:.4g}"
        if self.holds is False:
            end = "IT DOES NOT HOLD, so that an assumption or an estimated constant is wrong"
        elif self.vacuous:
            end = f"vacuous, as {known}"
        else:
            end = f"not vacuous: {known}"
        return f"{self.name}: {seen}, {bound}; {end}."


@dataclass(frozen=True)
class TheoryRow:
    """One episode; logarithms of bounds are to the base of ten, sums are over episodes so far.

    Attributes:
        episode: Its number.
        value: J that was realised.
        regret: What the reference would have earned more.
        total_regret: The sum of these.
        optimism: What the plan expected more than was realised.
        gap_bound: Bound of that from the realised distances (lemma regretOptBound).
        regret_bound: Bound of the episode's regret from the doubts along it.
        total_bound: Bound of the total regret with the complexity so far (theorem main).
        beta: Scale of the model's band.
        theory_beta: Scale of corollary ConfidenceInterval with the information of the data.
        w1_end: Distance of the imagined to the realised flow at the end.
        w1_bound: Its bound (lemma MFFlowW1Bound), the sharper form.
        complexity: I_t along the realised flows.
        observed_complexity: I_t at the tracked agents' points.
        stale_complexity: The same under the last kernel alone, which the next is for.
        complexity_bound: Its bound by the information of the data.
        information: Information of the data.
        least_capacity: Lower bound of the greatest information of as many data.
        capacity: Upper bound of it, among the candidates.
    """

    episode: int
    value: float
    regret: float | None
    total_regret: float | None
    optimism: float | None
    gap_bound: float | None
    regret_bound: float
    total_bound: float
    beta: float
    theory_beta: float | None
    w1_end: float | None
    w1_bound: float
    complexity: float
    observed_complexity: float
    stale_complexity: float | None
    complexity_bound: float | None
    information: float | None
    least_capacity: float | None
    capacity: float | None


@dataclass(frozen=True, eq=False)
class TheoryReport:
    """All of it.

    Attributes:
        run: Name of the run.
        environment: What it is about.
        model: Its statistical model.
        horizon: Number of moves in an episode.
        confidence: Delta, the probability that the theory's band may fail.
        constants: The constants.
        growth: L-bar with the constants of all episodes.
        assumptions: What the theory assumes.
        rows: The episodes.
        verdicts: The bounds.
        notes: What else people should know.
        distances: W1 of imagined and realised flows, by episode and moment; NaN without a plan.
        distance_bounds: Logarithms to the base of ten of their bounds.
        diameter: Greatest distance in the space.
        value_range: Greatest difference of two policies' J.
    """

    run: str
    environment: str
    model: str
    horizon: int
    confidence: float
    constants: Constants
    growth: float
    assumptions: tuple[Assumption, ...]
    rows: tuple[TheoryRow, ...]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]
    distances: Float[np.ndarray, "episodes moments"] = field(repr=False)
    distance_bounds: Float[np.ndarray, "episodes moments"] = field(repr=False)
    diameter: float
    value_range: float

    def document(self) -> dict[str, Any]:
        """The report as JSON has it; bounds are logarithms to the base of ten."""
        constants = {
            SYMBOLS[name]: each for name, each in asdict(self.constants).items() if each is not None
        }
        verdicts = [
            {
                "name": v.name,
                "quantity": v.quantity,
                "realised": v.realised,
                "log10_bound": v.bound / math.log(10),
                "trivial": v.trivial,
                "vacuous": v.vacuous,
                "holds": v.holds,
                "sentence": v.sentence,
            }
            for v in self.verdicts
        ]
        document = {
            "run": self.run,
            "environment": self.environment,
            "model": self.model,
            "horizon": self.horizon,
            "confidence": self.confidence,
            "constants": constants,
            "L_bar": self.growth,
            "diameter": self.diameter,
            "value_range": self.value_range,
            "assumptions": [asdict(each) for each in self.assumptions],
            "verdicts": verdicts,
            "notes": list(self.notes),
            "episodes": [asdict(row) for row in self.rows],
            "w1": self.distances.tolist(),
            "log10_w1_bound": self.distance_bounds.tolist(),
        }
        plain: dict[str, Any] = _finite(document)
        return plain


def power(log: Log) -> str:
    """A number by its natural logarithm; as a power of ten if it is large or small."""
    if log == math.inf:
        return "infinite"
    if log == -math.inf:
        return "0"
    digits = log / math.log(10)
    return f"{math.exp(log):.4g}" if -4 < digits < 5 else f"10^{digits:.1f}"


def _finite(value: Any) -> Any:
    """The same with None for what JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
