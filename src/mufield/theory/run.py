"""What a run shows of each episode: the model's deviations, distances, whether its band held.

The models are fitted again, as when a run is resumed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _types
from ..errors import UserError
from ..io.policies import load_policy
from ..learning.state import LearnerState
from ..models.base import AbstractModel
from ..models.calibration import predict_rows
from ..models.data import Transitions
from ..policies.base import ActionLaw, Profile
from ..problem import Motion, Problem
from ..runs.build import Setup
from ..runs.files import RunFiles
from ..runs.told import to_episode, told
from ..space.measure import MeanField, at_all_cells
from ..space.transport import wasserstein
from ..systems import SimulatedSystem
from .bounds import Constant
from .lipschitz import policy_slope


@dataclass(frozen=True, eq=False)
class RunData:
    """A run as it was read.

    ``ends`` are the numbers of transitions after each episode, ``known`` those that each plan knew.
    Transitions of logs count with the episode that they came before.
    """

    store: RunFiles
    setup: Setup
    data: Transitions
    ends: tuple[int, ...]
    known: tuple[int, ...]

    @classmethod
    def read(cls, store: RunFiles, setup: Setup) -> "RunData":
        """Reads the data; raises if there is none."""
        if not store.episodes:
            raise UserError(f"{store.directory} has no episode yet, so there is nothing to bound")
        return cls(store, setup, *told(store, setup.problem))

    @property
    def motion(self) -> Motion | None:
        """The true motion, where a simulator knows it: a report may look, a learner may not."""
        system = self.setup.system
        return system.reveal()[1] if isinstance(system, SimulatedSystem) else None

    @property
    def rewarded(self) -> Problem | None:
        """The problem with its true reward; None if that is hidden and no simulator knows it."""
        problem, system = self.setup.problem, self.setup.system
        if not problem.hides_reward:
            return problem
        return system.reveal()[0].problem if isinstance(system, SimulatedSystem) else None

    def state_after(self, episodes: int) -> LearnerState:
        """The learner's state after a number of episodes; its planner's memory is left out."""
        ends = self.ends[:episodes]
        data = self.data.first(self.known[episodes])
        key = jax.random.key(self.store.config.seed)
        return self.setup.learner.restore(key, data, ends, None, None)


@dataclass(frozen=True, eq=False)
class EpisodeEvidence:
    r"""What the bounds need to know of one episode.

    Attributes:
        optimistic: J that the plan expected, if there was a plan.
        beta: Scale of the band of the model before the episode, $\beta_{t-1}$.
        deviations: $\int \|\sigma_{t-1}\| d\mu_{t,h}$ for each step.
        squared: $\sum_h \int \|\sigma_{t-1}\|^2 d\mu_{t,h}$, the expectation of ``observed``.
        observed: $\sum_h \|\sigma_{t-1}(z_{t,h})\|^2$, averaged over the tracked agents, without
            axes that a wall censored.
        distances: $W_1(\tilde\mu_{t,h}, \mu_{t,h})$ for h = 0, ..., H, if there was a plan.
        policy: Lipschitz constant of the policy that was run.
        inside: Share of the population's moves whose true motion lies in the band; None if the
            true motion is not known.
        needed: Least beta with which the band would hold the true motion of all moves.
        model: The model before the episode.
        mass: The realised flow of distributions.
    """

    value: float
    optimistic: float | None
    beta: float
    deviations: Float[np.ndarray, "steps"]
    squared: float
    observed: float
    distances: Float[np.ndarray, "moments"] | None
    policy: Constant
    inside: float | None
    needed: float | None
    model: AbstractModel
    mass: Float[np.ndarray, "moments cells"]


def episodes_of(run: RunData) -> Iterator[EpisodeEvidence]:
    """Collects the evidence, episode by episode."""
    problem, known = run.setup.problem, run.motion is not None
    for number, record in enumerate(run.store.records, start=1):
        model, episode = run.state_after(number - 1).model, to_episode(record)
        profile = load_policy(run.store.policy_path(number))
        assert isinstance(profile, Profile)
        plan = run.store.read_plan_file(number).arrays
        survey = _survey(problem, model, run.motion, profile, episode.mass)
        own = predict_rows(model, Transitions.empty(problem).append(episode))
        agents = len(own.error) / problem.horizon  # fewer if some of their moves were not seen
        mass = np.asarray(episode.mass, dtype=float)
        optimistic, distances = float(plan["value"]), None
        if np.isfinite(plan["mass"]).all():  # the random policy was not planned
            pairs = zip(plan["mass"], mass, strict=True)
            distances = np.asarray([wasserstein(problem.grid, *pair) for pair in pairs])
        yield EpisodeEvidence(
            value=float(episode.value),
            optimistic=optimistic if np.isfinite(optimistic) else None,
            beta=float(model.beta),
            deviations=np.asarray(survey.deviation, dtype=float),
            squared=float(jnp.sum(survey.squared)),
            observed=float(np.sum(own.epistemic[own.observed] ** 2)) / agents,
            distances=distances,
            policy=policy_slope(problem, profile, episode.mass),
            inside=float(jnp.mean(survey.inside)) if known else None,
            needed=float(jnp.max(survey.needed)) if known else None,
            model=model,
            mass=mass,
        )


class _Survey(eqx.Module):
    deviation: Float[Array, "*steps"]
    squared: Float[Array, "*steps"]
    inside: Float[Array, "*steps"]
    needed: Float[Array, "*steps"]


@eqx.filter_jit
def _survey(
    problem: Problem,
    model: AbstractModel,
    motion: Motion | None,
    profile: Profile,
    mass: _types.Masses,
) -> _Survey:
    """What the model says about the policy's moves, averaged over the population at each step."""
    grid, beta = problem.grid, model.beta_as(mass.dtype)

    def judged(state: Array, action: Array, mu: MeanField) -> Array:
        """Norm of the standard deviations, and how many of them the mean is off."""
        found = model.predict(state, action, mu)
        off = jnp.zeros_like(found.mean)
        if motion is not None:
            off = jnp.abs(grid.displacement(found.mean, motion(state, action, mu)))
        return jnp.stack([jnp.linalg.norm(found.epistemic), jnp.max(off / found.epistemic)])

    def step(inputs: tuple[Array, ActionLaw, Array]) -> _Survey:
        now, law, number = inputs
        found = at_all_cells(grid, now, judged, law.actions, number)
        spread, ratio = found[..., 0], found[..., 1]
        weight = now[:, None] * law.weights
        return _Survey(
            deviation=jnp.sum(weight * spread),
            squared=jnp.sum(weight * spread**2),
            inside=jnp.sum(weight * (ratio <= beta)),
            # Moves of less than a millionth of the population do not count.
            needed=jnp.max(jnp.where(weight > 1e-6, ratio, 0.0)),
        )

    laws = profile.laws(grid, mass[:-1])
    found: _Survey = jax.lax.map(step, (mass[:-1], laws, problem.steps))
    return found
