"""Which of the theory's assumptions a run keeps, in plain sentences."""

from collections.abc import Sequence

from ..models.gp import GaussianProcess
from ..space.noise import GaussianNoise
from .constants import SYMBOLS, Constants
from .evidence import EpisodeEvidence, RunData
from .prior import Prior
from .report import Assumption
from .slopes import unbounded_in_empty_cells

WHOLE = 1 - 1e-6
"""Share of the population's moves that counts as all of them."""


def assumptions_of(
    run: RunData,
    constants: Constants,
    evidence: Sequence[EpisodeEvidence],
    prior: Prior | None,
    reference: float | None,
) -> tuple[Assumption, ...]:
    """Checks each assumption as far as it can be seen."""
    return (
        _dynamics(run, constants),
        _reward(run, constants),
        _calibrated(evidence),
        _same_world(run),
        _optimism(run, evidence, reference),
        _rkhs(run, prior),
    )


def _dynamics(run: RunData, constants: Constants) -> Assumption:
    name, problem = "LipschitzDynamics", run.setup.problem
    if problem.grid.walls.any():
        return Assumption(
            name, False, "walls inside the space make the motion discontinuous at their ends"
        )
    if not isinstance(problem.noise, GaussianNoise):
        return Assumption(name, False, "the noise depends on the cell: it is not additive")
    if constants.motion.source == "estimate":
        return Assumption(name, None, "L_f is the steepest slope that was seen, no bound")
    return Assumption(name, True, f"L_f = {constants.motion.value:.4g} ({constants.motion.source})")


def _reward(run: RunData, constants: Constants) -> Assumption:
    name, problem = "LipschitzPolicyAndReward", run.rewarded
    if run.setup.problem.hides_reward:
        return Assumption(
            name,
            False,
            "the reward was learned as well, to which the paper only expects its results to extend",
        )
    if (
        problem is not None
        and constants.reward.source == "estimate"
        and unbounded_in_empty_cells(problem, problem.reward)
    ):
        return Assumption(
            name,
            False,
            "the reward's slope in mu grows without bound in empty cells, as that of -log mu "
            "does: it is Lipschitz only where mu stays away from zero",
        )
    seen = [n for n in ("policy", "reward") if getattr(constants, n).source == "estimate"]
    if seen:
        return Assumption(
            name, None, f"{', '.join(SYMBOLS[n] for n in seen)} estimated at the run's points"
        )
    return Assumption(name, True, "L_pi and L_r are given or bounded")


def _calibrated(evidence: Sequence[EpisodeEvidence]) -> Assumption:
    name = "WellCalibratedModel"
    inside = [each.inside for each in evidence if each.inside is not None]
    if not inside:
        return Assumption(name, None, "the true motion is not known here")
    worst = min(inside)
    if worst >= WHOLE:
        return Assumption(name, True, "the band held the true motion of every move of every flow")
    at = 1 + [each.inside for each in evidence].index(worst)
    needed = evidence[at - 1].needed
    return Assumption(
        name,
        False,
        f"in episode {at} the band held the true motion of {worst:.1%} of the moves only; "
        f"beta = {evidence[at - 1].beta:.3g}, and {needed:.3g} was needed",
    )


def _same_world(run: RunData) -> Assumption:
    config = run.store.config
    name = "the imagined motion lies in the band, with the true noise"
    if config.estimate_noise:
        return Assumption(name, False, "plans imagined the noise that the model estimated")
    if config.optimism == "thompson":
        return Assumption(name, False, "a motion that is drawn from the model may leave the band")
    return Assumption(
        name, True, "plans imagined motions inside the band, with the problem's noise"
    )


def _optimism(
    run: RunData, evidence: Sequence[EpisodeEvidence], reference: float | None
) -> Assumption:
    config = run.store.config
    name = "plans are optimistic and solved exactly"
    if config.optimism not in ("hallucinated", "shared"):
        return Assumption(name, False, f"the plans' optimism was {config.optimism!r}")
    below = [
        number
        for number, each in enumerate(evidence, start=1)
        if reference is not None and each.optimistic is not None and each.optimistic < reference
    ]
    if below:
        return Assumption(
            name,
            False,
            f"{len(below)} of {len(evidence)} plans expected less than the reference earns, first "
            f"that of episode {below[0]}",
        )
    if config.scale < 1:
        return Assumption(
            name,
            False,
            f"plans used {config.scale:.3g} of the band, which may leave the true motion out",
        )
    return Assumption(name, None, "that a plan is a global optimum cannot be seen")


def _rkhs(run: RunData, prior: Prior | None) -> Assumption:
    name, family = "RKHS and Kernel", run.setup.learner.family
    if not isinstance(family, GaussianProcess):
        sentence = (
            "an ensemble is no Gaussian process, so that theorem GPRegretBound does not apply to "
            "it; distances, regret and the doubts along flows mean what they say"
        )
        if prior is not None:
            sentence += (
                ", and the information is that which the data would give a Gaussian process with "
                "a default kernel"
            )
        return Assumption(name, False, sentence)
    if family.hyperparameters != "fixed":
        return Assumption(
            name,
            False,
            "the kernel was fitted to the data anew in each episode, while the theory has one "
            "kernel; the information is that under the last fit",
        )
    if prior is None or prior.slopes is None:
        return Assumption(name, None, "the kernel's Lipschitz constant is not known")
    return Assumption(name, None, "that the motion lies in the kernel's space cannot be seen")
