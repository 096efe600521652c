"""What `mufield theory` reports: the theory's bounds beside what a run realised."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import UserError
from ..models.gp import TheoryBeta
from ..space.transport import cell_distances
from .assumptions import Assumption, assumptions_of
from .bounds import (
    SYMBOLS,
    Constants,
    flow_bound,
    gap_bound,
    given_constants,
    log,
    logs,
    regret_bound,
)
from .constants import constants_of, of_episode
from .run import EpisodeEvidence, RunData, episodes_of
from .run_information import information_of, prior_of
from .verdicts import Findings, Verdict, value_range, verdicts_of


@dataclass(frozen=True)
class TheoryRow:
    """One episode. Bounds are logarithms to the base of ten; sums are over episodes so far.

    Attributes:
        value: Realised J.
        regret: J of the reference minus ``value``.
        optimism: J that the plan expected minus ``value``.
        gap_bound: Bound of the optimism from the realised distances (lemma regretOptBound).
        regret_bound: Bound of the regret from the deviations along the episode.
        total_bound: Bound of the total regret from the complexity (theorem main).
        w1_end: W1 of the imagined and the realised distribution at the end.
        w1_bound: Bound of ``w1_end`` (`flow_bound`).
        complexity: I_t along the realised flows.
        observed_complexity: I_t at the tracked agents' points.
        theory_beta: Scale of corollary ConfidenceInterval with the information of the data.
        stale_complexity: ``observed_complexity`` of all agents, under the last kernel.
        complexity_bound: Bound of ``stale_complexity`` by the information of the data.
        information: Information of the data.
        least_capacity: Lower bound of the greatest information that as many data can have.
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
    w1_end: float | None
    w1_bound: float
    complexity: float
    observed_complexity: float
    theory_beta: float | None = None
    stale_complexity: float | None = None
    complexity_bound: float | None = None
    information: float | None = None
    least_capacity: float | None = None
    capacity: float | None = None


@dataclass(frozen=True, eq=False)
class TheoryReport:
    """The whole report.

    Attributes:
        run: Directory of the run.
        delta: Probability with which the theory's band may fail.
        growth: L-bar, with the constants of all episodes.
        diameter: Greatest distance in the space.
        value_range: Greatest difference of two policies' J.
        rows: One for each episode.
        distances: W1 of imagined and realised flows, by episode and moment; NaN without a plan.
        distance_bounds: Logarithms to the base of ten of their bounds.
    """

    run: str
    environment: str
    model: str
    horizon: int
    delta: float
    constants: Constants
    growth: float
    diameter: float
    value_range: float
    assumptions: tuple[Assumption, ...]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]
    rows: tuple[TheoryRow, ...]
    distances: Float[np.ndarray, "episodes moments"] = field(repr=False)
    distance_bounds: Float[np.ndarray, "episodes moments"] = field(repr=False)

    def document(self) -> dict[str, Any]:
        """The report for JSON; bounds are logarithms to the base of ten."""
        document = asdict(self)
        document["episodes"] = document.pop("rows")
        document["w1"] = document.pop("distances").tolist()
        document["log10_w1_bound"] = document.pop("distance_bounds").tolist()
        for words, verdict in zip(document["verdicts"], self.verdicts, strict=True):
            words["log10_bound"] = words.pop("bound") / math.log(10)
            words |= {name: getattr(verdict, name) for name in ("vacuous", "holds", "sentence")}
        plain: dict[str, Any] = _finite(document)
        return plain


