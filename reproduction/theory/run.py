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

from mufield import _arrays
from mufield.errors import UserError
from mufield.io.policies import load_policy
from mufield.learning.state import LearnerState
from mufield.models.base import AbstractModel
from mufield.models.data import Transitions
from mufield.policies.base import ActionLaw, Profile
from mufield.problem import Motion, Problem
from mufield.runs.build import Setup
from mufield.runs.files import RunFiles
from mufield.runs.history import history_of, to_episode
from mufield.space.measure import MeanField, at_all_cells, wasserstein
from mufield.systems import SimulatedSystem


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
        return cls(store, setup, *history_of(store, setup.problem))

    @property
    def motion(self) -> Motion | None:
        """The true motion, where a simulator knows it: a report may look, a learner may not."""
        system = self.setup.system
        return system.reveal()[1] if isinstance(system, SimulatedSystem) else None

    def state_after(self, episodes: int) -> LearnerState:
        """The learner's state after a number of episodes; its planner's memory is left out."""
        data = self.data.first(self.known[episodes])
        key = jax.random.key(self.store.config.seed)
        return self.setup.learner.restore(key, data, self.ends[:episodes], None, None)


@dataclass(frozen=True, eq=False)
class Evidence:
    r"""What the bounds need to know of one episode.

    Attributes:
        optimistic: J that the plan expected; NaN if there was no plan.
        deviations: $\int \|\sigma_{t-1}\| d\mu_{t,h}$ for each step.
        squared: $\sum_h \int \|\sigma_{t-1}\|^2 d\mu_{t,h}$, what the episode adds to $I_T$.
        distances: $W_1(\tilde\mu_{t,h}, \mu_{t,h})$ for h = 0, ..., H; NaN if there was no plan.
        inside: Share of the population's moves whose true motion lies in the band; None if the
            true motion is not known.
        model: The model before the episode.
        mass: The realised flow of distributions.
    """

    value: float
    optimistic: float
    deviations: Float[np.ndarray, "steps"]
    squared: float
    distances: Float[np.ndarray, "moments"]
    inside: float | None
    model: AbstractModel
    mass: Float[np.ndarray, "moments cells"]


def episodes_of(run: RunData) -> Iterator[Evidence]:
    """Collects the evidence, episode by episode."""
    problem = run.setup.problem
    for number, record in enumerate(run.store.records, start=1):
        model, episode = run.state_after(number - 1).model, to_episode(record)
        profile = load_policy(run.store.policy_path(number))
        assert isinstance(profile, Profile)
        plan = run.store.read_plan_file(number).arrays
        survey = _survey(problem, model, run.motion, profile, episode.mass)
        mass = np.asarray(episode.mass, dtype=float)
        distances = np.full(len(mass), np.nan)
        if np.isfinite(plan["mass"]).all():  # the random policy was not planned
            pairs = zip(plan["mass"], mass, strict=True)
            distances = np.asarray([wasserstein(problem.grid, *pair) for pair in pairs])
        deviation, squared, inside = np.asarray(survey, dtype=float).T
        yield Evidence(
            value=float(episode.value),
            optimistic=float(plan["value"]),
            deviations=deviation,
            squared=float(squared.sum()),
            distances=distances,
            inside=None if run.motion is None else float(inside.mean()),
            model=model,
            mass=mass,
        )


@eqx.filter_jit
def _survey(
    problem: Problem,
    model: AbstractModel,
    motion: Motion | None,
    profile: Profile,
    mass: _arrays.Masses,
) -> Float[Array, "steps 3"]:
    """Mean norm of the deviations, of its square, and share of moves inside the band, by step."""
    grid, beta = problem.grid, model.beta_as(mass.dtype)

    def judged(state: Array, action: Array, mu: MeanField) -> Array:
        found = model.predict(state, action, mu)
        off = jnp.zeros_like(found.mean)
        if motion is not None:
            off = jnp.abs(grid.displacement(found.mean, motion(state, action, mu)))
        spread, inside = jnp.linalg.norm(found.epistemic), jnp.all(off <= beta * found.epistemic)
        return jnp.stack([spread, spread**2, inside.astype(spread.dtype)])

    def step(inputs: tuple[Array, ActionLaw, Array]) -> Array:
        now, law, number = inputs
        found = at_all_cells(grid, now, judged, law.actions, number)
        return jnp.einsum("k,km,kmx->x", now, law.weights, found)

    laws = profile.laws(grid, mass[:-1])
    found: Array = jax.lax.map(step, (mass[:-1], laws, problem.steps))
    return found
