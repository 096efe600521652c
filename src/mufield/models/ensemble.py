"""Deep ensembles (App. "Transition Model estimation")."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int
from jaxtyping import Key as KeyType

from .._types import Action, Key, Scalar, State
from ..errors import UserError
from ..policies.encoders import AbstractEncoder, Unseen
from ..problem import Motion
from ..space.measure import MeanField
from .base import AbstractModel, AbstractModelFamily, Prediction
from .calibration import FEWEST_ROWS, empirical_beta, held_out, recalibration
from .data import PaddedTransitions, Transitions
from .features import FeatureMap
from .networks import (
    Member,
    MemberPrior,
    Sample,
    adversarial_inputs,
    distance_from,
    draw_members,
    negative_log_likelihood,
)
from .units import Told, Units, known_noise

DIVERSITY = ("none", "bootstrap", "anchored")

LEAST_NOISE = 0.01
"""Noise in training, as a share of the unit; without any, the likelihood has no scale."""


class EnsembleModel(AbstractModel):
    """A fitted ensemble; mean and spread are those of the members' means.

    Attributes:
        features: The map to the networks' inputs.
        members: The networks, stacked.
        units: What the networks' outputs stand for.
        known_noise: The noise's standard deviation where it is known, else none.
        widening: Factor on the spread of each axis, at least one, from recalibration.
        beta: Scale of the confidence band.
    """

    features: FeatureMap
    members: Member
    units: Units
    known_noise: Float[Array, "outputs"] | None
    widening: Float[Array, "outputs"]
    beta: Scalar

    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """Mean over the members, their spread, and the noise."""
        means, variances = self._outputs(state, action, mu)
        mean = jnp.mean(means, axis=0)
        apart = jnp.sum((means - mean) ** 2, axis=0) / (means.shape[0] - 1)
        # Members that agree exactly have a spread of zero, where a root has no derivative.
        spread = jnp.sqrt(jnp.maximum(apart, jnp.finfo(apart.dtype).tiny * 1e6))
        if self.known_noise is None:
            noise = self.units.spread(jnp.sqrt(jnp.mean(variances, axis=0)))
        else:
            noise = self.known_noise
        return Prediction(
            mean=self.units.told(state, mean),
            epistemic=self.widening * self.units.spread(spread),
            aleatoric=noise,
        )

    def draw(self, key: Key) -> Motion:
        """The mean of one member."""
        chosen = jax.random.randint(key, (), 0, self.members.mean_bias.shape[0])

        def motion(state: State, action: Action, mu: MeanField) -> Told:
            return self.units.told(state, self._outputs(state, action, mu)[0][chosen])

        return motion

    def _outputs(self, state: State, action: Action, mu: MeanField) -> tuple[Array, Array]:
        z = self.features(state, action, mu)
        means, variances = jax.vmap(lambda member: member(z))(self.members)
        return means, variances


class EnsembleInputs(eqx.Module):
    """What training needs, in buffers of rarely changing size."""

    features: FeatureMap
    inputs: Float[Array, "rows features"]
    targets: Float[Array, "rows outputs"]
    side: Float[Array, "rows outputs"]
    observed: Float[Array, "rows outputs"]
    count: Int[Array, ""]
    units: Units
    known_noise: Float[Array, "outputs"] | None

    @property
    def scale(self) -> Float[Array, "outputs"]:
        """What the networks' outputs are multiplied with."""
        return jnp.asarray(self.units.scale)


