"""How far from the global optimum a plan can be.

Where the motion does not depend on mu, the distributions are linear in the joint mass of cells
and actions, and if the integrated reward is concave in it, so is J over randomised policies. The
tangent at any plan then lies above J everywhere: the value of the best response to the
linearised reward, one backward sweep, bounds the optimum.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Key, Mass, Scalar
from ..errors import UserError
from ..flow.flow import Flow
from ..flow.moves import Choices, MoveFlow, backwards, depends_on_mu
from ..policies.base import ActionLaw, Profile, as_profile
from ..problem import Motion

SHARPNESS = (0.0, 1.0, 4.0)
"""From even to peaked: the distributions at which the reward's curvature is looked at."""

MOST_ANSWERS = 64
"""Problems whose class is remembered."""

_ANSWERS: dict[Any, bool] = {}

CURVATURE_TOLERANCE = 1e-3
"""Upward curvature, as a share of the strongest, that is taken for rounding."""


class Certificate(eqx.Module):
    """``value <= J* <= value + gap``, over randomised policies on the moves and the plan's own.

    Attributes:
        value: J of the plan.
        gap: How much more the best policy can earn at most.
    """

    value: float = eqx.field(static=True)
    gap: float = eqx.field(static=True)

    @property
    def upper(self) -> float:
        """Upper bound of the optimum."""
        return self.value + self.gap


class OutsideClassError(UserError):
    """The problem is not of the class for which a certificate holds."""


def certify(
    flow: Flow,
    motion: Motion,
    policy: Any,
    actions: Float[Array, "moves action_dim"],
    *,
    key: Key | None = None,
) -> Certificate:
    """Bounds how far a plan is from the best randomised policy.

    The bound covers all policies that draw from ``actions`` and from the plan's own actions, in
    every cell and at every step. It is no statement about other actions of a box; use a fine set.

    Args:
        flow: The problem's flow.
        motion: The law of motion.
        policy: Any plan: a profile, a policy or a function.
        actions: The moves that the best policy may use.
        key: Randomness of the test for concavity.

    Raises:
        OutsideClassError: If the motion depends on mu, or the reward was seen not to be concave.
    """
    check_class(flow, motion, key=key)
    profile = as_profile(policy, flow.problem.horizon)
    moves = MoveFlow(flow, motion, actions)
    value, gap = (float(x) for x in _certify(moves, profile))
    if not (math.isfinite(value) and math.isfinite(gap)):
        raise UserError(
            f"no certificate: J is {value} and the bound {gap}; the motion, the reward or their "
            "derivatives are not finite along the plan"
        )
    # Below zero only by rounding.
    return Certificate(value=value, gap=max(0.0, gap))


def check_class(flow: Flow, motion: Motion, *, key: Key | None = None) -> None:
    """Raises `OutsideClassError` unless the motion ignores mu and the reward looks concave.

    Concavity is tested where it can be seen: at several random distributions, from nearly even to
    peaked, the integrated reward must curve downwards in its most upward direction. A
    counterexample refuses the certificate; none found is no proof.
    """
    if depends_on_mu(flow.problem, motion):
        raise OutsideClassError(
            "no certificate: the motion depends on mu, so J is not concave over randomised "
            "policies and a gradient bounds nothing; compare with other plans instead"
        )
    upward, scale = _most_upward(flow, jax.random.key(0) if key is None else key)
    # Written so that NaN is refused as well.
    if not upward <= CURVATURE_TOLERANCE * scale:
        raise OutsideClassError(
            "no certificate: the reward is not concave in mu; at some distribution the integrated "
            f"reward curves upwards by {upward:.3g}, where its strongest curvature is {scale:.3g}"
        )


def is_concave(flow: Flow, motion: Motion) -> bool:
    """Whether the problem looks to be of the class that has certificates.

    What is found about a reward is remembered for each space: planners ask again and again.
    """
    if depends_on_mu(flow.problem, motion):
        return False
    question: Any = (flow.problem.grid, flow.problem.reward)
    try:
        if question in _ANSWERS:
            return _ANSWERS[question]
    except TypeError:  # Rewards that carry arrays cannot be looked up.
        question = None
    try:
        check_class(flow, motion)
        answer = True
    except OutsideClassError:
        answer = False
    if question is not None:
        if len(_ANSWERS) >= MOST_ANSWERS:
            _ANSWERS.clear()
        _ANSWERS[question] = answer
    return answer


