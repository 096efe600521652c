"""Deep ensembles (App. "Transition Model estimation")."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from .._arrays import Action, Key, Scalar, State
from ..errors import number, whole_number
from ..policies.encoders import AbstractEncoder, Here, LogHere, check_encoder, position_size
from ..problem import Motion, Problem
from ..space.measure import MeanField
from .base import AbstractModel, AbstractModelFamily, Prediction
from .data import Transitions, buffer_size
from .features import FeatureMap, Outputs, Rows, Units
from .networks import Member, MemberPrior, negative_log_likelihood


class EnsembleModel(AbstractModel):
    """A fitted ensemble; its mean and deviation are those of the members' means.

    Attributes:
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
        noise = learned if self.known_noise is None else self.known_noise
        return Prediction(self.units.decode(state, mean), self.units.rescale(deviation), noise)

    def draw(self, key: Key) -> Motion:
        """The mean of one member."""
        chosen = jax.random.randint(key, (), 0, self.members.mean_bias.shape[0])

        def motion(state: State, action: Action, mu: MeanField) -> Outputs:
            return self.units.decode(state, self._outputs(state, action, mu)[0][chosen])

        return motion

    def _outputs(self, state: State, action: Action, mu: MeanField) -> tuple[Array, Array]:
        z = self.features(state, action, mu)
        return jax.vmap(Member.__call__, in_axes=(0, None))(self.members, z)