class DeepEnsemble(AbstractModelFamily):
    """Several networks on the same data that differ where the data do not bind them.

    Attributes:
        members: Number of networks.
        width: Width of the hidden layer.
        steps: Steps of Adam.
        learning_rate: Its first step size, which falls to zero along a cosine.
        batch_size: Transitions of a step; all of them while they are no more than this.
        adversarial: Size of the adversarial step, as a share of the inputs' range; zero for none.
        diversity: How members come to differ. ``"none"``: by their random start alone.
            ``"bootstrap"``: each weighs the transitions at random. ``"anchored"``: each is tied
            to its own start, as strongly as a prior is, and sees targets with noise of its own;
            for a linear model these members are draws from the posterior. Where the noise is
            learned, random weights take the place of the targets' noise.
        noise: ``"known"`` takes the noise's standard deviation from the problem where it has one;
            ``"learned"`` trains the variance head on the likelihood, as in the paper.
        stopped: What the axes that a wall stopped tell. ``"censored"``: that the agent aimed beyond
            the wall. ``"masked"``: nothing; then moves near walls are those whose noise pointed
            away from them, and the model learns that walls push.
        prior_scale: Spread of the members before data, in units of the farthest move, or of the
            standard deviation of the rewards.
        curvature: Share of that spread that is not linear in state and action, from 0 to 1. Few
            data are enough for the linear part; 1 is a network without it, as in the paper.
        mu: How the population enters the features.
        beta: Scale of the confidence band; ``"empirical"`` takes it from held-out folds.
        recalibrate: Whether held-out folds may widen the spread of each axis.
    """

    members: int = eqx.field(static=True, default=10)
    width: int = eqx.field(static=True, default=32)
    steps: int = eqx.field(static=True, default=500)
    learning_rate: float = eqx.field(static=True, default=0.02)
    batch_size: int = eqx.field(static=True, default=128)
    adversarial: float = eqx.field(static=True, default=0.01)
    diversity: str = eqx.field(static=True, default="anchored")
    noise: str = eqx.field(static=True, default="known")
    stopped: str = eqx.field(static=True, default="censored")
    prior_scale: float = eqx.field(static=True, default=1.0)
    curvature: float = eqx.field(static=True, default=0.4)
    mu: AbstractEncoder = eqx.field(static=True, default=Unseen())
    beta: float | str = eqx.field(static=True, default=3.0)
    recalibrate: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        if self.diversity not in DIVERSITY:
            raise UserError(f"diversity must be one of {DIVERSITY}, got {self.diversity!r}")
        if self.noise not in ("known", "learned"):
            raise UserError(f"noise must be 'known' or 'learned', got {self.noise!r}")
        if self.stopped not in ("censored", "masked"):
            raise UserError(f"stopped must be 'censored' or 'masked', got {self.stopped!r}")
        if not 0 <= self.curvature <= 1:
            raise UserError(f"curvature must be between 0 and 1, got {self.curvature}")
        if self.members < 2:
            raise UserError(f"an ensemble needs at least two members, got {self.members}")
        if isinstance(self.beta, str) and self.beta != "empirical":
            raise UserError(f"beta must be a number or 'empirical', got {self.beta!r}")

    def fit(self, data: Transitions, key: Key) -> EnsembleModel:
        """Trains all members in one compiled call."""
        fit_key, fold_key = jax.random.split(key)
        model = _checked(self, train(self._raw, self.prepare(data), fit_key))
        dtype = data.problem.initial.dtype
        if self.recalibrate and len(data) >= FEWEST_ROWS:
            widening = recalibration(held_out(self._raw, data, fold_key)).widening
            model = replace(model, widening=jnp.asarray(widening, dtype=dtype))
        if self.beta == "empirical":
            beta = empirical_beta(replace(self, beta=1.0), data, fold_key)
        else:
            beta = float(self.beta)
        return replace(model, beta=jnp.asarray(beta, dtype=dtype))

    def fit_many(self, data: list[Transitions], keys: list[Key]) -> list[AbstractModel]:
        """Trains the ensembles of several runs in one compiled call."""
        sizes = {each.padded_shape for each in data}
        if len(data) == 1 or len(sizes) > 1 or self.recalibrate or self.beta == "empirical":
            return [self.fit(each, key) for each, key in zip(data, keys, strict=True)]
        inputs = [self.prepare(each) for each in data]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *inputs)
        fit_keys = jnp.stack([jax.random.split(key)[0] for key in keys])
        models = _train_many(self._raw, stacked, fit_keys)
        beta = jnp.asarray(float(self.beta), dtype=data[0].problem.initial.dtype)
        found: list[AbstractModel] = []
        for index in range(len(data)):
            one = jax.tree.map(lambda leaf, i=index: leaf[i], models)
            found.append(_checked(self, replace(one, beta=beta)))
        return found

    @property
    def prior(self) -> MemberPrior:
        """What the networks are like before data."""
        return MemberPrior(self.prior_scale, self.curvature)

    @property
    def _raw(self) -> "DeepEnsemble":
        """The settings that training depends on, so that one program serves all betas."""
        return replace(self, beta=1.0, recalibrate=False)

    def prepare(self, data: Transitions) -> EnsembleInputs:
        """What training needs of the data."""
        dtype = data.problem.initial.dtype
        known = known_noise(data) if self.noise == "known" else None
        return _inputs(
            data.padded(),
            FeatureMap(data.problem, self.mu),
            Units.of(data).cast(dtype),
            None if known is None else jnp.asarray(known, dtype=dtype),
            self.stopped == "censored",
        )


@eqx.filter_jit
def _inputs(
    data: PaddedTransitions,
    features: FeatureMap,
    units: Units,
    known_noise: Float[Array, "outputs"] | None,
    censored: bool,
) -> EnsembleInputs:
    targets = units.targets(features.grid, data)
    real = jnp.arange(data.states.shape[0]) < data.count
    if units.centre is None:
        side = data.side if censored else jnp.zeros_like(data.side)
        observed = (data.observed | (side != 0)) & real[:, None]
    else:  # walls stop moves, not rewards
        side, observed = jnp.zeros_like(data.side, shape=targets.shape), real[:, None]
    return EnsembleInputs(
        features=features,
        inputs=features.rows(data),
        # Zero where nothing is known, so that nothing of it can reach the fit.
        targets=jnp.where(observed, targets, 0.0),
        side=side.astype(targets.dtype),
        observed=observed.astype(targets.dtype),
        count=data.count,
        units=units,
        known_noise=known_noise,
    )


