"""The paper's bounds beside what a run realised, and which of its assumptions the run keeps."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mufield.models.gp import GaussianProcess
from mufield.problem import Problem
from mufield.space.measure import at_all_cells, distances
from mufield.space.move import GaussianNoise

from . import bounds
from .bounds import Constants, Log, log, logs
from .information import information_of
from .run import Evidence, RunData


@dataclass(frozen=True)
class Verdict:
    """A bound beside what was realised.

    Attributes:
        name: Label of the bound in the paper.
        quantity: What it bounds.
        realised: Realised value; NaN if unknown.
        bound: Natural logarithm of the bound.
        trivial: A value that the quantity cannot exceed anyway.
    """

    name: str
    quantity: str
    realised: float
    bound: Log
    trivial: float

    @property
    def verdict(self) -> str:
        """Whether it holds, and if so, whether it says more than the trivial bound."""
        if math.isnan(self.realised) or math.isnan(self.bound):
            return "not known"
        if log(self.realised) > self.bound + 1e-6:  # rounding is forgiven
            return "does not hold"
        return "vacuous" if self.bound >= log(self.trivial) else "holds"


@dataclass(frozen=True)
class Assumption:
    """One of the theory's assumptions; ``holds`` is None if a run cannot show it."""

    name: str
    holds: bool | None
    why: str


@dataclass(frozen=True, eq=False)
class TheoryReport:
    """The whole report; ``growth`` is L-bar, ``rows`` has one entry for each episode."""

    run: str
    constants: Constants
    growth: float
    verdicts: tuple[Verdict, ...]
    assumptions: tuple[Assumption, ...]
    rows: tuple[dict[str, float], ...]

    def document(self) -> dict[str, Any]:
        """The report for JSON; bounds are logarithms to the base of ten."""
        document = asdict(self)
        document["episodes"] = document.pop("rows")
        for words, each in zip(document["verdicts"], self.verdicts, strict=True):
            words["log10_bound"] = words.pop("bound") / math.log(10)
            words["verdict"] = each.verdict
        plain: dict[str, Any] = _finite(document)
        return plain


def make_report(
    run: RunData,
    evidence: Sequence[Evidence],
    *,
    given: Mapping[str, Any] | None = None,
    reference: float | None = None,
) -> TheoryReport:
    """Computes the report on a run.

    Args:
        run: The run.
        evidence: All of `episodes_of`, which takes most of the time.
        given: Constants that the user knows, by their symbols.
        reference: J of the best policy; by default the run's own reference.
    """
    problem, config, stretch = run.setup.problem, run.store.config, math.inf
    if isinstance(problem.noise, GaussianNoise) and not problem.grid.walls.any():
        stretch = bounds.grid_stretch(problem.noise.std, problem.grid.cell_size)
    constants = Constants.given(given or {}, stretch)
    reference = config.reference if reference is None else reference
    return TheoryReport(
        run=f"{run.store.directory}: {config.environment}, {config.model}",
        constants=constants,
        growth=constants.growth(_beta(run, evidence)),
        verdicts=tuple(_verdicts(run, evidence, constants, reference)),
        assumptions=tuple(_assumptions(run, evidence, reference)),
        rows=tuple(
            {
                "episode": number,
                "value": each.value,
                "regret": math.nan if reference is None else reference - each.value,
                "optimism": each.optimistic - each.value,
                "w1_end": float(each.distances[-1]),
                "complexity": each.squared,
                "beta": float(each.model.beta),
            }
            for number, each in enumerate(evidence, start=1)
        ),
    )


def _beta(run: RunData, evidence: Sequence[Evidence]) -> float:
    """Scale of a band that holds all imagined motions, and the true one if the model's does."""
    config = run.store.config
    wider = (config.scale or 1.0) if config.optimism in ("hallucinated", "shared") else 1.0
    return max(1.0, wider) * max(float(each.model.beta) for each in evidence)


