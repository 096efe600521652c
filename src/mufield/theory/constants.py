"""The constants of a run: given by the user, bounded by formulas, or estimated from its data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._types import Action, State
from ..learning.optimism import MeanMotion
from ..models.base import AbstractModel
from ..models.gp import GaussianProcess, TheoryBeta
from ..models.kernels import covariances
from ..models.posterior import Posterior
from ..problem import Problem
from ..space.measure import MeanField, mean_field_at
from ..space.move import GaussianNoise
from .bounds import Constant, Constants
from .kernel_metric import feature_slopes
from .lipschitz import Sites, sites_of, steepest
from .run import EpisodeEvidence, RunData
from .run_information import Prior


def constants_of(
    run: RunData,
    evidence: Sequence[EpisodeEvidence],
    prior: Prior | None,
    given: Mapping[str, Constant],
) -> Constants:
    """The constants that hold for all episodes of a run; what the user gave takes precedence."""
    problem = run.setup.problem
    sites = sites_of(run.data)
    found = Constants(
        motion=_motion(run, evidence[-1].model, sites),
        spread=_spread(problem, [each.model for each in evidence], sites),
        policy=_largest([each.policy for each in evidence]),
        reward=_reward(run, sites),
        stretch=grid_stretch(problem),
        norm=_norm(run, prior),
    )
    found = replace(found, **given)
    known = found.norm is not None and found.norm.source == "given"
    if prior is None or not prior.own or not known or found.motion.source != "estimate":
        return found
    return replace(found, motion=_motion_by_norm(problem, prior, found))


def of_episode(constants: Constants, episode: EpisodeEvidence) -> Constants:
    """The constants for one episode, whose lemmas need L_pi of its own policy only."""
    if constants.policy.source == "given":
        return constants
    return replace(constants, policy=episode.policy)


def grid_stretch(problem: Problem) -> Constant:
    """Kappa: by how much rounding to cells can increase the distance of two agents.

    The borders of the space bring agents nearer to each other. Walls inside it do not: of two
    agents that aim at almost the same point beside a wall's end, one may be stopped. No constant
    holds there, and what is returned is an estimate. The derivation is in docs/theory.md.
    """
    grid = problem.grid
    if not isinstance(problem.noise, GaussianNoise):
        note = "the noise depends on the cell, which the paper's additive noise does not"
        return Constant(math.sqrt(grid.dim), "estimate", note)
    worst = max(map(axis_stretch, problem.noise.std, grid.cell_size))
    value = worst * math.sqrt(grid.dim)
    if grid.walls.any():
        note = "walls inside the space tear near landings apart: no constant holds at their ends"
        return Constant(value, "estimate", note)
    return Constant(value, "bound", "" if value < math.inf else "there is no noise on some axis")


def axis_stretch(noise_std: float, cell_size: float) -> float:
    r"""$\Delta \sum_k \varphi_\sigma(k \Delta)$: kappa on one axis; infinite without noise."""
    if noise_std == 0:
        return math.inf
    step = cell_size / noise_std
    if step < 0.5:  # the sum is one up to 1e-34
        return 1.0
    # Standard deviations beyond which a normal density is zero.
    widest = 40.0
    edges = step * np.arange(-math.ceil(widest / step), math.ceil(widest / step) + 1)
    return float(step * np.sum(np.exp(-0.5 * edges**2)) / math.sqrt(2 * math.pi))


def _motion(run: RunData, model: AbstractModel, sites: Sites) -> Constant:
    problem, motion, note = run.setup.problem, run.motion, "slopes of the simulator"
    if motion is None:
        motion, note = MeanMotion(model, problem.max_move), "slopes of the last model's mean"
    return Constant(steepest(problem, motion, sites, wrapped=True), "estimate", note)


def _motion_by_norm(problem: Problem, prior: Prior, constants: Constants) -> Constant:
    r"""$L_f \le 1 + m B_f L_d$, with the farthest move m (Steinwart and Christmann, Cor. 4.36)."""
    if prior.slopes is None or constants.norm is None:
        return constants.motion
    slope = max(prior.slopes.values())
    value = 1 + max(problem.max_move) * constants.norm.value * slope
    return Constant(value, "bound", "from B_f and the kernel")


def _spread(problem: Problem, models: Sequence[AbstractModel], sites: Sites) -> Constant:
    r"""L_sigma: lemma sigmaLipschitz for Gaussian processes, observed slopes for other models.

    The lemma is for one output; p outputs with one kernel need a factor of $\sqrt{p}$. As outputs
    are in units of the farthest move, the norm of ``max_move`` takes its place.
    """
    processes = [m for m in models if isinstance(m, Posterior)]
    try:
        slopes = [
            max(feature_slopes(m.features).metric_slopes(m.process.kernel).values())
            for m in processes
        ]
    except NotImplementedError:
        slopes = []
    if slopes and len(slopes) == len(models):
        value = float(np.linalg.norm(problem.max_move)) * max(slopes)
        return Constant(value, "bound", "from the kernel")

    first_middle_last = {0, len(models) // 2, len(models) - 1}
    value = max(steepest(problem, _Spread(models[i]), sites) for i in first_middle_last)
    return Constant(value, "estimate", "slopes of the models")


class _Spread(eqx.Module):
    """A model's standard deviations; a module, so that models of one kind are compiled once."""

    model: AbstractModel

    def __call__(self, state: State, action: Action, mu: MeanField) -> Array:
        return self.model.predict(state, action, mu).epistemic


