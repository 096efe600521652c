"""What a learner knows: its data, the models that are fitted to them, and its randomness."""

from enum import IntEnum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._arrays import Key, Mass, Masses
from ..errors import UserError
from ..models.base import AbstractModel, AbstractModelFamily, Prediction
from ..models.data import Transitions
from ..policies.base import Profile
from ..problem import Problem
from ..space.measure import MeanField, uniform


def usual_family(problem: Problem) -> AbstractModelFamily:
    """The model where none was chosen: of any motion of the problem's space."""
    if problem.on_nodes:
        from ..models.dirichlet import DirichletCounts  # not needed on grids

        return DirichletCounts()
    from ..models.gp import GaussianProcess

    return GaussianProcess()


class PlanError(UserError):
    """There is no usable plan or model, and no earlier one to fall back to."""


class Use(IntEnum):
    """Uses of an episode's randomness; each has a key of its own."""

    FIT = 1
    PLAN = 2
    RUN = 3
    FIT_REWARD = 4
    GREEDY_PLAN = 5
    DRAW = 6
    JUDGE = 7
    MODEL_SAMPLES = 8
    REPLAN = 9
    SCOUTS = 10


class LearnerState(eqx.Module):
    """All that a learner knows.

    Attributes:
        data: The transitions of all episodes so far, and those of logs.
        ends: Number of transitions after each episode.
        model: The model of the motion, fitted to the data.
        memory: What the planner starts from.
        profile: The last policy that was planned; None before the first.
        key: The run's randomness, from which every episode derives its own.
        notes: What went wrong since the last episode, in words.
        reward_model: The model of the reward, if the problem hides it.
        last_mass: The distributions of the last episode, if that ran `profile`.
    """

    data: Transitions
    ends: tuple[int, ...] = eqx.field(static=True)
    model: AbstractModel
    memory: Any
    profile: Profile | None
    key: Key
    notes: tuple[str, ...] = eqx.field(static=True, default=())
    reward_model: AbstractModel | None = None
    last_mass: Masses | None = None

    @property
    def episode(self) -> int:
        """Number of episodes so far."""
        return len(self.ends)

    @property
    def mean_mass(self) -> Mass:
        """The population that was seen last, averaged; before that, an even one."""
        problem, mass = self.data.problem, self.data.mass
        if not len(mass):
            return uniform(problem.grid)
        last = mass[-problem.horizon :]
        if self.last_mass is not None:
            last = np.asarray(self.last_mass)[:-1][np.asarray(problem.begun)]
        return jnp.asarray(last.mean(axis=0), dtype=problem.initial.dtype)

    def as_known(self, problem: Problem) -> Problem:
        """The problem with the mean probabilities of its shocks, if these are unknown."""
        shocks = problem.shocks
        if shocks is None or shocks.known:
            return problem
        seen = np.asarray(self.data.shocks).reshape(-1, problem.horizon)
        return problem.replace(shocks=shocks.learned(shocks.counted(seen)))

    def key_for(self, use: Use) -> Key:
        """The key of the next episode for one use."""
        return key_after(self.key, self.episode, use)


def key_after(key: Key, episodes: int, use: Use) -> Key:
    """The key of a run after some episodes, for one use."""
    return jax.random.fold_in(jax.random.fold_in(key, episodes), int(use))


def last_good_fit(
    family: AbstractModelFamily, data: Transitions, key: Key, ends: tuple[int, ...]
) -> tuple[AbstractModel, tuple[str, ...]]:
    """The fit to all data; if that is not finite, to the episodes before, with a note.

    ``key`` is that of the run. If ``data.of_reward``, it is a model of the reward.
    """
    name, use = ("reward model", Use.FIT_REWARD) if data.of_reward else ("model", Use.FIT)
    for count in sorted({0, *ends, len(data)}, reverse=True):
        try:
            model = family.fit(data.first(count), key_after(key, len(ends), use))
        except FloatingPointError:
            continue
        if not is_finite(model):
            continue
        if not ends:
            _check_model(model, data.problem, data.of_reward)
        if count == len(data):
            return model, ()
        lost = f"the {name}'s fit to {len(data)} transitions is not finite"
        return model, (f"{lost}; going on with that to the first {count}",)
    raise PlanError(
        f"no fit of the {name} is finite, not even the prior; check the model's settings and "
        "the scales of the observed data"
    )


def is_finite(tree: Any) -> bool:
    """Whether all numbers of a tree are finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    # By NumPy: JAX would compile a program for each shape.
    return all(bool(np.isfinite(np.asarray(leaf)).all()) for leaf in leaves)


def _check_model(model: AbstractModel, problem: Problem, of_reward: bool) -> None:
    """Raises unless the model predicts one number for each output."""
    grid, mass = problem.grid, problem.initial
    mu = MeanField(mass=mass, here=mass[0], grid=grid)
    if problem.shocks is not None:
        return  # models of each shock ask which one it is
    inputs = jnp.zeros(grid.dim, mass.dtype), jnp.asarray(problem.actions.rest, mass.dtype)
    found = eqx.filter_eval_shape(model.predict, *inputs, mu)
    shape = (1 if of_reward else grid.target_size,)
    got: Any = type(found).__name__
    if isinstance(found, Prediction):
        got = tuple(getattr(each, "shape", ()) for each in jax.tree.leaves(found))
    if got != (shape,) * 3:
        raise UserError(
            f"of the {'reward' if of_reward else 'motion'} {type(model).__name__}.predict must "
            f"return a Prediction whose mean, epistemic and aleatoric have the shape {shape}, got "
            f"{got}; its family must fit what data.of_reward says"
        )
