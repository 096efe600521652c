"""Fits the models of a learner; where a fit fails, the last good one stands in for it."""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._types import Key, Mass, State
from ..errors import UserError
from ..models.base import AbstractModel, AbstractModelFamily
from ..models.data import KnownNoise, Transitions
from ..models.ensemble import DeepEnsemble
from ..models.gp import GaussianProcess
from ..models.priors import Additive
from ..policies.encoders import LogHere
from ..problem import Problem
from ..space.measure import MeanField
from .state import Use, key_after


class PlanError(UserError):
    """There is no usable plan or model, and no earlier one to fall back to."""


class Fit(NamedTuple):
    """The models of one run, and what went wrong with them."""

    model: AbstractModel
    reward_model: AbstractModel | None
    notes: tuple[str, ...]


def fit_models(
    family: AbstractModelFamily,
    reward_family: AbstractModelFamily | None,
    keys: list[Key],
    data: list[Transitions],
    ends: list[tuple[int, ...]],
) -> list[Fit]:
    """Fits the models of several runs; some families do so in one compiled program."""

    def keys_for(use: Use) -> list[Key]:
        return [key_after(key, len(end), use) for key, end in zip(keys, ends, strict=True)]

    models = _fit_all(family, data, keys_for(Use.FIT), ends, "model")
    if reward_family is None:
        return [Fit(model, None, notes) for model, notes in models]
    paid = [each.of_rewards() for each in data]
    rewards = _fit_all(reward_family, paid, keys_for(Use.FIT_REWARD), ends, "reward model")
    return [
        Fit(model, reward, (*notes, *more))
        for (model, notes), (reward, more) in zip(models, rewards, strict=True)
    ]


def _fit_all(
    family: AbstractModelFamily,
    data: list[Transitions],
    keys: list[Key],
    ends: list[tuple[int, ...]],
    name: str,
) -> list[tuple[AbstractModel, tuple[str, ...]]]:
    try:
        models = family.fit_many(data, keys)
        if is_finite(models):
            return [(model, ()) for model in models]
    except FloatingPointError:
        pass
    return [_last_good_fit(family, *each, name) for each in zip(data, keys, ends, strict=True)]


def _last_good_fit(
    family: AbstractModelFamily, data: Transitions, key: Key, ends: tuple[int, ...], name: str
) -> tuple[AbstractModel, tuple[str, ...]]:
    """Leaves out the last data, one episode more each time, until the fit is finite."""
    for count in sorted({0, *ends, len(data)}, reverse=True):
        notes: tuple[str, ...] = ()
        if count < len(data):
            notes = (
                f"the {name}'s fit to {len(data)} transitions is not finite; going on with that "
                f"to the first {count}",
            )
        try:
            model = family.fit(data.first(count), key)
        except FloatingPointError:
            continue
        if is_finite(model):
            return model, notes
    raise PlanError(
        f"no fit of the {name} is finite, not even the prior; check the model's settings and "
        "the scales of the observed data"
    )


def is_finite(tree: Any) -> bool:
    """Whether all numbers of a tree are finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)


def default_reward_family(family: AbstractModelFamily) -> AbstractModelFamily:
    """The family of the motion, with kernel, features and noise that suit a reward.

    Rewards depend on mu, often through its logarithm; they are nearly sums of a part for the
    state, one for the action and one for mu, and seldom linear.
    """
    if isinstance(family, GaussianProcess):
        # Few inducing points: a reward that depends on mu is evaluated anew for every cell, move
        # and step of every sweep. Rewards are scaled by their own deviation, so that kernel
        # parameters stay near one.
        return replace(
            family,
            prior=Additive(),
            mu=LogHere(),
            noise=KnownNoise(),
            variances=(0.25, 4.0),
            inducing=min(family.inducing, 64) or 64,
        )
    if isinstance(family, DeepEnsemble):
        # Rewards are scaled by their own deviation, so that a prior of one is as wide as they are.
        plain = replace(family, prior_scale=1.0, curvature=1.0, steered=0.0)
        return replace(plain, mu=LogHere(), mu_share=1.0, noise=KnownNoise())
    raise UserError(
        f"no model of the hidden reward is known to go with {type(family).__name__}; pass "
        "reward_family, for example GaussianProcess(prior=Additive(), mu=LogHere())"
    )


def check_reward_model(model: AbstractModel, problem: Problem) -> None:
    """Raises unless the model predicts one number.

    A family that ignores ``data.of_reward`` fits motions whatever it is asked for.
    """

    def mean(state: State, mass: Mass) -> Array:
        action = jnp.asarray(problem.actions.rest, dtype=mass.dtype)
        mu = MeanField(mass=mass, here=mass[0], grid=problem.grid)
        return model.predict(state, action, mu).mean

    state = jnp.zeros(problem.grid.dim, dtype=problem.initial.dtype)
    shape = eqx.filter_eval_shape(mean, state, problem.initial).shape
    if shape != (1,):
        raise UserError(
            f"a model of the reward must predict one number, the shape (1,), got {shape}; its "
            "family must fit what data.of_reward says"
        )
