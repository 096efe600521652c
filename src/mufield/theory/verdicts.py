"""Every bound of the paper beside what a run realised."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..problem import Problem
from .bounds import (
    FlowBound,
    episode_bound,
    gap_bound,
    process_regret_bound,
    regret_bound,
)
from .constants import Constants
from .evidence import EpisodeEvidence
from .ledger import Ledger
from .report import Verdict
from .run_constants import of_episode

DIAMETER = "the greatest distance in the space"
RANGE = "the greatest difference of two policies' J that was found"


@dataclass(frozen=True, eq=False)
class Findings:
    """What verdicts are made of.

    Attributes:
        problem: The problem.
        evidence: The episodes.
        constants: The constants of all episodes.
        flows: Bounds of the flows' distances.
        beta: Greatest scale of the band.
        ledger: The information, if there is any.
        reference: J of the best policy, if known.
        diameter: Greatest distance in the space.
        value_range: Greatest difference of two policies' J.
    """

    problem: Problem
    evidence: Sequence[EpisodeEvidence]
    constants: Constants
    flows: Sequence[FlowBound]
    beta: float
    ledger: Ledger | None
    reference: float | None
    diameter: float
    value_range: float


def verdicts_of(findings: Findings) -> tuple[Verdict, ...]:
    """All verdicts, in the order of the proofs."""
    return (*_flow(findings), *_episode(findings), *_regret(findings), *_information(findings))


def _flow(findings: Findings) -> list[Verdict]:
    """Lemma MFFlowW1Bound after one step and at the end of the last episode that was planned."""
    planned = [t for t, each in enumerate(findings.evidence) if each.distances is not None]
    if not planned:
        return []
    last = planned[-1]
    distances = findings.evidence[last].distances
    assert distances is not None
    moments = {1: "after one step", len(distances) - 1: "at the end"}
    return [
        Verdict(
            name="lemma MFFlowW1Bound",
            quantity=f"W1 of the imagined and the realised flow {words} of episode {last + 1}",
            realised=float(distances[h]),
            bound=float(findings.flows[last].recursion[h]),
            trivial=findings.diameter,
            trivial_name=DIAMETER,
        )
        for h, words in moments.items()
    ]


def _episode(findings: Findings) -> list[Verdict]:
    """The lemmas about the regret of the last episode."""
    each, paid = findings.evidence[-1], findings.problem.paid_steps
    number = len(findings.evidence)
    own = of_episode(findings.constants, each)
    found = []
    if each.distances is not None and each.optimistic is not None:
        with np.errstate(divide="ignore"):
            logs = np.log(each.distances[:paid])
        found.append(
            Verdict(
                name="lemma regretOptBound",
                quantity=f"expected minus realised J of episode {number}",
                realised=each.optimistic - each.value,
                bound=gap_bound(own, logs),
                trivial=findings.value_range,
                trivial_name=RANGE,
            )
        )
    regret = None if findings.reference is None else findings.reference - each.value
    found.append(
        Verdict(
            name="lemma episodeRegretSquareBound",
            quantity=f"the regret of episode {number}",
            realised=regret,
            bound=episode_bound(own, findings.beta, each.doubts, paid),
            trivial=findings.value_range,
            trivial_name=RANGE,
        )
    )
    return found


def _regret(findings: Findings) -> list[Verdict]:
    """The theorems."""
    evidence, paid = findings.evidence, findings.problem.paid_steps
    episodes = len(evidence)
    values = [each.value for each in evidence]
    total = None if findings.reference is None else episodes * findings.reference - sum(values)
    complexity = sum(each.squared for each in evidence)
    common = {
        "realised": total,
        "trivial": episodes * findings.value_range,
        "trivial_name": f"{episodes} times {RANGE}",
    }
    log = math.log(complexity) if complexity > 0 else -math.inf
    found = [
        Verdict(
            name="theorem main",
            quantity=f"the regret of {episodes} episodes",
            bound=regret_bound(findings.constants, findings.beta, log, episodes, paid),
            **common,  # type: ignore[arg-type]
        )
    ]
    ledger = findings.ledger
    if ledger is not None and ledger.own and ledger.factor is not None:
        most = float(ledger.everywhere[-1])
        found.append(
            Verdict(
                name="theorem GPRegretBound",
                quantity=f"the regret of {episodes} episodes",
                bound=process_regret_bound(
                    findings.constants, findings.beta, ledger.factor, most, episodes, paid
                ),
                **common,  # type: ignore[arg-type]
            )
        )
    return found


def _information(findings: Findings) -> list[Verdict]:
    """What bounds the complexity and the information."""
    ledger = findings.ledger
    if ledger is None:
        return []
    found = [
        Verdict(
            name="definition MaximumInformationGain",
            quantity="the information of the data",
            realised=float(ledger.gathered[-1]),
            bound=math.log(float(ledger.everywhere[-1])),
            trivial=float(ledger.prior_most[-1]),
            trivial_name="what data without anything in common would give",
        )
    ]
    if ledger.own and ledger.complexity is not None:
        found.append(
            Verdict(
                name="eq. ChodhuryOnlineLemma11Partial",
                quantity="the complexity I_T of the data under the last kernel",
                realised=float(ledger.stale[-1]),
                bound=math.log(float(ledger.complexity[-1])),
                trivial=float(ledger.prior_complexity[-1]),
                trivial_name="what the prior variance alone gives",
            )
        )
    return found
