"""Deep ensembles (App. "Transition Model estimation")."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from jaxtyping import Key as KeyType

from .._types import Action, Key, Scalar, State
from ..errors import UserError
from ..policies.encoders import AbstractEncoder, Here
from ..problem import Motion
from ..space.measure import MeanField
from .base import AbstractModel, AbstractModelFamily, Prediction, refuse_words
from .calibration import EmpiricalBeta
from .data import KnownNoise, LearnedNoise, Transitions, buffer_size
from .features import FeatureMap, Outputs, Units, censored_rows
from .networks import (
    Layout,
    Member,
    MemberPrior,
    Sample,
    distance_from,
    draw_members,
    negative_log_likelihood,
)


class EnsembleModel(AbstractModel):
    """A fitted ensemble; its mean and deviation are those of the members' means.

    Attributes:
        members: The networks, stacked.
        units: Units of the networks' outputs.
        known_noise: The noise's standard deviation; None if it is learned.
    """

    features: FeatureMap
    members: Member
    units: Units
    known_noise: Float[Array, "outputs"] | None
    beta: Scalar

    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """Mean over the members, their standard deviation, and the noise."""
        means, variances = self._outputs(state, action, mu)
        mean = jnp.mean(means, axis=0)
        apart = jnp.sum((means - mean) ** 2, axis=0) / (means.shape[0] - 1)
        # If members agree exactly the root of zero would have no derivative.
        deviation = jnp.sqrt(jnp.maximum(apart, jnp.finfo(apart.dtype).tiny * 1e6))
        learned = self.units.rescale(jnp.sqrt(jnp.mean(variances, axis=0)))
        return Prediction(
            mean=self.units.decode(state, mean),
            epistemic=self.units.rescale(deviation),
            aleatoric=learned if self.known_noise is None else self.known_noise,
        )

    def draw(self, key: Key) -> Motion:
        """The mean of one member."""
        chosen = jax.random.randint(key, (), 0, self.members.mean_bias.shape[0])

        def motion(state: State, action: Action, mu: MeanField) -> Outputs:
            return self.units.decode(state, self._outputs(state, action, mu)[0][chosen])

        return motion

    def _outputs(self, state: State, action: Action, mu: MeanField) -> tuple[Array, Array]:
        z = self.features(state, action, mu)
        means, variances = jax.vmap(lambda member: member(z))(self.members)
        return means, variances


class EnsembleInputs(eqx.Module):
    """The data as training needs them, in buffers whose size rarely changes.

    Attributes:
        targets: What networks should predict; if a wall stopped an agent, the way to the wall.
        side: 1 or -1 if an agent aimed farther than the target in that direction, else 0.
        observed: 1 if the target or the side is known, else 0.
        count: Number of transitions; the buffers' further rows are padding.
        known_noise: The noise's standard deviation; None if it is learned.
    """

    features: FeatureMap
    inputs: Float[Array, "rows features"]
    targets: Float[Array, "rows outputs"]
    side: Float[Array, "rows outputs"]
    observed: Float[Array, "rows outputs"]
    count: Int[Array, ""]
    units: Units
    known_noise: Float[Array, "outputs"] | None

    @property
    def scaled_noise(self) -> Float[Array, "outputs"] | None:
        """The known noise in units of the targets, at least 0.01: the likelihood needs some."""
        if self.known_noise is None:
            return None
        return jnp.maximum(self.known_noise / self.units.scale, 0.01)


class DeepEnsemble(AbstractModelFamily):
    """Several networks, trained on the same data, that differ where there are few data.

    Each member has a prior centred at its random start (an anchor), and targets with noise of its
    own: for a linear model such members are draws from the posterior. If the noise is learned,
    random weights of the transitions take the place of the targets' noise, which members would
    learn too.

    The defaults were chosen for a band that covers all cells and actions, on four motions in the
    four rooms: turned by place, slowed by crowds, a sharp edge, and ``s + a``. ``beta`` was raised
    from 3 to 4 for two of the suite of `benchmarks/motions.py`, ``rooms-turned`` and ``hall-lane``,
    of which 3 held less than 95%.

    Attributes:
        members: Number of networks. With few of them their deviation itself is uncertain.
        width: Width of the hidden layer.
        steps: Steps of Adam.
        learning_rate: Its first step size, which falls to zero along a cosine.
        batch_size: Transitions of a step; all of them while they are no more than this.
        noise: `KnownNoise`, or `LearnedNoise`, which trains the variance head on the likelihood,
            as in the paper.
        censored: Whether to learn from moves that a wall stopped that the agent aimed beyond the
            wall. If they are left out, the model learns that walls push (docs/theory.md).
        prior_scale: Standard deviation of the members before data, in units of the farthest move,
            or of the standard deviation of the rewards.
        curvature: Share of ``prior_scale`` that is not linear in state and action, from 0 to 1.
            The linear part needs few data; the paper's networks have none, a share of 1.
        steered: Share of the curved part that is a field times the action, from 0 to 1.
        mu: How the features show the population. Unless they do, a motion that depends on crowds
            is laid to the places where crowds were, with a band that is too narrow elsewhere.
        mu_share: Size of what mu changes before data, as a share of what state and action do. At
            1, motions that do not depend on mu need more data.
        beta: Scale of the confidence band: a number, or an `EmpiricalBeta`.
    """

    members: int = eqx.field(static=True, default=15)
    width: int = eqx.field(static=True, default=32)
    steps: int = eqx.field(static=True, default=700)
    learning_rate: float = eqx.field(static=True, default=0.03)
    batch_size: int = eqx.field(static=True, default=128)
    noise: KnownNoise | LearnedNoise = eqx.field(static=True, default=KnownNoise())
    censored: bool = eqx.field(static=True, default=True)
    prior_scale: float = eqx.field(static=True, default=1.5)
    curvature: float = eqx.field(static=True, default=0.4)
    steered: float = eqx.field(static=True, default=0.7)
    mu: AbstractEncoder = eqx.field(static=True, default=Here())
    mu_share: float = eqx.field(static=True, default=0.3)
    beta: float | EmpiricalBeta = eqx.field(static=True, default=4.0)

    def __check_init__(self) -> None:
        refuse_words(self)
        for name in ("curvature", "steered", "mu_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        if self.members < 2:
            raise UserError(f"an ensemble needs at least two members, got {self.members}")

    def fit(self, data: Transitions, key: Key) -> EnsembleModel:
        """Trains all members in one compiled call; without data they are draws from the prior."""
        fit_key, fold_key = jax.random.split(key)
        inputs, beta = self.prepare(data), self.beta
        if len(data) == 0:
            members = _start(self, inputs, jax.random.split(fit_key, 3)[0])
        else:
            members = train(self._trained, inputs, fit_key)
        if isinstance(beta, EmpiricalBeta):
            beta = beta(replace(self, beta=1.0), data, fold_key)
        return self._model(inputs, members, beta)

    def fit_many(self, data: list[Transitions], keys: list[Key]) -> list[AbstractModel]:
        """Trains the ensembles of several runs in one compiled call."""
        sizes = {(len(each) > 0, buffer_size(len(each))) for each in data}
        alone = isinstance(self.beta, EmpiricalBeta) or len(data) == 1
        if alone or len(sizes) > 1 or len(data[0]) == 0:
            return super().fit_many(data, keys)
        inputs = [self.prepare(each) for each in data]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *inputs)
        fit_keys = jnp.stack([jax.random.split(key)[0] for key in keys])
        members = _train_many(self._trained, stacked, fit_keys)
        each = [jax.tree.map(lambda leaf, i=i: leaf[i], members) for i in range(len(data))]
        return [self._model(*pair, self.beta) for pair in zip(inputs, each, strict=True)]

    def prepare(self, data: Transitions) -> EnsembleInputs:
        """Converts transitions to the inputs of `train`."""
        dtype, features = data.problem.initial.dtype, FeatureMap(data.problem, self.mu)
        rows, side = censored_rows(features, data, self.censored)
        known, missing = self.noise.std(data), buffer_size(len(data)) - len(data)

        def padded(values: np.ndarray) -> Array:
            return jnp.asarray(np.pad(values, ((0, missing), (0, 0))), dtype=dtype)

        return EnsembleInputs(
            features=features,
            inputs=padded(rows.inputs),
            targets=padded(rows.targets),
            side=padded(side),
            observed=padded(rows.observed | (side != 0)),
            count=jnp.asarray(len(data), dtype=jnp.int32),
            units=Units.of(data).cast(dtype),
            known_noise=None if known is None else jnp.asarray(known, dtype=dtype),
        )

    @property
    def prior(self) -> MemberPrior:
        """The distribution of the networks before data."""
        return MemberPrior(self.prior_scale, self.curvature, self.steered, self.mu_share)

    @property
    def _trained(self) -> "DeepEnsemble":
        """With one beta, which training does not use, so that one program serves all."""
        return replace(self, beta=1.0)

    def _model(self, data: EnsembleInputs, members: Member, beta: Any) -> EnsembleModel:
        if not bool(jnp.all(jnp.isfinite(members.mean_weight))):
            raise FloatingPointError(
                f"training the ensemble diverged at a learning rate of {self.learning_rate}; "
                "lower it"
            )
        dtype = data.inputs.dtype
        return EnsembleModel(
            features=data.features,
            members=members,
            units=data.units,
            known_noise=data.known_noise,
            beta=jnp.asarray(beta, dtype),
        )


@eqx.filter_jit
def train(family: DeepEnsemble, data: EnsembleInputs, key: Key) -> Member:
    """The trained members, stacked; a pure function that may be used with `vmap`."""
    start_key, member_key, batch_key = jax.random.split(key, 3)
    start, noise = _start(family, data, start_key), data.scaled_noise
    weights, targets = member_views(family, data, member_key)
    dtype = data.inputs.dtype
    count = data.count.astype(dtype)

    def loss(member: Member, anchor: Member, sample: Sample, share: Scalar) -> Scalar:
        total = negative_log_likelihood(member, sample, noise) * share
        return (total + distance_from(anchor, member, family.prior)) / count

    optimiser = optax.adam(optax.cosine_decay_schedule(family.learning_rate, family.steps))

    def step(carry: tuple[Member, optax.OptState], chosen: Array | None) -> tuple[Any, None]:
        members, state = carry
        batch, share = (data.inputs, data.side, targets, weights), jnp.ones((), dtype=dtype)
        if chosen is not None:
            inputs, side, target, weight = batch
            batch = inputs[chosen], side[chosen], target[:, chosen], weight[:, chosen]
            share = count / family.batch_size

        def gradient(member: Member, anchor: Member, target: Array, weight: Array) -> Member:
            sample = Sample(batch[0], target, batch[1], weight)
            found: Member = jax.grad(loss)(member, anchor, sample, share)
            return found

        grads = jax.vmap(gradient)(members, start, *batch[2:])
        updates, state = optimiser.update(grads, state)
        return (optax.apply_updates(members, updates), state), None

    # All batches are drawn at once: many small draws would take longer.
    batches = None
    if data.inputs.shape[0] > family.batch_size:
        shape = (family.steps, family.batch_size)
        batches = jax.random.randint(batch_key, shape, 0, data.count)
    first = (start, optimiser.init(start))
    (members, _), _ = jax.lax.scan(step, first, batches, length=family.steps)
    trained: Member = members
    return trained


@eqx.filter_jit
def _train_many(family: DeepEnsemble, data: EnsembleInputs, keys: KeyType[Array, "runs"]) -> Member:
    lifted: Member = jax.vmap(lambda d, k: train(family, d, k))(data, keys)
    return lifted


def _start(family: DeepEnsemble, data: EnsembleInputs, key: Key) -> Member:
    layout = Layout(data.features.parts, family.width, data.targets.shape[1])
    return draw_members(family.members, layout, family.prior, key, data.inputs.dtype)


def member_views(
    family: DeepEnsemble, data: EnsembleInputs, key: Key
) -> tuple[Float[Array, "members rows outputs"], Float[Array, "members rows outputs"]]:
    """The weights and the targets of the transitions for each member."""
    shape, dtype = (family.members, *data.targets.shape), data.targets.dtype
    weights = jnp.broadcast_to(data.observed, shape)
    targets = jnp.broadcast_to(data.targets, shape)
    noise = data.scaled_noise
    if noise is None:
        # Exponential weights: the Bayesian bootstrap, which leaves no transition out entirely.
        return weights * jax.random.exponential(key, shape[:2], dtype=dtype)[..., None], targets
    extra = noise * jax.random.normal(key, shape, dtype=dtype)
    return weights, targets + jnp.where(weights > 0, extra, 0.0)
