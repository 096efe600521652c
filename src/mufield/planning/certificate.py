"""How far from the global optimum a plan can be.

Where the motion does not depend on mu, the distributions are linear in the joint mass of cells
and actions, and if the integrated reward is concave in it, so is J over randomised policies. The
tangent at any plan then lies above J everywhere: the value of the best response to the
linearised reward, one backward sweep, bounds the optimum.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Key
from ..flow.dependence import depends_on_mu
from ..flow.moves import MoveFlow
from ..flow.objective import Flow
from ..policies.base import ActionLaw, Profile, as_profile
from ..problem import Box, Motion, MoveSet

CONCAVITY_TESTS = 64
"""Random pairs of joint distributions on which concavity of the reward is tested."""


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


class OutsideClassError(ValueError):
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
    value, gap = _certify(moves, profile)
    return Certificate(value=float(value), gap=max(0.0, float(gap)))


def check_class(flow: Flow, motion: Motion, *, key: Key | None = None) -> None:
    """Raises `OutsideClassError` unless the motion ignores mu and the reward looks concave.

    Concavity is tested on random pairs: a counterexample refuses the certificate, but none found
    is no proof.
    """
    problem = flow.problem
    if depends_on_mu(problem, motion):
        raise OutsideClassError(
            "no certificate: the motion depends on mu, so J is not concave over randomised "
            "policies and a gradient bounds nothing; compare with other plans instead"
        )
    worst = float(_worst_midpoint(flow, jax.random.key(0) if key is None else key))
    if worst < -1e-4:
        raise OutsideClassError(
            "no certificate: the reward is not concave in mu; between two distributions the "
            f"integrated reward was {-worst:.3g} below their average"
        )


@eqx.filter_jit
def _certify(moves: MoveFlow, profile: Profile) -> tuple[Array, Array]:
    flow = moves.flow
    problem = flow.problem
    rollout = flow.rollout(profile, moves.motion)

    def own_step(actions: Array, joint: Array, mass: Array) -> tuple[Array, Array]:
        law = ActionLaw(actions=actions, weights=joint)
        landed = flow.step_joint(jnp.ones_like(mass), mass, law, moves.motion)
        return landed, jnp.sum(joint * flow.rewards(mass, law))

    def move_step(joint: Array, mass: Array) -> tuple[Array, Array]:
        return moves.push(joint, mass), jnp.sum(joint * moves.rewards(mass))

    none = jnp.zeros(moves.actions.shape[:2], dtype=problem.initial.dtype)

    def back(carry: tuple[Array, Array], inputs: Any) -> tuple[tuple[Array, Array], None]:
        values, best = carry
        part, mass = inputs
        law = profile.join(part).at_cells(problem.grid, mass)
        joint = mass[:, None] * law.weights
        (_, reward), pull = jax.vjp(lambda j, m: own_step(law.actions, j, m), joint, mass)
        by_own, by_mu = pull((values, jnp.ones_like(reward)))
        best_own, _ = pull((best, jnp.ones_like(reward)))
        _, pull_move = jax.vjp(lambda j: move_step(j, mass), none)
        (best_move,) = pull_move((best, jnp.ones_like(reward)))
        # A plan's own action counts only where it is in use.
        best_own = jnp.where(law.weights > 0, best_own, -jnp.inf)
        best = jnp.maximum(jnp.max(best_move, axis=1), jnp.max(best_own, axis=1)) + by_mu
        values = jnp.sum(law.weights * by_own, axis=1) + by_mu
        return (values, best), None

    last = jnp.zeros_like(problem.initial)
    if problem.pay_end:
        last = jax.grad(flow.end_reward)(rollout.mass[-1])
    (values, best), _ = jax.lax.scan(
        back, (last, last), (profile.per_step, rollout.mass[:-1]), reverse=True
    )
    return rollout.value, jnp.vdot(problem.initial, best - values)


@eqx.filter_jit
def _worst_midpoint(flow: Flow, key: Key) -> Array:
    """Least of R(midpoint) - mean of R over random pairs, R the integrated reward."""
    problem = flow.problem
    dtype = problem.initial.dtype
    n = problem.grid.n_cells

    def one(key: Key) -> Array:
        mass_key, sharp_key, action_key, share_key = jax.random.split(key, 4)
        # From nearly uniform to nearly a point.
        sharp = 10.0 ** jax.random.uniform(sharp_key, (2, 1), minval=-1.0, maxval=1.5)
        logits = sharp * jax.random.normal(mass_key, (2, n))
        masses = jax.nn.softmax(logits, axis=-1).astype(dtype)
        actions = _random_actions(problem.actions, action_key, (n, 2)).astype(dtype)
        share = jax.random.uniform(share_key, (2, n, 1), dtype=dtype)
        joints = masses[..., None] * jnp.concatenate([share, 1 - share], axis=-1)

        def integrated(joint: Array) -> Array:
            law = ActionLaw(actions=actions, weights=joint)
            return jnp.sum(joint * flow.rewards(jnp.sum(joint, axis=1), law))

        ends = jax.vmap(integrated)(joints)
        middle = integrated(jnp.mean(joints, axis=0))
        return (middle - jnp.mean(ends)) / (1.0 + jnp.max(jnp.abs(ends)))

    return jnp.min(jax.vmap(one)(jax.random.split(key, CONCAVITY_TESTS)))


def _random_actions(
    actions: Box | MoveSet, key: Key, shape: tuple[int, ...]
) -> Float[Array, "..."]:
    if isinstance(actions, MoveSet):
        choice = jax.random.randint(key, shape, 0, actions.moves.shape[0])
        return actions.moves[choice]
    lower, upper = jnp.asarray(actions.lower), jnp.asarray(actions.upper)
    return lower + (upper - lower) * jax.random.uniform(key, (*shape, actions.dim))