def _verdicts(
    run: RunData, evidence: Sequence[Evidence], constants: Constants, reference: float | None
) -> Iterator[Verdict]:
    """All bounds, in the order of the proofs; those of one episode are for the last."""
    problem, last, beta = run.setup.problem, evidence[-1], _beta(run, evidence)
    paid, count = problem.paid_steps, len(evidence)
    best = math.nan if reference is None else reference
    flow = bounds.flow_bound(constants, beta, last.deviations)
    grid, lemma = problem.grid, "lemma MFFlowW1Bound"
    diameter = float(distances(grid, grid.centres).max())
    for h, when in {1: "after one step", len(flow) - 1: "at the end"}.items():
        what, far = f"W1 of imagined and realised flow {when}", float(last.distances[h])
        yield Verdict(lemma, what, far, float(flow[h]), diameter)
    most = math.inf if problem.hides_reward else value_range(problem, last.mass)
    gap = last.optimistic - last.value
    bound = bounds.gap_bound(constants, logs(last.distances[:paid]))
    yield Verdict("lemma regretOptBound", "J expected minus realised", gap, bound, most)
    lemma, regret = "lemma episodeRegretSquareBound", best - last.value
    bound = bounds.episode_bound(constants, beta, last.deviations, paid)
    yield Verdict(lemma, "regret of the last episode", regret, bound, most)
    complexities = {"theorem main": log(sum(each.squared for each in evidence))}
    if (info := information_of(run)) is not None:
        complexities["theorem GPRegretBound"] = info.factor + log(info.capacity)
    regret = sum(best - each.value for each in evidence)
    for name, complexity in complexities.items():
        bound = bounds.regret_bound(constants, beta, complexity, count, paid)
        yield Verdict(name, f"regret of {count} episodes", regret, bound, count * most)
    if info is not None:
        name, bound = "eq. ChodhuryOnlineLemma11Partial", log(info.complexity_bound)
        yield Verdict(name, "complexity of the data", info.complexity, bound, info.prior_complexity)
        name, bound = "definition MaximumInformationGain", log(info.capacity)
        yield Verdict(name, "information of the data", info.gathered, bound, math.inf)


def _assumptions(
    run: RunData, evidence: Sequence[Evidence], reference: float | None
) -> Iterator[Assumption]:
    """Each assumption, as far as a run can show whether it holds."""
    problem, config, family = run.setup.problem, run.store.config, run.setup.learner.family
    broken = ""
    if problem.grid.walls.any():
        broken = "walls inside the space make the motion discontinuous at their ends"
    elif problem.on_nodes:
        broken = "nodes have no distances, and chance is no noise that is added to a motion"
    elif not isinstance(problem.noise, GaussianNoise):
        broken = "the noise depends on the cell: it is not additive"
    yield Assumption("LipschitzDynamics", False if broken else None, broken or "give L_f")
    hidden = problem.hides_reward
    why = "give L_pi and L_r; a reward with -log mu has none where mu may vanish"
    why = "the reward was learned, too, which the paper's proofs do not cover" if hidden else why
    yield Assumption("LipschitzPolicyAndReward", False if hidden else None, why)
    inside = [each.inside for each in evidence if each.inside is not None]
    worst = min(inside, default=0.0)
    why = f"the band held the true motion of {worst:.1%} of the moves or more in every episode"
    held = worst >= 1 - 1e-6 if inside else None
    yield Assumption("WellCalibratedModel", held, why if inside else "the true motion is unknown")
    drawn = config.optimism == "thompson"
    why = "a motion that is drawn may leave it" if drawn else "plans imagined motions inside it"
    yield Assumption("the imagined motion lies in the band", not drawn, why)
    low = [reference is not None and each.optimistic < reference for each in evidence]
    why, exact = "that a plan is a global optimum cannot be seen", None
    if config.optimism not in ("hallucinated", "shared"):
        why, exact = f"the plans' optimism was {config.optimism!r}", False
    elif any(low):
        why, exact = f"{sum(low)} plans expected less than the reference earns", False
    elif config.scale is None or config.scale < 1:
        why, exact = "plans used a share of the band, which may leave the true motion out", False
    yield Assumption("plans are optimistic and solved exactly", exact, why)
    why, in_space = "that the motion lies in the kernel's space cannot be seen", None
    if not isinstance(family, GaussianProcess):
        why, in_space = "this model is no Gaussian process: GPRegretBound does not apply", False
    elif family.fit_kernel:
        why, in_space = "the kernel was fitted anew in each episode; the theory has one", False
    yield Assumption("RKHS and Kernel", in_space, why)


def value_range(problem: Problem, masses: Float[np.ndarray, "moments cells"]) -> float:
    """Estimates the greatest possible regret of an episode.

    It is the greatest minus the least integrated reward, times the number of paid steps, among
    point masses, the uniform distribution and ``masses``, with actions spread over the box.
    """
    n, grid, dtype = problem.grid.n_cells, problem.grid, problem.initial.dtype
    tried = jnp.asarray(np.concatenate([np.eye(n), np.full((1, n), 1.0 / n), masses]), dtype)
    moves = problem.actions.points(3).astype(dtype)
    everywhere = jnp.broadcast_to(moves, (n, *moves.shape))

    def extremes(mass: Array) -> Array:
        rewards = at_all_cells(grid, mass, problem.reward, everywhere)
        return jnp.stack([mass @ rewards.min(axis=1), mass @ rewards.max(axis=1)])

    low, high = eqx.filter_jit(jax.lax.map)(extremes, tried).T
    return float(high.max() - low.min()) * problem.paid_steps


def _finite(value: Any) -> Any:
    """Replaces NaN and infinity, which JSON cannot hold, by None."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