def _most_upward(flow: Flow, key: Key) -> tuple[float, float]:
    """Largest and largest absolute curvature of the integrated reward that was found."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    upward, scale = -math.inf, 0.0
    for sharpness, point_key in zip(SHARPNESS, jax.random.split(key, len(SHARPNESS)), strict=True):
        joint, actions = _random_joint(flow, point_key, jnp.asarray(sharpness))
        size = joint.size

        def curve(
            direction: Any, joint: Array = joint, actions: Array = actions
        ) -> Float[np.ndarray, "entries"]:
            along = jnp.asarray(direction, dtype=joint.dtype).reshape(joint.shape)
            return np.asarray(_curvature(flow, joint, actions, along), dtype=float).ravel()

        operator = LinearOperator((size, size), matvec=curve, dtype=float)
        start = np.random.default_rng(0).normal(size=size)
        first = curve(start)
        if not np.isfinite(first).all():
            return math.nan, 1.0
        if not first.any():  # Linear in mu, so there is nothing to iterate on.
            upward = max(upward, 0.0)
            continue
        options = {"k": 1, "v0": start, "return_eigenvectors": False, "tol": 1e-3}
        strongest = abs(float(eigsh(operator, which="LM", **options)[0]))
        upward = max(upward, float(eigsh(operator, which="LA", **options)[0]))
        scale = max(scale, strongest)
    return upward, scale


@eqx.filter_jit
def _curvature(flow: Flow, joint: Array, actions: Array, along: Array) -> Array:
    """Second derivative of the integrated reward along changes that keep the total mass."""

    def integrated(joint: Array) -> Array:
        law = ActionLaw(actions=actions, weights=joint)
        return jnp.sum(joint * flow.rewards(jnp.sum(joint, axis=1), law))

    centred = along - jnp.mean(along)
    change: Array = jax.jvp(jax.grad(integrated), (joint,), (centred,))[1]
    return change - jnp.mean(change)


@eqx.filter_jit
def _random_joint(flow: Flow, key: Key, sharpness: Array) -> tuple[Array, Array]:
    """A random mass of every cell and two random actions in it, nowhere nearly empty."""
    problem = flow.problem
    n, dtype = problem.grid.n_cells, problem.initial.dtype
    mass_key, action_key, share_key = jax.random.split(key, 3)
    peaked = jax.nn.softmax(sharpness * jax.random.normal(mass_key, (n,)))
    mass = 0.9 * peaked + 0.1 / n
    share = jax.random.uniform(share_key, (n, 1), minval=0.2, maxval=0.8)
    joint = mass[:, None] * jnp.concatenate([share, 1 - share], axis=1)
    return joint.astype(dtype), problem.actions.sample(action_key, (n, 2)).astype(dtype)


@eqx.filter_jit
def _certify(moves: MoveFlow, profile: Profile) -> tuple[Array, Array]:
    """J of the plan, and what the best response gains from the moves and the plan's own actions."""
    flow = moves.flow
    rollout = flow.rollout(profile, moves.motion)

    def choices(part: Any, mass: Mass) -> Choices:
        law = profile.join(part).at_cells(flow.problem.grid, mass)
        own = law.weights.shape[1]

        def step(joint: Array, mass: Mass) -> tuple[Mass, Scalar]:
            planned = ActionLaw(actions=law.actions, weights=joint[:, :own])
            landed = flow.step_joint(jnp.ones_like(mass), mass, planned, moves.motion)
            paid = jnp.sum(planned.weights * flow.rewards(mass, planned))
            others, paid_to_others = moves.step(joint[:, own:], mass)
            return landed + others, paid + paid_to_others

        unused = jnp.zeros(moves.actions.shape[:2], dtype=law.weights.dtype)
        # A plan's own action counts only where it is in use.
        usable = jnp.concatenate([law.weights > 0, jnp.ones_like(unused, dtype=bool)], axis=1)
        return Choices(jnp.concatenate([law.weights, unused], axis=1), step, usable)

    _, gap = backwards(flow, rollout.mass, profile.per_step, choices)
    return rollout.value, gap
