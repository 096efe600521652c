"""Which of the theory's assumptions a run keeps, in plain sentences."""

from dataclasses import dataclass

from ..models.gp import GaussianProcess
from ..space.move import GaussianNoise
from .bounds import SYMBOLS
from .lipschitz import unbounded_in_empty_cells
from .verdicts import Findings


@dataclass(frozen=True)
class Assumption:
    """One of the theory's assumptions, and in a sentence why it holds, fails, or cannot be checked.

    ``holds`` is None if a run cannot show it.
    """

    name: str
    holds: bool | None
    sentence: str


def assumptions_of(found: Findings) -> tuple[Assumption, ...]:
    """Checks each assumption as far as a run can show it."""
    checks = {
        "LipschitzDynamics": _dynamics,
        "LipschitzPolicyAndReward": _policy_and_reward,
        "WellCalibratedModel": _calibrated,
        "the imagined motion lies in the band, with the true noise": _imagined,
        "plans are optimistic and solved exactly": _optimistic,
        "RKHS and Kernel": _kernel,
    }
    return tuple(Assumption(name, *check(found)) for name, check in checks.items())


def _dynamics(found: Findings) -> tuple[bool | None, str]:
    problem, motion = found.run.setup.problem, found.constants.motion
    if problem.grid.walls.any():
        return False, "walls inside the space make the motion discontinuous at their ends"
    if not isinstance(problem.noise, GaussianNoise):
        return False, "the noise depends on the cell: it is not additive"
    if motion.source == "estimate":
        return None, "L_f is the steepest slope that was seen, no bound"
    return True, f"L_f = {motion.value:.4g} ({motion.source})"


def _policy_and_reward(found: Findings) -> tuple[bool | None, str]:
    problem, constants = found.run.rewarded, found.constants
    if found.run.setup.problem.hides_reward:
        return (
            False,
            "the reward was learned as well, to which the paper only expects its results to extend",
        )
    guessed = constants.reward.source == "estimate"
    if guessed and problem is not None and unbounded_in_empty_cells(problem, problem.reward):
        return (
            False,
            "the reward's slope in mu grows without bound in empty cells, as that of -log mu "
            "does: it is Lipschitz only where mu stays away from zero",
        )
    seen = [SYMBOLS[name] for name in constants.estimated if name in ("policy", "reward")]
    if seen:
        return None, f"{', '.join(seen)} estimated at the run's points"
    return True, "L_pi and L_r are given or bounded"


def _calibrated(found: Findings) -> tuple[bool | None, str]:
    inside = [each.inside for each in found.evidence if each.inside is not None]
    if not inside:
        return None, "the true motion is not known here"
    worst = min(inside)
    # Share of the population's moves that counts as all of them.
    whole = 1 - 1e-6
    if worst >= whole:
        return True, "the band held the true motion of every move of every flow"
    at = inside.index(worst)
    return (
        False,
        f"in episode {at + 1} the band held the true motion of {worst:.1%} of the moves only; "
        f"beta = {found.evidence[at].beta:.3g}, and {found.evidence[at].needed:.3g} was needed",
    )


def _imagined(found: Findings) -> tuple[bool | None, str]:
    config = found.run.store.config
    if config.estimate_noise:
        return False, "plans imagined the noise that the model estimated"
    if config.optimism == "thompson":
        return False, "a motion that is drawn from the model may leave the band"
    return True, "plans imagined motions inside the band, with the problem's noise"


def _optimistic(found: Findings) -> tuple[bool | None, str]:
    config, reference = found.run.store.config, found.reference
    if config.optimism not in ("hallucinated", "shared"):
        return False, f"the plans' optimism was {config.optimism!r}"
    below = [
        number
        for number, each in enumerate(found.evidence, start=1)
        if reference is not None and each.optimistic is not None and each.optimistic < reference
    ]
    if below:
        return (
            False,
            f"{len(below)} of {len(found.evidence)} plans expected less than the reference earns, "
            f"first that of episode {below[0]}",
        )
    if config.scale is None or config.scale < 1:
        used = "a share" if config.scale is None else f"{config.scale:.3g}"
        return False, f"plans used {used} of the band, which may leave the true motion out"
    return None, "that a plan is a global optimum cannot be seen"


def _kernel(found: Findings) -> tuple[bool | None, str]:
    family = found.run.setup.learner.family
    if not isinstance(family, GaussianProcess):
        sentence = (
            "an ensemble is no Gaussian process, so that theorem GPRegretBound does not apply to "
            "it; distances, regret and the deviations along flows mean what they say"
        )
        if found.prior is not None:
            sentence += (
                ", and the information is that which the data would give a Gaussian process with "
                "a default kernel"
            )
        return False, sentence
    if family.fit_kernel:
        return (
            False,
            "the kernel was fitted to the data anew in each episode, while the theory has one "
            "kernel; the information is that under the last fit",
        )
    if found.prior is None or found.prior.slopes is None:
        return None, "the kernel's Lipschitz constant is not known"
    return None, "that the motion lies in the kernel's space cannot be seen"
