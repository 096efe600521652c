"""The constants of a run: given, bounded by formulas, or estimated at the run's own points."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from .._types import Action, State
from ..learning.imagine import MeanMotion
from ..models.base import AbstractModel
from ..models.gp import GaussianProcess, TheoryBeta
from ..models.posterior import ExactPosterior, InducingPosterior
from ..problem import Problem
from ..space.measure import MeanField
from .constants import Constant, Constants
from .evidence import EpisodeEvidence, RunData
from .kernel_slope import feature_slopes
from .prior import Prior, norm_estimate
from .slopes import Sites, sites_of, steepest
from .stretch import grid_stretch

NORM_POINTS = 200
"""Points at which the motion's norm is estimated."""


def constants_of(
    run: RunData, evidence: Sequence[EpisodeEvidence], prior: Prior | None, given: dict[str, Any]
) -> Constants:
    """The constants that hold for all episodes of a run, as far as it can be known.

    Args:
        run: The run.
        evidence: Its episodes.
        prior: The Gaussian process under which information is counted.
        given: What the user knows, by name or symbol.
    """
    problem = run.setup.problem
    sites = sites_of(run.data)
    norm = _norm(run, prior)
    found = Constants(
        motion=_motion(run, evidence[-1].model, sites),
        spread=_spread(problem, [each.model for each in evidence], sites),
        policy=_largest([each.policy for each in evidence]),
        reward=_reward(run, sites),
        stretch=grid_stretch(problem),
        norm=norm,
    ).override(given)
    known = found.norm is not None and found.norm.source == "given"
    if known and prior is not None and prior.own and found.motion.source == "estimate":
        found = replace(found, motion=_by_norm(problem, prior, found))
    return found


def of_episode(constants: Constants, episode: EpisodeEvidence) -> Constants:
    """The same for one episode: its lemmas need the constant of its own policy only."""
    if constants.policy.source == "given":
        return constants
    return replace(constants, policy=episode.policy)


def _by_norm(problem: Problem, prior: Prior, constants: Constants) -> Constant:
    r"""A motion whose scaled displacement has the norm B is $1 + m B L_d$-Lipschitz.

    m is the farthest move on any axis; $|g(z) - g(z')| \le B d_k(z, z')$ (Steinwart and
    Christmann, Corollary 4.36).
    """
    if prior.slope is None or constants.norm is None:
        return constants.motion
    value = 1 + max(problem.max_move) * constants.norm.value * prior.slope
    return Constant(value, "bound", "from B_f and the kernel")


def _motion(run: RunData, model: AbstractModel, sites: Sites) -> Constant:
    problem, motion = run.setup.problem, run.motion
    if motion is not None:
        value = steepest(problem, motion, sites, wrapped=True)
        return Constant(value, "estimate", "slopes of the simulator")
    mean = MeanMotion(model, problem.max_move)
    value = steepest(problem, mean, sites, wrapped=True)
    return Constant(value, "estimate", "slopes of the last model's mean")


def _spread(problem: Problem, models: Sequence[AbstractModel], sites: Sites) -> Constant:
    r"""Lemma sigmaLipschitz for Gaussian processes, slopes for others.

    The lemma is for one output. Of p outputs with one kernel the vector of standard deviations
    moves by at most $\sqrt{p} \, d_k$, a factor that the lemma's print lacks; here the outputs are
    scaled by the farthest moves, so that it is the length of these.
    """
    processes = [m for m in models if isinstance(m, ExactPosterior | InducingPosterior)]
    try:
        slopes = [
            max(feature_slopes(m.frame.features).metric_slopes(m.head.kernel).values())
            for m in processes
        ]
    except NotImplementedError:
        slopes = []
    if slopes and len(slopes) == len(models):
        value = float(np.linalg.norm(problem.max_move)) * max(slopes)
        return Constant(value, "bound", "from the kernel")

    def largest(model: AbstractModel) -> float:
        def spread(state: State, action: Action, mu: MeanField) -> jax.Array:
            return model.predict(state, action, mu).epistemic

        return steepest(problem, spread, sites)

    # The first, the middle and the last: each is compiled anew.
    some = {0, len(models) // 2, len(models) - 1}
    return Constant(max(largest(models[i]) for i in some), "estimate", "slopes of the models")


def _reward(run: RunData, sites: Sites) -> Constant:
    problem = run.rewarded
    if problem is None:
        return Constant(math.inf, "estimate", "the reward is hidden: give L_r")
    return Constant(steepest(problem, problem.reward, sites), "estimate", "slopes of the reward")


def _norm(run: RunData, prior: Prior | None) -> Constant | None:
    family, motion = run.setup.learner.family, run.motion
    if prior is None or not prior.own:
        return None
    if isinstance(family, GaussianProcess) and isinstance(family.beta, TheoryBeta):
        return Constant(family.beta.norm_bound, "given", "the model's own")
    if motion is None:
        return None
    rng = np.random.default_rng(0)
    rows = rng.choice(len(run.data), size=min(NORM_POINTS, len(run.data)), replace=False)
    value = norm_estimate(prior, motion, run.data.rows(rows))
    return Constant(value, "estimate", "of the simulator's motion at points of the run")


def _largest(constants: Sequence[Constant]) -> Constant:
    """The largest, an estimate if any of them is."""
    worst = max(constants, key=lambda each: each.value)
    estimate = next((each for each in constants if each.source == "estimate"), None)
    return worst if estimate is None else Constant(worst.value, "estimate", estimate.note)