def _reward(run: RunData, sites: Sites) -> Constant:
    problem = run.rewarded
    if problem is None:
        return Constant(math.inf, "estimate", "the reward is hidden: give L_r")
    return Constant(steepest(problem, problem.reward, sites), "estimate", "slopes of the reward")


def _largest(constants: Sequence[Constant]) -> Constant:
    """The largest constant; it counts as an estimate if any of them is one."""
    worst = max(constants, key=lambda each: each.value)
    estimate = next((each for each in constants if each.source == "estimate"), None)
    return worst if estimate is None else Constant(worst.value, "estimate", estimate.note)


def _norm(run: RunData, prior: Prior | None) -> Constant | None:
    r"""$B_f$: the model's own setting, or a lower bound from the simulator's motion g.

    For any points and any epsilon, $g^\top (K + \epsilon I)^{-1} g \le \|g\|_k^2$.
    """
    family, motion, problem = run.setup.learner.family, run.motion, run.setup.problem
    if prior is None or not prior.own:
        return None
    if isinstance(family, GaussianProcess) and isinstance(family.beta, TheoryBeta):
        return Constant(family.beta.norm_bound, "given", "the model's own")
    if motion is None:
        return None

    def moved(state: Array, action: Array, mass: Array) -> Array:
        mu = mean_field_at(problem.grid, mass, state)
        return problem.grid.displacement(state, motion(state, action, mu))

    rng = np.random.default_rng(0)
    # Transitions from which the motion's norm is estimated.
    norm_points = 200
    size = min(norm_points, len(run.data))
    data = run.data.rows(rng.choice(len(run.data), size=size, replace=False))
    places = (data.states, data.actions, data.mass[data.moment])
    values = jax.vmap(moved)(*(jnp.asarray(each, problem.initial.dtype) for each in places))
    g = np.asarray(values, dtype=float) / np.asarray(problem.max_move)
    inputs = prior.family.rows(data).inputs
    covariance = covariances(prior.kernel, inputs, inputs)
    # Epsilon in the estimate of the norm, as a share of the prior variance.
    jitter = 1e-6
    epsilon = jitter * float(np.mean(np.diagonal(covariance)))
    solved = np.linalg.solve(covariance + epsilon * np.eye(size), g)
    value = float(np.sqrt(max(0.0, np.sum(g * solved))))
    return Constant(value, "estimate", "of the simulator's motion at points of the run")
