"""How far from the global optimum a plan can be.

If the motion does not depend on mu, distributions are linear in the joint mass of cells and
actions; if the integrated reward is concave in that mass, so is J over randomised policies. The
tangent at any plan then lies above J everywhere, so that the best response to the linearised
reward, which takes one backward sweep, bounds the optimum.
"""

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Margins, Mass, Masses, Scalar, Step
from ..actions import Box
from ..errors import UserError
from ..flow.backward import Choices, Derivatives, backward
from ..flow.flow import Flow
from ..flow.moves import MoveFlow
from ..flow.phi import Arrivals, displacements
from ..policies.base import Profile, checked_profile
from ..problem import Motion, Problem
from .box import BoxSearch
from .concavity import check_class

if TYPE_CHECKING:
    from ..constraints.lagrangian import AugmentedLagrangian


class Certificate(eqx.Module):
    """The best policy earns at least ``value``, J of the plan, and at most ``value + gap``.

    With constraints the upper bound is for policies that satisfy them, and the lower one holds only
    if the plan does.

    Attributes:
        value: J of the plan.
        gap: How much more a policy can earn at most.
        violation: By how much the plan violates its worst constraint, as a share of it; 0 if it
            satisfies all.
        proof: What the bound covers. ``"box"``: all policies, whatever actions of the box they
            draw from, up to rounding. ``"numerical"``: all policies, but the greatest value of an
            action was searched for and not proved. ``"moves"``: policies over listed moves.
    """

    value: float = eqx.field(static=True)
    gap: float = eqx.field(static=True)
    violation: float = eqx.field(static=True, default=0.0)
    proof: str = eqx.field(static=True, default="moves")

    @property
    def upper(self) -> float:
        """Upper bound of the optimum."""
        return self.value + self.gap


def certify(
    flow: Flow,
    motion: Motion,
    policy: Any,
    actions: Float[Array, "moves action_dim"] | None = None,
    *,
    multipliers: Margins | None = None,
) -> Certificate:
    """Bounds how far a plan is from the best randomised policy.

    The bound covers all policies with actions anywhere in the box. It is proved if there is noise
    on every axis, the motion is affine in the action and the reward a polynomial of it of degree
    two at most; else `Certificate.proof` is ``"numerical"``. Of a `MoveSet`, or if ``actions`` are
    listed, it covers policies that draw from those and from the plan's own actions.

    Args:
        flow: The problem's flow.
        motion: The law of motion.
        policy: Any plan: a profile, a policy or a function.
        actions: The moves that other policies may use; by default any.
        multipliers: Of the constraints, for each step and margin; `MirrorResult.multipliers` are
            good ones. The bound holds for any that are not negative; without them it is that of the
            problem without constraints.

    Raises:
        OutsideClassError: If the motion depends on mu, or the reward was seen not to be concave.
    """
    check_class(flow, motion)
    return certificate(flow, motion, policy, actions, multipliers)


def certificate(
    flow: Flow, motion: Motion, policy: Any, actions: Array | None, multipliers: Margins | None
) -> Certificate:
    """`certify` for a problem that is known to be of the right class."""
    profile, box = checked_profile(policy, flow.problem), flow.problem.actions
    lagrangian = _lagrangian(flow.problem, multipliers)
    others: MoveFlow | BoxSearch
    if actions is None and isinstance(box, Box):
        others = BoxSearch(flow, motion)
        proof = "box" if others.proves else "numerical"
    else:
        others, proof = MoveFlow(flow, motion, actions), "moves"
    value, gap, violation = (float(x) for x in _certify(others, profile, lagrangian))
    if not (math.isfinite(value) and math.isfinite(gap)):
        raise UserError(
            f"no certificate: J is {value} and the bound {gap}; the motion, the reward or their "
            "derivatives are not finite along the plan"
        )
    # Rounding may make the gap negative; and with constraints a plan that violates them.
    gap = gap if lagrangian is not None else max(0.0, gap)
    return Certificate(value, gap, max(0.0, violation), proof)


def _lagrangian(problem: Problem, multipliers: Margins | None) -> "AugmentedLagrangian | None":
    constraints, one = problem.constraints, jnp.ones((), dtype=problem.initial.dtype)
    if constraints is None:
        if multipliers is not None:
            raise UserError("the problem has no constraints; leave out the multipliers")
        return None
    lagrangian = constraints.lagrangian(problem.begun, one)
    if multipliers is None:
        return lagrangian
    if multipliers.shape != lagrangian.multipliers.shape or not bool(jnp.all(multipliers >= 0)):
        raise UserError(
            "multipliers must be zero or more and have the shape "
            f"{lagrangian.multipliers.shape}, moves by margins; got {multipliers.shape}"
        )
    return replace(lagrangian, multipliers=multipliers.astype(one.dtype))


@eqx.filter_jit
def _certify(
    others: MoveFlow | BoxSearch, profile: Profile, lagrangian: "AugmentedLagrangian | None"
) -> tuple[Array, Array, Array]:
    """J of the plan, the gain of the best response, and by how much constraints are violated.

    The response draws from other moves, or from the box, and from the plan's own actions. With
    constraints the gain is that of the Lagrangian over J of the plan.
    """
    rollout = others.flow.rollout(profile, others.motion)
    penalty = None if lagrangian is None else lagrangian(rollout.mass, augmented=False)
    slopes = None if penalty is None else penalty.slopes
    gap = plan_derivatives(others, profile, rollout.mass, slopes=slopes).gap
    if penalty is None:
        return rollout.value, gap, jnp.zeros_like(gap)
    return rollout.value, gap + penalty.plain, -jnp.min(penalty.slack)


def plan_derivatives(
    others: MoveFlow | BoxSearch, profile: Profile, mass: Masses, **settings: Any
) -> Derivatives:
    """The derivatives along a plan, and what other moves, or others of the box, would gain.

    ``settings`` are those of `backward`.
    """
    flow, motion = others.flow, others.motion
    problem, phi = flow.problem, flow.phi

    def choices(part: Any, mass: Mass, number: Step) -> Choices:
        law = profile.join(part).at_cells(problem.grid, mass, number)
        own = law.weights.shape[1]

        def step(joint: Array, seen: Mass, _: Array | None) -> tuple[Arrivals, Scalar]:
            moved = displacements(problem.grid, seen, motion, law.actions, number)
            landed = phi.push(joint[:, :own], moved, seen, number)
            paid = jnp.sum(joint[:, :own] * flow.rewards(seen, law, number))
            if isinstance(others, BoxSearch):
                return landed, paid
            elsewhere, paid_there = others.step(joint[:, own:], seen, number)
            return landed + elsewhere, paid + paid_there

        # The plan's own actions are available only where it uses them.
        if isinstance(others, BoxSearch):
            in_box = partial(others.best, mass=mass, step=number)
            return Choices(law.weights, step, law.weights > 0, best=in_box)
        unused = jnp.zeros(others.actions.shape[:2], dtype=law.weights.dtype)
        usable = jnp.concatenate([law.weights > 0, jnp.ones_like(unused, dtype=bool)], axis=1)
        return Choices(jnp.concatenate([law.weights, unused], axis=1), step, usable)

    return backward(problem, mass, profile.per_step, choices, **settings)