class EnsembleInputs(eqx.Module):
    """The data as training needs them, in buffers whose size rarely changes.

    Attributes:
        rows: Features and targets; ``weight`` is 1 where a target or a side is known, else 0.
        count: Number of transitions; the buffers' further rows are padding.
        known_noise: The noise's standard deviation; None if it is learned.
    """

    features: FeatureMap
    rows: Rows
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
    random weights of the transitions replace the targets' noise, which members would learn too.

    The defaults are chosen so that the band covers all cells and actions (`benchmarks/motions.py`).

    Attributes:
        members: Number of networks. With few of them their deviation itself is uncertain.
        width: Width of the hidden layer.
        steps: Steps of Adam.
        learning_rate: Its first step size, which falls to zero along a cosine.
        batch_size: Transitions of a step; all of them while they are no more than this.
        learn_noise: Whether the noise is learned even if the problem says what it is, by the
            variance head, as in the paper.
        prior_scale: Standard deviation of the members before data, in units of the farthest move,
            or of the standard deviation of the rewards.
        curvature: Share of ``prior_scale`` that is not linear in state and action, from 0 to 1.
            The linear part needs few data; the paper's networks have none, a share of 1.
        bilinear: Share of the curved part that is a field times the action, from 0 to 1.
        mu: How the features show the population. Unless they do, a motion that depends on crowds
            is laid to the places where crowds were, with a band that is too narrow elsewhere.
        mu_share: Size of what mu changes before data, as a share of what state and action do. At
            1, motions that do not depend on mu need more data.
        beta: Scale of the confidence band.
    """

    members: int = eqx.field(static=True, default=15)
    width: int = eqx.field(static=True, default=32)
    steps: int = eqx.field(static=True, default=700)
    learning_rate: float = eqx.field(static=True, default=0.03)
    batch_size: int = eqx.field(static=True, default=128)
    learn_noise: bool = eqx.field(static=True, default=False)
    prior_scale: float = eqx.field(static=True, default=1.5)
    curvature: float = eqx.field(static=True, default=0.4)
    bilinear: float = eqx.field(static=True, default=0.7)
    mu: AbstractEncoder = eqx.field(static=True, default=Here())
    mu_share: float = eqx.field(static=True, default=0.3)
    beta: float = eqx.field(static=True, default=4.0)

    def __check_init__(self) -> None:
        number(self.beta, "beta", 0.0)
        check_encoder(self.mu)
        whole_number(self.members, "members", 2)
        for name in ("curvature", "bilinear", "mu_share"):
            number(getattr(self, name), name, 0.0, 1.0)

    def check(self, problem: Problem) -> None:
        """Raises on nodes, which have no coordinates."""
        position_size(problem.grid)

    def fit(self, data: Transitions, key: Key) -> EnsembleModel:
        """Trains all members in one compiled call; without data they are draws from the prior."""
        inputs, fit_key = self.prepare(data), jax.random.split(key)[0]
        if len(data) == 0:
            members = _start(self, inputs, jax.random.split(fit_key, 3)[0])
        else:
            # With one beta, which training does not use, so that one program serves all.
            members = train(replace(self, beta=1.0), inputs, fit_key)
        if not bool(jnp.all(jnp.isfinite(members.mean_weight))):
            rate = self.learning_rate
            raise FloatingPointError(f"training diverged at a learning rate of {rate}; lower it")
        return EnsembleModel(
            features=inputs.features,
            members=members,
            units=inputs.units,
            known_noise=inputs.known_noise,
            beta=jnp.asarray(self.beta, data.problem.initial.dtype),
        )

    def for_rewards(self) -> "DeepEnsemble":
        """Plain networks that see the logarithm of mu, because rewards are seldom linear.

        Rewards are scaled by their own deviation, so that a prior of one is as wide as they are.
        """
        plain = replace(self, prior_scale=1.0, curvature=1.0, bilinear=0.0)
        return replace(plain, mu=LogHere(), mu_share=1.0, learn_noise=False)

    def prepare(self, data: Transitions) -> EnsembleInputs:
        """Converts transitions to the inputs of `train`."""
        dtype, features = data.problem.initial.dtype, FeatureMap(data.problem, self.mu)
        rows = Rows.of(features, data).padded(buffer_size(len(data)))
        rows = rows._replace(weight=np.where(rows.side != 0, 1.0, rows.weight))
        std = None if self.learn_noise else data.noise_std
        known = None if std is None else jnp.asarray(std, dtype)
        padded = Rows(*(jnp.asarray(part, dtype) for part in rows))
        count, units = jnp.asarray(len(data), jnp.int32), Units.of(data).cast(dtype)
        return EnsembleInputs(features, padded, count, units, known)

    def prior(self, data: EnsembleInputs) -> MemberPrior:
        """The distribution of the networks before data."""
        shape = data.features.parts, self.width, data.rows.targets.shape[-1]
        return MemberPrior(*shape, self.prior_scale, self.curvature, self.bilinear, self.mu_share)


@eqx.filter_jit
def train(family: DeepEnsemble, data: EnsembleInputs, key: Key) -> Member:
    """The trained members, stacked.

    Each minimises its negative log likelihood, plus the distance from its start under the prior,
    over the number of transitions.
    """
    start_key, member_key, batch_key = jax.random.split(key, 3)
    start, prior = _start(family, data, start_key), family.prior(data)
    rows = member_rows(family, data, member_key)
    count = data.count.astype(rows.inputs.dtype)

    def loss(member: Member, anchor: Member, batch: Rows, share: Scalar) -> Scalar:
        total = negative_log_likelihood(member, batch, data.scaled_noise) * share
        return (total + prior.negative_log_density(anchor, member)) / count

    gradients = jax.vmap(jax.grad(loss), in_axes=(0, 0, Rows(None, 0, 0, None), None))
    optimiser = optax.adam(optax.cosine_decay_schedule(family.learning_rate, family.steps))

    def step(carry: tuple[Member, Any], chosen: Array | None) -> tuple[Any, None]:
        members, state = carry
        batch, share = rows, jnp.ones_like(count)
        if chosen is not None:
            inputs, targets, weight, side = rows
            batch = Rows(inputs[chosen], targets[:, chosen], weight[:, chosen], side[chosen])
            share = count / family.batch_size
        updates, state = optimiser.update(gradients(members, start, batch, share), state)
        return (optax.apply_updates(members, updates), state), None

    # All batches are drawn at once: many small draws would take longer.
    batches = None
    if len(rows.inputs) > family.batch_size:
        shape = (family.steps, family.batch_size)
        batches = jax.random.randint(batch_key, shape, 0, data.count)
    first = (start, optimiser.init(start))
    return jax.lax.scan(step, first, batches, length=family.steps)[0][0]


def _start(family: DeepEnsemble, data: EnsembleInputs, key: Key) -> Member:
    return family.prior(data).draw(family.members, key, data.rows.inputs.dtype)


def member_rows(family: DeepEnsemble, data: EnsembleInputs, key: Key) -> Rows:
    """The rows as each member sees them: weights and targets have the axis "members" first."""
    rows, noise = data.rows, data.scaled_noise
    shape, dtype = (family.members, *rows.targets.shape), rows.targets.dtype
    weight, targets = (jnp.broadcast_to(part, shape) for part in (rows.weight, rows.targets))
    if noise is None:
        # Exponential weights: the Bayesian bootstrap, which leaves no transition out entirely.
        weight = weight * jax.random.exponential(key, shape[:2], dtype=dtype)[..., None]
    else:
        extra = noise * jax.random.normal(key, shape, dtype=dtype)
        targets = targets + jnp.where(weight > 0, extra, 0.0)
    return rows._replace(targets=targets, weight=weight)