def make_report(
    run: RunData,
    *,
    given: Mapping[str, Any] | None = None,
    delta: float = 0.1,
    reference: float | None = None,
    evidence: Sequence[EpisodeEvidence] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> TheoryReport:
    """Computes the report on a run.

    Args:
        run: The run.
        given: Constants that the user knows, by name or symbol.
        delta: Probability with which the theory's band may fail.
        reference: J of the best policy; by default the run's own reference.
        evidence: Result of `episodes_of`, if at hand; it takes most of the time.
        progress: Called after each episode with the number of episodes done.
    """
    if not 0 < delta < 1:
        raise UserError(f"delta must be between 0 and 1, got {delta}")
    known = given_constants(given or {})
    if evidence is None:
        evidence = []
        for each in episodes_of(run):
            evidence.append(each)
            progress(len(evidence))
    problem, config, rewarded = run.setup.problem, run.store.config, run.rewarded
    prior = prior_of(run)
    constants = constants_of(run, evidence, prior, known)
    wider = (config.scale or 1.0) if config.optimism in ("hallucinated", "shared") else 1.0
    betas = [max(1.0, wider) * each.beta for each in evidence]
    masses = np.concatenate([each.mass for each in evidence])
    found = Findings(
        run=run,
        evidence=evidence,
        constants=constants,
        betas=betas,
        flows=[
            flow_bound(of_episode(constants, each), beta, each.deviations)
            for each, beta in zip(evidence, betas, strict=True)
        ],
        prior=prior,
        information=None if prior is None else information_of(run, prior),
        reference=config.reference if reference is None else reference,
        diameter=float(cell_distances(problem.grid).max()),
        value_range=math.inf if rewarded is None else value_range(rewarded, masses),
    )
    unplanned = np.full(problem.horizon + 1, np.nan)
    return TheoryReport(
        run=str(run.store.directory),
        environment=config.environment,
        model=config.model,
        horizon=problem.horizon,
        delta=delta,
        constants=constants,
        growth=constants.growth(max(betas)),
        diameter=found.diameter,
        value_range=found.value_range,
        assumptions=assumptions_of(found),
        verdicts=tuple(verdicts_of(found)),
        notes=_notes(found),
        rows=tuple(_row(found, delta, t) for t in range(len(evidence))),
        distances=np.stack([unplanned if e.distances is None else e.distances for e in evidence]),
        distance_bounds=np.stack(found.flows) / math.log(10),
    )


def _row(found: Findings, delta: float, t: int) -> TheoryRow:
    each, bounds, paid = found.evidence[t], found.flows[t], found.paid
    constants, own = found.constants, of_episode(found.constants, found.evidence[t])
    regret, total, planned, w1_end, information = None, None, None, None, {}
    so_far = found.evidence[: t + 1]
    if found.reference is not None:
        regret = found.reference - each.value
        total = sum(found.reference - episode.value for episode in so_far)
    if each.distances is not None:
        planned = gap_bound(own, logs(each.distances[:paid])) / math.log(10)
        w1_end = float(each.distances[-1])
    complexity = sum(episode.squared for episode in so_far)
    main = regret_bound(constants, max(found.betas[: t + 1]), log(complexity), t + 1, paid)
    if (info := found.information) is not None:
        information = {
            "information": float(info.gathered[t]),
            "least_capacity": float(info.least[t]),
            "capacity": float(info.most[t]),
        }
        if constants.norm is not None and found.prior is not None:
            before = float(info.gathered[t - 1]) if t else 0.0
            beta = TheoryBeta(constants.norm.value, delta)
            information["theory_beta"] = beta(found.prior.ratio, before)
    if (info := found.own_information) is not None and info.complexity_bound is not None:
        information["stale_complexity"] = float(info.complexity[t])
        information["complexity_bound"] = float(info.complexity_bound[t])
    return TheoryRow(
        episode=t + 1,
        value=each.value,
        regret=regret,
        total_regret=total,
        optimism=None if each.optimistic is None else each.optimistic - each.value,
        gap_bound=planned,
        regret_bound=gap_bound(own, bounds[:paid]) / math.log(10),
        total_bound=main / math.log(10),
        beta=each.beta,
        w1_end=w1_end,
        w1_bound=float(bounds[-1]) / math.log(10),
        complexity=complexity,
        observed_complexity=sum(episode.observed for episode in so_far),
        **information,
    )


def _notes(found: Findings) -> tuple[str, ...]:
    notes = []
    if found.constants.estimated:
        names = ", ".join(SYMBOLS[name] for name in found.constants.estimated)
        notes.append(
            f"{names}: the largest slopes that were seen, which the true constants can only "
            "exceed; bounds computed from them are not proven. Give what you know with --constants."
        )
    if found.reference is None:
        notes.append(
            "No reference is known, so that there is no regret; give J of the best policy with "
            "--reference. The optimism, expected minus realised J, bounds each episode's regret "
            "from above if the band holds the truth and plans are solved exactly with all of it."
        )
    elif max(each.value for each in found.evidence) > found.reference:
        notes.append(
            "An episode earned more than the reference, which is thus not the best policy: the "
            "true regret is larger than what is shown."
        )
    broken, count = found.violations()
    if broken:
        notes.append(
            f"{broken} of {count} realised distances exceed their bounds (lemma "
            "MFFlowW1Bound): an assumption or an estimated constant is wrong."
        )
    return tuple(notes)


def _finite(value: Any) -> Any:
    """Replaces NaN and infinity, which JSON cannot hold, by None."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
