"""The theorems on a run that keeps their assumptions, and what is said of runs that do not."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from mufield import M3UCRL, Hallucinated, MirrorPlanner
from mufield.theory.run_information import information_of, prior_of
from mufield.theory.verdicts import Verdict, power

pytestmark = pytest.mark.slow

KNOWN = {"B_f": 1.0, "L_r": 1.0}


def verdicts(report, name):
    return [verdict for verdict in report.verdicts if verdict.name == name]


def assumption(report, name):
    (found,) = (each for each in report.assumptions if each.name == name)
    return found


def test_all_constants_are_given_or_bounded(report):
    assert report.constants.estimated == []
    assert report.constants.motion.source == "bound"
    assert not any("not proven" in note for note in report.notes)
    # 1 + m B L_d and m L_d, with the kernel's root of the variance over its length scale times
    # the slope of the sine and cosine.
    slope = math.sqrt(0.5) / 2 * 2 * math.pi
    assert report.constants.motion.value == pytest.approx(1 + 0.25 * 1.0 * slope)
    assert report.constants.spread.value == pytest.approx(0.25 * slope)


def test_the_band_is_wide_enough_and_holds_the_truth(report):
    """Corollary ConfidenceInterval, along the flows of a run."""
    assert all(row.beta >= row.theory_beta for row in report.rows)
    assert assumption(report, "WellCalibratedModel").holds is True


def test_plans_expect_at_least_what_the_best_policy_earns(report, ring):
    """Lemma optRegretBound."""
    for row in report.rows:
        assert row.regret >= -1e-9
        assert row.optimism + row.value >= ring.best
        assert row.regret <= row.optimism
    # And something is learned on the way.
    deviations = np.diff([row.complexity for row in report.rows], prepend=0.0)
    assert np.all(np.diff(deviations) < 0)


def test_without_the_band_a_plan_expects_less_than_the_best_policy_earns(ring):
    greedy = M3UCRL(
        ring.setup.problem,
        ring.setup.learner.family,
        MirrorPlanner(controls=3, sweeps=20),
        optimism=Hallucinated(0.0),
    )
    assert float(greedy.ask(greedy.init(jax.random.key(0))).value) < ring.best - 1e-3


def test_flows_and_regret_keep_to_every_bound(report):
    with np.errstate(divide="ignore"):
        realised = np.log10(report.distances[:, 1:])
    assert np.all(realised <= report.distance_bounds[:, 1:] + 1e-9)
    for row in report.rows:
        assert math.log10(row.optimism) <= row.gap_bound <= row.regret_bound
        assert math.log10(max(row.total_regret, 1e-300)) <= row.total_bound
        assert row.stale_complexity <= row.complexity_bound
        assert row.information <= row.capacity
    assert all(verdict.holds for verdict in report.verdicts)
    assert {verdict.name for verdict in report.verdicts} == {
        "lemma MFFlowW1Bound",
        "lemma regretOptBound",
        "lemma episodeRegretSquareBound",
        "theorem main",
        "theorem GPRegretBound",
        "definition MaximumInformationGain",
        "eq. ChodhuryOnlineLemma11Partial",
    }


def test_before_any_data_deviations_are_those_of_the_prior(report):
    spread = 0.25 * math.sqrt(0.5)
    assert report.rows[0].complexity == pytest.approx(3 * spread**2)
    assert report.rows[0].observed_complexity == pytest.approx(3 * spread**2)
    kappa = report.constants.stretch.value
    assert 10 ** report.distance_bounds[0, 1] == pytest.approx(2 * kappa * 6.0 * spread)


def test_the_bounds_follow_in_the_order_of_the_proofs(report):
    (main,), (process,) = (verdicts(report, f"theorem {n}") for n in ("main", "GPRegretBound"))
    assert main.bound <= process.bound
    assert sum(10**row.regret_bound for row in report.rows) <= math.exp(main.bound)


def test_the_deviations_of_the_data_are_those_of_the_models(report):
    """One kernel throughout, so that both ways to the complexity agree: all agents, and a mean."""
    for row in report.rows:
        assert row.stale_complexity == pytest.approx(2 * row.observed_complexity, rel=1e-6)


def test_many_data_are_counted_alike_through_inducing_points(report, ring):
    found = information_of(ring.data, prior_of(ring.data), most_exact=0)
    expected = [[row.information, row.stale_complexity] for row in report.rows]
    np.testing.assert_allclose(np.c_[found.gathered, found.complexity], expected, rtol=1e-3)


def test_vacuous_bounds_are_called_vacuous_and_others_are_not(report):
    (main,) = verdicts(report, "theorem main")
    assert main.vacuous
    assert "vacuous, as 3 times" in main.sentence
    first, end = verdicts(report, "lemma MFFlowW1Bound")
    assert end.vacuous
    (complexity,) = verdicts(report, "eq. ChodhuryOnlineLemma11Partial")
    assert not complexity.vacuous
    assert "not vacuous: what the prior variance alone gives" in complexity.sentence
    assert first.bound < end.bound
    assert first.trivial == report.diameter == pytest.approx(0.5)


def test_constants_that_cannot_be_right_are_found_out(ring):
    wrong = ring.report(given={**KNOWN, "L_r": 1e-6, "kappa": 1e-9}, reference=ring.best)
    assert not all(verdict.holds for verdict in wrong.verdicts)
    assert any("DOES NOT HOLD" in verdict.sentence for verdict in wrong.verdicts)
    assert any("realised distances exceed their bounds" in note for note in wrong.notes)


def test_without_knowledge_constants_are_estimated_below_the_truth(ring, report):
    guess = ring.report()
    assert guess.constants.estimated == ["motion", "reward"]
    assert 0 < guess.constants.reward.value <= 1.0 + 1e-9
    assert 0 < guess.constants.motion.value <= report.constants.motion.value
    assert 0 < guess.constants.norm.value <= 1.0 + 1e-9
    assert guess.rows[0].regret is None
    assert any("not proven" in note for note in guess.notes)
    assert any("--reference" in note for note in guess.notes)


def test_a_reference_that_was_beaten_is_called_no_optimum(ring):
    low = ring.report(given=KNOWN, reference=-5.0)
    assert any("not the best policy" in note for note in low.notes)


def test_an_ensemble_among_walls_is_told_what_does_not_hold(rooms):
    found = rooms.report(reference=5.0)
    assert assumption(found, "LipschitzDynamics").holds is False
    assert "walls" in assumption(found, "LipschitzDynamics").sentence
    assert assumption(found, "LipschitzPolicyAndReward").holds is False
    said = assumption(found, "RKHS and Kernel").sentence
    assert "theorem GPRegretBound does not apply" in said
    assert "would give a Gaussian process" in said
    assert not verdicts(found, "theorem GPRegretBound")
    assert verdicts(found, "theorem main")
    # The random policy of the first episode was not planned, so that nothing was imagined.
    assert np.isnan(found.distances[0]).all()
    assert found.rows[0].w1_end is None
    assert found.rows[1].w1_end is not None
    assert found.rows[1].information > found.rows[0].information > 0
    assert found.rows[1].complexity_bound is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delta": 1.0}, "between 0 and 1, got 1.0"),
        ({"given": {"L_x": 1.0}}, "no constant 'L_x'; there are motion"),
        ({"given": {"L_f": "much"}}, "L_f must be a number, got 'much'"),
    ],
)
def test_senseless_questions_are_refused(ring, options, said):
    with pytest.raises(ValueError, match=said):
        ring.report(**options)


def test_verdicts_in_words():
    one = Verdict("lemma", "x", 2.0, math.log(3.0), 2.5, "the most")
    assert one.sentence == "lemma: x is 2, the bound is 3; vacuous, as the most is 2.5."
    sharp = dataclasses.replace(one, trivial=10.0)
    assert sharp.sentence.endswith("not vacuous: the most is 10.")
    broken = dataclasses.replace(one, realised=4.0)
    assert "IT DOES NOT HOLD" in broken.sentence
    unknown = dataclasses.replace(one, realised=None)
    assert unknown.holds is None
    assert "x is not known" in unknown.sentence
    assert [power(x) for x in (math.inf, -math.inf, 0.0, 1000.0)] == [
        "infinite",
        "0",
        "1",
        "10^434.3",
    ]
