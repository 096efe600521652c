"""From a run directory to its report."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import UserError
from ..models.gp import TheoryBeta
from .assumptions import assumptions_of
from .bounds import FlowBound, flow_bound, gap_bound, regret_bound
from .constants import SYMBOLS, Constants
from .evidence import EpisodeEvidence, RunData, episodes_of
from .lattice import diameter
from .ledger import Ledger, ledger_of
from .prior import prior_of
from .report import TheoryReport, TheoryRow
from .run_constants import constants_of, of_episode
from .value_range import value_range
from .verdicts import Findings, verdicts_of

TEN = math.log(10)


def make_report(
    run: RunData,
    *,
    given: dict[str, Any] | None = None,
    confidence: float = 0.1,
    reference: float | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> TheoryReport:
    """Puts the theory's numbers beside the run's.

    Args:
        run: The run.
        given: Constants that the user knows, by name or symbol.
        confidence: Delta of the theory's band.
        reference: J of the best policy; by default the run's own reference.
        progress: Called with the number of episodes that were looked at.
    """
    if not 0 < confidence < 1:
        raise UserError(f"the confidence delta must be between 0 and 1, got {confidence}")
    evidence = []
    for each in episodes_of(run):
        evidence.append(each)
        progress(len(evidence))
    if reference is None:
        reference = run.store.config.reference
    prior = prior_of(run)
    ledger = None if prior is None else ledger_of(run, prior)
    constants = constants_of(run, evidence, prior, given or {})
    problem = run.setup.problem
    betas = _betas(run, evidence)
    flows = [
        flow_bound(of_episode(constants, each), beta, each.doubts)
        for each, beta in zip(evidence, betas, strict=True)
    ]
    rows = _rows(
        problem.paid_steps, evidence, constants, flows, betas, ledger, reference, confidence
    )
    masses, rewarded = np.concatenate([each.mass for each in evidence]), run.rewarded
    findings = Findings(
        problem=problem,
        evidence=evidence,
        constants=constants,
        flows=flows,
        beta=max(betas),
        ledger=ledger,
        reference=reference,
        diameter=diameter(problem.grid),
        value_range=math.inf if rewarded is None else value_range(rewarded, masses),
    )
    return TheoryReport(
        run=str(run.store.directory),
        environment=run.store.config.environment,
        model=run.store.config.model,
        horizon=problem.horizon,
        confidence=confidence,
        constants=constants,
        growth=constants.growth(max(betas)),
        assumptions=assumptions_of(run, constants, evidence, prior, reference),
        rows=tuple(rows),
        verdicts=verdicts_of(findings),
        notes=_notes(findings),
        distances=np.stack([_or_nan(each.distances, problem.horizon + 1) for each in evidence]),
        distance_bounds=np.stack([each.recursion for each in flows]) / TEN,
        diameter=findings.diameter,
        value_range=findings.value_range,
    )


def _betas(run: RunData, evidence: Sequence[EpisodeEvidence]) -> list[float]:
    """Scales of bands that hold what plans imagined, and the truth if the model's band does."""
    config = run.store.config
    wider = config.scale if config.optimism in ("hallucinated", "shared") else 1.0
    return [max(1.0, wider) * each.beta for each in evidence]


def _rows(
    paid: int,
    evidence: Sequence[EpisodeEvidence],
    constants: Constants,
    flows: Sequence[FlowBound],
    betas: Sequence[float],
    ledger: Ledger | None,
    reference: float | None,
    confidence: float,
) -> list[TheoryRow]:
    regrets = [None if reference is None else reference - each.value for each in evidence]
    totals = np.cumsum([math.nan if r is None else r for r in regrets])
    complexity = np.cumsum([each.squared for each in evidence])
    observed = np.cumsum([each.observed for each in evidence])
    rows = []
    for t, each in enumerate(evidence):
        own = of_episode(constants, each)
        main = regret_bound(constants, max(betas[: t + 1]), _log(complexity[t]), t + 1, paid)
        rows.append(
            TheoryRow(
                episode=t + 1,
                value=each.value,
                regret=regrets[t],
                total_regret=None if reference is None else float(totals[t]),
                optimism=None if each.optimistic is None else each.optimistic - each.value,
                gap_bound=_gap(own, each, paid),
                regret_bound=gap_bound(own, flows[t].recursion[:paid]) / TEN,
                total_bound=main / TEN,
                beta=each.beta,
                w1_end=None if each.distances is None else float(each.distances[-1]),
                w1_bound=float(flows[t].recursion[-1]) / TEN,
                complexity=float(complexity[t]),
                observed_complexity=float(observed[t]),
                **_of_ledger(ledger, constants, confidence, t),
            )
        )
    return rows


def _of_ledger(
    ledger: Ledger | None, constants: Constants, confidence: float, t: int
) -> dict[str, float | None]:
    names = ["theory_beta", "stale_complexity", "complexity_bound"]
    names += ["information", "least_capacity", "capacity"]
    if ledger is None:
        return dict.fromkeys(names)
    beta = None
    if constants.norm is not None:
        before = float(ledger.gathered[t - 1]) if t else 0.0
        beta = TheoryBeta(constants.norm.value, confidence)(ledger.ratio, before)
    stale, bound = None, None
    if ledger.own and ledger.complexity is not None:
        stale, bound = float(ledger.stale[t]), float(ledger.complexity[t])
    values = (ledger.gathered[t], ledger.least[t], ledger.most[t])
    return dict(zip(names, (beta, stale, bound, *map(float, values)), strict=True))


def _gap(own: Constants, each: EpisodeEvidence, paid: int) -> float | None:
    if each.distances is None:
        return None
    with np.errstate(divide="ignore"):
        return gap_bound(own, np.log(each.distances[:paid])) / TEN


def _notes(findings: Findings) -> tuple[str, ...]:
    notes = []
    estimated = findings.constants.estimated
    if estimated:
        names = ", ".join(SYMBOLS[name] for name in estimated)
        notes.append(
            f"{names}: the largest slopes that were seen, which the true constants can only "
            "exceed; bounds computed from them are not proven. Give what you know with --constants."
        )
    if findings.reference is None:
        notes.append(
            "No reference is known, so that there is no regret; give J of the best policy with "
            "--reference. The optimism, expected minus realised J, bounds each episode's regret "
            "from above if the band holds the truth and plans are solved exactly with all of it."
        )
    elif max(each.value for each in findings.evidence) > findings.reference:
        notes.append(
            "An episode earned more than the reference, which is thus not the best policy: the "
            "true regret is larger than what is shown."
        )
    broken, all_of_them = _violations(findings)
    if broken:
        notes.append(
            f"{broken} of {all_of_them} realised distances exceed their bounds (lemma "
            "MFFlowW1Bound): an assumption or an estimated constant is wrong."
        )
    return tuple(notes)


def _violations(findings: Findings) -> tuple[int, int]:
    broken, count = 0, 0
    for each, bound in zip(findings.evidence, findings.flows, strict=True):
        if each.distances is not None:
            with np.errstate(divide="ignore"):
                off = np.log(each.distances[1:]) > bound.recursion[1:] + 1e-6
            broken, count = broken + int(np.sum(off)), count + len(off)
    return broken, count


def _or_nan(values: Float[np.ndarray, "moments"] | None, size: int) -> Float[np.ndarray, "moments"]:
    return np.full(size, np.nan) if values is None else values


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
