"""Fits that a learner can go on with: where one fails, that to fewer episodes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._types import Key
from ..errors import UserError
from ..models.base import AbstractModel, AbstractModelFamily
from ..models.data import Transitions
from ..problem import Problem
from ..space.measure import MeanField


class PlanError(UserError):
    """No usable plan or model, and none of an earlier episode to fall back to."""


def fit_all(
    family: AbstractModelFamily,
    data: list[Transitions],
    keys: list[Key],
    ends: list[tuple[int, ...]],
    name: str,
) -> list[tuple[AbstractModel, tuple[str, ...]]]:
    """The models of several runs, each with what people should know of its fit.

    Args:
        family: The statistical model.
        data: The transitions of each run.
        keys: Its randomness.
        ends: Number of transitions after each of its episodes.
        name: What the model is called in notes.
    """
    try:
        models = family.fit_many(data, keys)
        if is_finite(models):
            return [(model, ()) for model in models]
    except FloatingPointError:
        pass
    return [_last_good(family, *each, name) for each in zip(data, keys, ends, strict=True)]


def _last_good(
    family: AbstractModelFamily, data: Transitions, key: Key, ends: tuple[int, ...], name: str
) -> tuple[AbstractModel, tuple[str, ...]]:
    """The model of as many episodes as give a finite fit."""
    for count in range(len(ends), -1, -1):
        notes: tuple[str, ...] = ()
        if count < len(ends):
            notes = (
                f"the {name}'s fit to {len(ends)} episodes is not finite; going on with that "
                f"to {count}",
            )
        try:
            model = family.fit(data.first(ends[count - 1] if count else 0), key)
        except FloatingPointError:
            continue
        if is_finite(model):
            return model, notes
    raise PlanError(
        f"no fit of the {name} is finite, not even the prior; check the model's settings and "
        "the scales of the observed data"
    )


def is_finite(tree: Any) -> bool:
    """Whether all numbers of a tree are."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)


def check_reward_model(model: AbstractModel, problem: Problem) -> None:
    """Raises if a model gives anything but one number: a family that fits motions whatever it
    is asked for.
    """
    dtype = problem.initial.dtype

    def mean(state: Any, action: Any, mass: Any) -> Any:
        mu = MeanField(mass=mass, here=mass[0], grid=problem.grid)
        return model.predict(state, action, mu).mean

    sizes = (problem.grid.dim,), (problem.actions.dim,), (problem.grid.n_cells,)
    shape = eqx.filter_eval_shape(mean, *(jax.ShapeDtypeStruct(s, dtype) for s in sizes)).shape
    if shape != (1,):
        raise UserError(
            f"a model of the reward must predict one number, the shape (1,), got {shape}; its "
            "family must fit what data.target says"
        )