@eqx.filter_jit
def train(family: DeepEnsemble, data: EnsembleInputs, key: Key) -> EnsembleModel:
    """Trains all members side by side; a pure function that may be lifted over seeds."""
    start_key, member_key, batch_key = jax.random.split(key, 3)
    rows, features = data.inputs.shape
    dim, dtype = data.targets.shape[1], data.inputs.dtype
    prior = family.prior
    start = draw_members(family.members, features, family.width, dim, prior, start_key, dtype)
    noise = None
    if data.known_noise is not None:
        noise = jnp.maximum(data.known_noise / data.scale, LEAST_NOISE)
    weights, targets = _views(family, data, noise, member_key)
    count = jnp.maximum(data.count, 1).astype(dtype)

    def loss(member: Member, anchor: Member, sample: Sample, share: Scalar) -> Scalar:
        total = negative_log_likelihood(member, sample, noise)
        if family.adversarial > 0:
            moved = adversarial_inputs(member, sample, noise, family.adversarial)
            moved = jax.lax.stop_gradient(moved)
            other = negative_log_likelihood(member, sample._replace(inputs=moved), noise)
            total = 0.5 * (total + other)
        total = total * share
        if family.diversity == "anchored":
            total = total + distance_from(anchor, member, prior)
        return total / count

    optimiser = optax.adam(optax.cosine_decay_schedule(family.learning_rate, family.steps))

    def step(carry: tuple[Member, optax.OptState], chosen: Array | None) -> tuple[Any, None]:
        members, state = carry
        inputs, side, aims, importance = data.inputs, data.side, targets, weights
        share = jnp.ones((), dtype=dtype)
        if chosen is not None:
            inputs, side = inputs[chosen], side[chosen]
            aims, importance = aims[:, chosen], importance[:, chosen]
            share = count / family.batch_size

        def gradient(member: Member, anchor: Member, aim: Array, weight: Array) -> Member:
            sample = Sample(inputs, aim, side, weight)
            found: Member = jax.grad(loss)(member, anchor, sample, share)
            return found

        grads = jax.vmap(gradient)(members, start, aims, importance)
        updates, state = optimiser.update(grads, state)
        return (optax.apply_updates(members, updates), state), None

    # All batches are drawn at once: small draws cost more than their share of a step.
    batches = None
    if rows > family.batch_size:
        shape = (family.steps, family.batch_size)
        batches = jax.random.randint(batch_key, shape, 0, jnp.maximum(data.count, 1))
    first = (start, optimiser.init(start))
    (members, _), _ = jax.lax.scan(step, first, batches, length=family.steps)
    # Without data there is nothing to train on: the prior stays as it was drawn.
    members = jax.tree.map(lambda new, old: jnp.where(data.count > 0, new, old), members, start)
    return EnsembleModel(
        features=data.features,
        members=members,
        units=data.units,
        known_noise=data.known_noise,
        widening=jnp.ones_like(data.scale),
        beta=jnp.asarray(family.beta, dtype=dtype),
    )


@eqx.filter_jit
def _train_many(
    family: DeepEnsemble, data: EnsembleInputs, keys: KeyType[Array, "runs"]
) -> EnsembleModel:
    lifted: EnsembleModel = jax.vmap(lambda d, k: train(family, d, k))(data, keys)
    return lifted


def _checked(family: DeepEnsemble, model: EnsembleModel) -> EnsembleModel:
    if not bool(jnp.all(jnp.isfinite(model.members.mean_weight))):
        raise FloatingPointError(
            f"training the ensemble diverged at a learning rate of {family.learning_rate}; lower it"
        )
    return model


def _views(
    family: DeepEnsemble, data: EnsembleInputs, noise: Float[Array, "dim"] | None, key: Key
) -> tuple[Float[Array, "members rows dim"], Float[Array, "members rows dim"]]:
    """Each member's weights of the transitions, and its targets."""
    shape = (family.members, *data.targets.shape)
    weights = jnp.broadcast_to(data.observed, shape)
    targets = jnp.broadcast_to(data.targets, shape)
    if family.diversity == "anchored" and noise is not None:
        extra = noise * jax.random.normal(key, shape, dtype=data.targets.dtype)
        targets = targets + jnp.where(weights > 0, extra, 0.0)
    elif family.diversity != "none":
        # Exponential weights: the Bayesian bootstrap, which leaves no transition out entirely.
        # Anchored members need it where the noise is learned: they would learn added noise too.
        drawn = jax.random.exponential(key, shape[:2], dtype=data.targets.dtype)
        weights = weights * drawn[..., None]
    return weights, targets
