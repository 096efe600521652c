"""The theorems on a run that keeps their assumptions, and what is said of runs that do not."""

import math

import jax
import numpy as np
import pytest

from mufield import M3UCRL, Hallucinated, MirrorPlanner
from mufield.models.gp import TheoryBeta
from reproduction.theory.bounds import flow_bound, gap_bound, logs
from reproduction.theory.information import information_of
from reproduction.theory.report import Verdict

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def verdicts(report, name):
    return [verdict for verdict in report.verdicts if verdict.name == name]


def assumption(report, name):
    (found,) = (each for each in report.assumptions if each.name == name)
    return found


def test_the_band_is_wide_enough_and_holds_the_truth(report, ring):
    """Corollary ConfidenceInterval, along the flows of a run."""
    told = information_of(ring.data).gathered
    # Lambda is the noise's variance, so that the ratio is one.
    assert report.rows[-1]["beta"] >= TheoryBeta(1.0, 0.1)(1.0, told)
    assert assumption(report, "WellCalibratedModel").holds is True


def test_plans_expect_at_least_what_the_best_policy_earns(report, ring):
    """Lemma optRegretBound."""
    for row in report.rows:
        assert row["regret"] >= -1e-9
        assert row["optimism"] + row["value"] >= ring.best
        assert row["regret"] <= row["optimism"]
    # And something is learned on the way.
    assert np.all(np.diff([row["complexity"] for row in report.rows]) < 0)


def test_without_the_band_a_plan_expects_less_than_the_best_policy_earns(ring):
    greedy = M3UCRL(
        ring.setup.problem,
        ring.setup.learner.family,
        MirrorPlanner(controls=3, sweeps=20),
        optimism=Hallucinated(0.0),
    )
    assert float(greedy.ask(greedy.init(jax.random.key(0))).value) < ring.best - 1e-3


def test_flows_and_regret_keep_to_every_bound(report, ring):
    for each in ring.evidence:
        bound = flow_bound(report.constants, 6.0, each.deviations)
        assert np.all(logs(each.distances) <= bound + 1e-9)
        gap = gap_bound(report.constants, logs(each.distances[:-1]))
        assert math.log(each.optimistic - each.value) <= gap + 1e-9
    assert {verdict.verdict for verdict in report.verdicts} == {"holds", "vacuous"}
    assert {verdict.name for verdict in report.verdicts} == {
        "lemma MFFlowW1Bound",
        "lemma regretOptBound",
        "lemma episodeRegretSquareBound",
        "theorem main",
        "theorem GPRegretBound",
        "definition MaximumInformationGain",
        "eq. ChodhuryOnlineLemma11Partial",
    }


def test_before_any_data_deviations_are_those_of_the_prior(report, ring):
    spread = 0.25 * math.sqrt(0.5)
    assert report.rows[0]["complexity"] == pytest.approx(3 * spread**2)
    bound = flow_bound(report.constants, 6.0, ring.evidence[0].deviations)
    assert math.exp(bound[1]) == pytest.approx(2 * report.constants.stretch * 6.0 * spread)


def test_the_bounds_follow_in_the_order_of_the_proofs(report):
    (main,), (process,) = (verdicts(report, f"theorem {n}") for n in ("main", "GPRegretBound"))
    assert main.bound <= process.bound


def test_vacuous_bounds_are_called_vacuous_and_others_are_not(report):
    (main,) = verdicts(report, "theorem main")
    assert main.verdict == "vacuous"
    first, end = verdicts(report, "lemma MFFlowW1Bound")
    assert end.verdict == "vacuous"
    assert first.bound < end.bound
    assert first.trivial == pytest.approx(0.5)
    (complexity,) = verdicts(report, "eq. ChodhuryOnlineLemma11Partial")
    assert complexity.verdict == "holds"


def test_constants_that_cannot_be_right_are_found_out(ring):
    wrong = {"L_f": 1.0, "L_sigma": 0.0, "L_pi": 0.0, "L_r": 1e-6, "kappa": 1e-9}
    found = ring.report(given=wrong, reference=ring.best)
    assert "does not hold" in {verdict.verdict for verdict in found.verdicts}


def test_what_needs_no_constant_is_bounded_without_any(ring):
    found = ring.report()
    first, end = verdicts(found, "lemma MFFlowW1Bound")
    assert math.isfinite(first.bound)
    assert end.bound == math.inf
    assert verdicts(found, "theorem main")[0].verdict == "not known"
    assert math.isnan(found.rows[0]["regret"])
    assert found.document()["episodes"][0]["regret"] is None


def test_an_ensemble_among_walls_is_told_what_does_not_hold(rooms):
    found = rooms.report(reference=5.0)
    assert assumption(found, "LipschitzDynamics").holds is False
    assert "walls" in assumption(found, "LipschitzDynamics").why
    assert "GPRegretBound does not apply" in assumption(found, "RKHS and Kernel").why
    assert not verdicts(found, "theorem GPRegretBound")
    assert verdicts(found, "theorem main")
    # The random policy of the first episode was not planned, so that nothing was imagined.
    assert np.isnan(rooms.evidence[0].distances).all()
    assert np.isfinite(rooms.evidence[1].distances).all()


def test_a_verdict_compares_with_the_bound_and_with_what_is_true_anyway():
    def verdict(realised, bound, trivial):
        return Verdict("lemma", "x", realised, math.log(bound), trivial).verdict

    assert verdict(2.0, 3.0, 2.5) == "vacuous"
    assert verdict(2.0, 3.0, 10.0) == "holds"
    assert verdict(4.0, 3.0, 10.0) == "does not hold"
    assert verdict(-1.0, 3.0, 10.0) == "holds"
    assert verdict(math.nan, 3.0, 10.0) == "not known"
