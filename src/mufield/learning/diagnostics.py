"""Computes the figures of an episode: what was earned, and whether plan and model were right."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._arrays import Action, Mass, Masses, Scalar, State
from ..episode import Episode
from ..flow.motions import dependence
from ..models.base import AbstractModel, Residuals, predict_rows
from ..models.data import Transitions
from ..planning.planner import Plan
from ..policies.base import ActionLaw, Profile
from ..problem import Problem
from ..space.measure import MeanField, at_all_cells, entropy, wasserstein
from .metrics import COVERAGE_LEVEL, Earned, EpisodeMetrics, began_elsewhere, best_episode
from .state import LearnerState

if TYPE_CHECKING:
    from ..flow.paths import Bands


class GreedyRun(NamedTuple):
    """What a plan without optimism earned on the system, and what the models expected of it."""

    value: float
    expected: float


def measure(
    state: LearnerState,
    plan: Plan,
    episode: Episode,
    *,
    earlier: Sequence[Earned] = (),
    reference: float | None = None,
    greedy: GreedyRun | None = None,
    notes: Sequence[str] = (),
) -> EpisodeMetrics:
    """Computes the metrics of an episode.

    ``state`` is that before the episode, and ``earlier`` what the episodes before it earned. The
    metrics' notes begin with ``notes``.
    """
    problem, fresh = state.data.problem, Transitions.of(state.data.problem, [episode])
    earned = Earned(float(episode.value), _elsewhere(problem, plan, episode))
    every = [*earlier, earned]
    spread = w1_end = None
    # The random policy was not planned; and with shocks, no plan is of the path that came.
    if np.isfinite(plan.mass).all() and problem.shocks is None:
        spread = float(_mean_spread(state.model, plan.profile, plan.mass, problem))
        ends = np.asarray(plan.mass)[-1], np.asarray(episode.mass)[-1]
        imagined, realised = (end / end.sum() for end in ends)  # some agents may be under way
        w1_end = wasserstein(problem.grid, imagined, realised)
    coverage, warning = _coverage(state.model, fresh, "moves")
    reward_warning = ""
    if state.reward_model is not None and len(state.data):  # before, the scale is not known
        _, reward_warning = _coverage(state.reward_model, fresh.of_rewards(), "rewards")
    margins = _margins(problem, episode)
    known = [margin for each in margins.values() for margin in each if margin is not None]
    finding, before = state.model.finding or None, earlier[-1].finding if earlier else None
    news = ""
    if finding != before:
        what = f"depends on {finding}" if finding else f"no longer seems to depend on {before}"
        news = f"by the data so far, the motion {what}"
    unseen = _missing(problem, episode)
    found = (news, plan.note, unseen, warning, reward_warning, _violations(margins))
    return EpisodeMetrics(
        episode=state.episode + 1,
        value=earned.value,
        optimistic=_number(plan.value),
        beta=float(state.model.beta),
        spread=spread,
        control=float(plan.control),
        w1_end=w1_end,
        coverage=coverage,
        transitions=len(state.data),
        best=every[best_episode(every)].value,
        reference=reference,
        notes=(*notes, *state.notes, *(note for note in found if note)),
        greedy=None if greedy is None else greedy.value,
        greedy_expected=None if greedy is None else _number(greedy.expected),
        margin=min(known, default=None),
        assured=None if plan.margins is None else _number(np.min(plan.margins)),
        margins=margins or None,
        elsewhere=earned.elsewhere,
        served=None if problem.trips is None else problem.trips.served(episode.mass),
        finding=finding,
        paths=None if plan.bands is None else _over_paths(plan.bands, episode),
    )


def _over_paths(bands: "Bands", episode: Episode) -> dict[str, Any]:
    """What was expected over the paths of the shocks, and what came."""
    realised = {"rewards": episode.rewards, "entropy": entropy(episode.mass)}
    both = vars(bands) | {"realised": realised}
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype=float).tolist(), both)


def _elsewhere(problem: Problem, plan: Plan, episode: Episode) -> float | None:
    seen = len(episode.states) if episode.present is None else int(episode.present[:, 0].sum())
    masses = (problem.initial, plan.mass, episode.mass)
    initial, planned, observed = (np.asarray(mass, dtype=float) for mass in masses)
    return began_elsewhere(initial, planned[0], observed[0], max(seen, 1))


def _margins(problem: Problem, episode: Episode) -> dict[str, list[float | None]]:
    if problem.constraints is None:
        return {}
    under = problem if episode.shocks is None else problem.under_shock(episode.shocks)
    found = np.asarray(_worst(under, episode.mass), dtype=float).T
    rows = zip(problem.constraints.names, found, strict=True)
    return {name: [_number(margin) for margin in row] for name, row in rows}


@eqx.filter_jit
def _worst(problem: Problem, mass: Masses) -> Array:
    assert problem.constraints is not None
    return problem.constraints.worst(problem.margins(mass))


def _violations(margins: dict[str, list[float | None]]) -> str:
    """A note on constraints that an episode violated by more than 1% of them."""
    notes = []
    for name, row in margins.items():
        known = [(margin, step) for step, margin in enumerate(row, start=1) if margin is not None]
        margin, step = min(known, default=(0.0, 0))
        if margin < -0.01:
            notes.append(f"{name!r} was violated by {-margin:.1%} of it, after move {step}")
    return "; ".join(notes)


@eqx.filter_jit
def _mean_spread(model: AbstractModel, profile: Profile, mass: Masses, problem: Problem) -> Scalar:
    """Mean of sigma(z) / max_move along a plan, over the steps that belong to the problem."""
    grid, far = problem.grid, jnp.asarray(problem.max_move, dtype=mass.dtype)

    def spread(state: State, action: Action, mu: MeanField) -> Scalar:
        return jnp.mean(model.predict(state, action, mu).epistemic / far)

    def at_step(inputs: tuple[Any, Mass, Array]) -> Scalar:
        part, now, step = inputs
        law = profile.join(part).at_cells(grid, now, step)
        if not problem.on_nodes:  # there the mean of actions is no action
            law = ActionLaw.certain(law.mean())
        found = at_all_cells(grid, now, spread, law.actions, step)
        return jnp.vdot(now[:, None] * law.weights, found)

    found = jax.lax.map(at_step, (profile.per_step, mass[:-1], problem.steps))
    return jnp.mean(found, where=problem.begun)


def _coverage(model: AbstractModel, fresh: Transitions, name: str) -> tuple[float | None, str]:
    """Share of fresh data inside the model's interval, and advice if it is too low to ignore.

    One successor says nothing of an interval of probabilities: on nodes there is no such share.
    """
    if fresh.problem.on_nodes and not fresh.of_reward:
        return None, ""
    found = predict_rows(model, fresh)
    count = int(found.observed.sum())
    if count == 0:
        return None, ""
    inside = found.quantiles(band_widening(model)) <= COVERAGE_LEVEL
    hits = int((inside & found.observed).sum())
    if not too_narrow(hits, count):
        return hits / count, ""
    return hits / count, (
        f"the confidence band is too narrow: {hits:,} of {count:,} {name} lie inside the "
        f"{COVERAGE_LEVEL:.0%} interval; {advice(model, fresh)}"
    )


def advice(model: AbstractModel, data: Transitions) -> str:
    """What to change, in words, if the band was too narrow for some moves or rewards.

    If the errors are as wide where the model is sure, and follow neither place nor action, it is
    the noise; otherwise the model is too sure, perhaps because it does not see what matters.
    """
    held, widening = predict_rows(model, data), band_widening(model)
    sure = held.observed & (widening * held.epistemic <= 0.5 * held.aleatoric)
    hits = int((sure & (held.quantiles(widening) <= COVERAGE_LEVEL)).sum())
    if sure.sum() >= 30 and too_narrow(hits, int(sure.sum())) and not _systematic(held, data):
        excess = np.where(sure, held.error**2 - held.epistemic**2, 0.0).sum(axis=0)
        fits = np.sqrt(np.maximum(excess / np.maximum(sure.sum(axis=0), 1), 0.0))
        given = held.aleatoric.mean(axis=0)
        both = (given, np.maximum(fits, given))
        now, better = (", ".join(f"{each:.3g}" for each in noise) for noise in both)
        setting = "Problem(reward_noise=...)" if data.of_reward else "Problem(noise=...)"
        return (
            f"the errors are as wide where the model is sure: the noise is {now}, but {better} "
            f"would fit; correct {setting}, or set the model's learn_noise=True"
        )
    words = (
        "a band ten times as wide would not hold them: the model cannot follow the motion; "
        "choose another, such as GaussianProcess() with all defaults"
    )
    for factor in widening * np.geomspace(1.0, 10.0, 93):
        inside = held.quantiles(float(factor))[held.observed] <= COVERAGE_LEVEL
        if inside.mean() >= COVERAGE_LEVEL:
            words = f"set the model's beta={2 * float(factor):.2g}, which would have held them"
            break
    mean = lambda state, action, mu: model.predict(state, action, mu).mean  # noqa: E731
    seen = dependence(data.problem, mean)
    for sees, what, setting in (
        (seen.mu, "crowd", "mu=Here() (in a configuration, mu=local)"),
        (seen.step, "time", f"mu=Clock({data.problem.horizon})"),
    ):
        if not sees:
            words += f"; the model does not see the {what}: if that matters, set its {setting}"
    return words


def _systematic(held: Residuals, data: Transitions) -> bool:
    """Whether place and action explain more than a tenth of the errors on an axis."""
    places, actions = (
        np.concatenate([np.ones((len(data), 1)), each - each.mean(axis=0)], axis=1)
        for each in (data.states, data.actions)
    )
    inputs = (places[:, :, None] * actions[:, None]).reshape(len(data), -1)
    for error, seen in zip(held.error.T, held.observed.T, strict=True):
        left = error[seen] - inputs[seen] @ np.linalg.lstsq(inputs[seen], error[seen])[0]
        if np.sum(left**2) < (0.9 - inputs.shape[1] / len(data)) * np.sum(error[seen] ** 2):
            return True
    return False


def band_widening(model: AbstractModel) -> float:
    """The factor on the epistemic deviation: a beta of 2 stands for two deviations, for 95%."""
    return max(1.0, float(model.beta) / 2.0)


def too_narrow(inside: int, count: int) -> bool:
    """Whether a coverage is too low to be chance, and low enough to matter.

    Half as many misses again as expected matter: errors are then a tenth wider than the band says.
    """
    from scipy.special import bdtr  # slow to import

    matters = count - inside > 1.5 * (1 - COVERAGE_LEVEL) * count
    return bool(matters and bdtr(inside, count, COVERAGE_LEVEL) < 1e-3)


def _missing(problem: Problem, episode: Episode) -> str:
    """A note on moves of tracked agents that were not seen; under way they make none."""
    lasting = problem.trips is not None and problem.trips.stages > 0
    if episode.present is None or np.all(episode.present) or lasting:
        return ""
    present = np.asarray(episode.present)
    return (
        f"{int((~present).sum()):,} of {present.size:,} moves of tracked agents were not seen, by "
        f"{int((~present).any(axis=1).sum()):,} of {len(present):,} agents"
    )


def _number(value: Any) -> float | None:
    number = float(np.asarray(value))
    return number if math.isfinite(number) else None
