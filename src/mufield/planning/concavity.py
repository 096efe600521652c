"""Whether J is concave over randomised policies, so that a linearised reward bounds the optimum.

It is if the motion ignores mu and the integrated reward is concave in the joint mass of cells and
actions. The first is read from the motion's program; the second is tested at random distributions,
which can find that it fails, but not prove that it holds.
"""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays import Key, Scalar
from ..errors import UserError
from ..flow.flow import Flow
from ..flow.motions import dependence, trips_see_mu
from ..policies.base import ActionLaw
from ..problem import Motion


class OutsideClassError(UserError):
    """The problem is not of the class for which a certificate holds."""


def why_unbounded(flow: Flow, motion: Motion) -> str:
    """What there is to say against a bound of the optimum; empty if nothing was found."""
    if dependence(flow.problem, motion).mu or trips_see_mu(flow.problem):
        moved = "the chance of a trip" if trips_see_mu(flow.problem) else "the motion"
        return (
            f"no certificate: {moved} depends on mu, so J is not concave over randomised "
            "policies and a gradient bounds nothing; compare with other plans instead"
        )
    upward, strongest, rounding = _most_upward(flow)
    # A thousandth of the strongest curvature counts as rounding, too. NaN is refused as well.
    if not upward <= max(1e-3 * strongest, rounding):
        return (
            "no certificate: the reward is not concave in mu; at some distribution the integrated "
            f"reward curves upwards by {upward:.3g}; its strongest curvature is {strongest:.3g}"
        )
    above, rounding = (float(x) for x in _above_tangents(flow, jnp.asarray(_times(flow))))
    if not above <= rounding:
        return (
            "no certificate: the reward is not concave in mu; between some distributions the "
            f"integrated reward rises by {above:.3g} more than its derivative says"
        )
    return ""


def _times(flow: Flow) -> np.ndarray:
    return np.linspace(flow.problem.steps_done, flow.problem.paid_steps - 1, 3).astype(int)


def _most_upward(flow: Flow) -> tuple[float, float, float]:
    """The largest curvature of the integrated reward, the largest in size, and their rounding."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    upward, strongest, rounding = -math.inf, 0.0, 0.0
    # An even distribution and two peaked ones.
    for number, (sharpness, time) in enumerate(zip((0.0, 1.0, 4.0), _times(flow), strict=True)):
        point = (jax.random.key(number), jnp.asarray(sharpness), jnp.asarray(time))
        curvature = partial(_curvature, flow, *point)
        start = np.random.default_rng(0).normal(size=2 * flow.problem.grid.n_cells)
        first, error = curvature(start)
        if not np.isfinite(first).all():
            return math.nan, 1.0, 0.0
        rounding = max(rounding, float(error))
        if not np.any(first):  # Linear in mu, so there is nothing to iterate on.
            upward = max(upward, 0.0)
            continue
        shape = (len(start), len(start))
        operator = LinearOperator(shape, matvec=lambda x, at=curvature: at(x)[0], dtype=float)
        options = {"k": 1, "v0": start, "return_eigenvectors": False, "tol": 1e-3}
        strongest = max(strongest, abs(float(eigsh(operator, which="LM", **options)[0])))
        upward = max(upward, float(eigsh(operator, which="LA", **options)[0]))
    return upward, strongest, rounding


@eqx.filter_jit
def _curvature(
    flow: Flow, key: Key, sharpness: Array, step: Array, direction: Any
) -> tuple[Float[Array, "entries"], Scalar]:
    """Second derivative of the integrated reward along changes that keep the total mass.

    At random masses of two random actions in every cell; no cell is nearly empty. Also returns what
    rounding may make of it where second derivatives cancel, as in ``mu min(1, cap / mu)``.
    """
    rewards, integrated = _integrated(flow, key, step)
    joint = _random_joint(flow, key, sharpness, empty=0.1)
    along = jnp.asarray(direction, dtype=joint.dtype).reshape(joint.shape)
    slope, change = jax.jvp(jax.grad(integrated), (joint,), (along - jnp.mean(along),))
    unit = jnp.ptp(slope) + jnp.ptp(rewards(joint))
    rounding = 16 * jnp.finfo(joint.dtype).eps * unit / jnp.min(joint)
    return (change - jnp.mean(change)).ravel(), rounding


@eqx.filter_jit
def _above_tangents(flow: Flow, times: Array) -> tuple[Scalar, Scalar]:
    r"""How far the integrated reward $g$ lies above its tangents, and what rounding may make of it.

    The largest $g(y) - g(x) - g'(x) (y - x)$ among random joint masses, from even ones to such with
    nearly all agents in one cell. Unlike the curvature it sees kinks, such as a premium that begins
    where a district is full.
    """

    def at(time: Array) -> tuple[Scalar, Scalar]:
        key = jax.random.fold_in(jax.random.key(3), time)
        rewards, integrated = _integrated(flow, key, time)
        sharpness = jnp.geomspace(0.5, 100.0, 16)
        draw = partial(_random_joint, flow, empty=0.02)
        joints = jax.vmap(draw)(jax.random.split(key, len(sharpness)), sharpness)
        values, slopes = jax.lax.map(jax.value_and_grad(integrated), joints)
        risen = jnp.einsum("ika,jka->ij", slopes, joints)
        above = values - values[:, None] - (risen - jnp.diag(risen)[:, None])
        unit = jnp.max(jnp.abs(slopes)) + jnp.max(jnp.abs(jax.lax.map(rewards, joints)))
        return jnp.max(above), 100 * jnp.finfo(joints.dtype).eps * unit

    above, rounding = jax.lax.map(at, times)
    worst = jnp.argmax(above - rounding)
    return above[worst], rounding[worst]


def _integrated(flow: Flow, key: Key, step: Array) -> tuple[Any, Any]:
    """Rewards, and their sum over the agents, of joint masses of two random actions a cell."""
    problem = flow.problem
    actions = problem.actions.sample(key, (problem.grid.n_cells, 2)).astype(problem.initial.dtype)

    def rewards(joint: Array) -> Array:
        law = ActionLaw(actions=actions, weights=joint)
        return flow.rewards(jnp.sum(joint, axis=1), law, step)

    return rewards, lambda joint: jnp.sum(joint * rewards(joint))


def _random_joint(flow: Flow, key: Key, sharpness: Array, *, empty: float) -> Array:
    """A random distribution over cells and two actions; ``empty`` of it is even."""
    n, keys = flow.problem.grid.n_cells, jax.random.split(key)
    mass = jax.nn.softmax(sharpness * jax.random.normal(keys[0], (n,)))
    share = jax.random.uniform(keys[1], (n, 1), minval=0.2, maxval=0.8)
    joint = ((1 - empty) * mass + empty / n)[:, None] * jnp.concatenate([share, 1 - share], axis=1)
    return joint.astype(flow.problem.initial.dtype)
