r"""How far from the global optimum a plan can be.

If the motion does not depend on mu, distributions are linear in the joint mass of cells and
actions; if the integrated reward is concave in that mass, so is J over randomised policies. The
tangent at any plan then lies above J everywhere, so that the best response to the linearised
reward, which takes one backward sweep, bounds the optimum.

How much an action anywhere in the box is worth can be bounded, too. An agent at the centre of a
cell that aims at y ends at $y + \sigma \xi$ with a standard normal $\xi$, and walls and borders
decide in which cell it rests. Whatever they decide, its future is worth
$G(y) = \mathbb{E}[v(y + \sigma \xi)]$, where v takes the values of cells in its window. In units of
$\sigma$, the third derivative of G along any direction u is

$$\mathbb{E}[v\, ((\xi \cdot u)^3 - 3\, \xi \cdot u)],$$

so its size is at most $\frac12 \mathbb{E}|\xi_1^3 - 3 \xi_1| = \varphi(0) (1 + 4 e^{-3/2})$ times
the greatest minus the least of those values. If the motion is affine in the action and the reward a
polynomial of degree two at most, then value, slope and curvature at the middle of a small box and
this bound of the rest bound Q in all of it. Branch and bound does the rest: the boxes with the
highest bounds are cut, again and again.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays import Action, Margins, Mass, Masses, Scalar, State, Step
from ..actions import Box
from ..errors import UserError
from ..flow.backward import Choices, Derivatives, backward
from ..flow.flow import Flow
from ..flow.motions import degree_in_action
from ..flow.moves import MoveFlow
from ..flow.phi import Arrivals, displacements
from ..policies.base import ActionLaw, Profile, checked_profile
from ..problem import Motion, Problem
from ..space.measure import MeanField, at_all_cells
from .concavity import OutsideClassError, why_unbounded

if TYPE_CHECKING:
    from ..constraints.lagrangian import AugmentedLagrangian


class Certificate(eqx.Module):
    """The best policy earns at least ``value``, J of the plan, and at most ``value + gap``.

    With constraints the upper bound is for policies that satisfy them, and the lower one holds only
    if the plan does.

    Attributes:
        value: J of the plan.
        gap: How much more a policy can earn at most.
        violation: By how much the plan violates its worst constraint, as a share of it; else 0.
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


THIRD = (1 + 4 * math.exp(-1.5)) / math.sqrt(2 * math.pi)
"""Bound of the third derivative of a Gaussian average of a function between 0 and 1."""


class BoxSearch(eqx.Module):
    """Branch and bound over the action box, in all cells at once.

    Attributes:
        proves: Whether `best` is an upper bound; else the greatest value that was found.
        points: Boxes on each axis at the start.
        kept: How many of them, the most promising in each cell, are cut in two on each axis.
    """

    flow: Flow
    motion: Motion
    proves: bool = eqx.field(static=True)
    points: int = eqx.field(static=True)
    kept: int = eqx.field(static=True)

    def __init__(self, flow: Flow, motion: Motion):
        """Looks at the programs of motion and reward, to tell whether there can be a proof."""
        dim = flow.problem.actions.dim
        self.flow, self.motion = flow, motion
        self.points, self.kept = {1: 64, 2: 32}.get(dim, 10), 8 << dim
        self.proves = _has_proof(flow.problem, motion)

    def best(self, values: Arrivals, mass: Mass, step: Step) -> Mass:
        """The most that an action is worth in each cell, from ``values`` of where agents arrive."""
        box, dtype = self.flow.problem.actions, mass.dtype
        assert isinstance(box, Box)
        lower, upper = (jnp.asarray(end, dtype=dtype) for end in (box.lower, box.upper))
        half = (upper - lower) / (2 * self.points)
        middles = box.points(self.points, border=False).astype(dtype)
        middles = jnp.broadcast_to(middles, (len(mass), *middles.shape))
        corners = jnp.asarray([*itertools.product((-0.5, 0.5), repeat=box.dim)], dtype=dtype)
        found = settled = jnp.full_like(mass, -jnp.inf)
        # Not of motions without a proof, which may have no derivatives forwards.
        third = self._third(values[0], mass, step) if self.proves else None
        for last in (False, True):
            worth, slopes = self._values(middles, values, mass, step)
            found = jnp.maximum(found, jnp.max(worth, axis=1))
            bounds = worth + jnp.abs(slopes) @ half
            if third is not None:
                bends = self._curvature(middles, values, mass, step)
                bounds = bounds + 0.5 * jnp.einsum("i,kmij,j->km", half, bends, half)
                bounds = bounds + third(half)[:, None]
            if last:
                settled = jnp.maximum(settled, jnp.max(bounds, axis=1))
                break
            order = jnp.argsort(bounds, axis=1, descending=True)
            best_left = jnp.take_along_axis(bounds, order[:, self.kept, None], axis=1)[:, 0]
            settled = jnp.maximum(settled, best_left)
            cut = jnp.take_along_axis(middles, order[:, : self.kept, None], axis=1)
            middles = (cut[:, :, None] + corners * half).reshape(len(mass), -1, box.dim)
            half = half / 2
        return settled if self.proves else found

    def _values(
        self, actions: Float[Array, "cells actions dim"], values: Arrivals, mass: Mass, step: Step
    ) -> tuple[Float[Array, "cells actions"], Float[Array, "cells actions dim"]]:
        """Q of each action, and its derivative by the action."""
        problem, phi = self.flow.problem, self.flow.phi

        def outcome(joint: Array, actions: Array) -> tuple[Arrivals, Scalar]:
            moved = displacements(problem.grid, mass, self.motion, actions, step)
            paid = self.flow.rewards(mass, ActionLaw(actions, joint), step)
            return phi.push(joint, moved, mass, step), jnp.sum(joint * paid)

        # Linear in the joint mass, so that a mass of one gives the values of all actions.
        ones = jnp.ones(actions.shape[:2], dtype=mass.dtype)
        (_, paid), pull = jax.vjp(outcome, ones, actions)
        return pull((values, jnp.ones_like(paid)))

    def _curvature(
        self, actions: Float[Array, "cells actions dim"], values: Arrivals, mass: Mass, step: Step
    ) -> Float[Array, "cells actions dim dim"]:
        """Bounds of the second derivatives of Q by the action, by entry, as far as they raise Q."""
        axes = jnp.eye(actions.shape[-1], dtype=actions.dtype)
        # Backwards, because the flow has no derivative forwards.
        _, pull = jax.vjp(lambda a: self._values(a, values, mass, step)[1], actions)
        bends = jnp.stack([pull(jnp.broadcast_to(u, actions.shape))[0] for u in axes], axis=-1)
        return jnp.where(axes == 1, jnp.maximum(bends, 0.0), jnp.abs(bends))

    def _third(self, values: Mass, mass: Mass, step: Step) -> Callable[[Array], Mass]:
        """How much third derivatives can raise Q in a box of actions, from half of its sides."""
        problem = self.flow.problem
        rest = jnp.asarray(problem.actions.rest, dtype=mass.dtype)

        def slopes(state: State, action: Action, mu: MeanField) -> Array:
            return jax.jacfwd(lambda a: jnp.asarray(self.motion(state, a, mu)))(action)

        actions = jnp.broadcast_to(rest, (len(mass), 1, len(rest)))
        gain = jnp.abs(at_all_cells(problem.grid, mass, slopes, actions, step)[:, 0])
        gain = gain / jnp.asarray([std or 1.0 for std in problem.noise_std], mass.dtype)[:, None]
        landing, least, most = self.flow.phi.landing, jnp.min(values), jnp.max(values)
        window = jnp.zeros((len(mass), math.prod(landing.window)), dtype=mass.dtype)
        _, pull = jax.vjp(landing.arrive, window)  # values of where windows end; of walls zero
        above, below = (jnp.max(pull(each)[0], axis=1) for each in (values - least, most - values))
        factor = THIRD * (above + below - (most - least)) / 6
        return lambda half: factor * jnp.linalg.norm(gain @ half, axis=-1) ** 3


def _has_proof(problem: Problem, motion: Motion) -> bool:
    """Whether the bound at the head of this file is proved: all that it assumes holds here."""
    sizes = np.asarray(problem.grid.cell_size) * problem.grid.shape
    axes = zip(problem.max_move, sizes, problem.grid.periodic, strict=True)
    return (
        all(std > 0 for std in problem.noise_std)
        and all(2 * far <= size or not periodic for far, size, periodic in axes)
        and degree_in_action(problem, motion) <= 1
        and degree_in_action(problem, problem.reward) <= 2
    )


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
    if why := why_unbounded(flow, motion):
        raise OutsideClassError(why)
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
    lagrangian = constraints.lagrangian(constraints.active(problem.begun), one)
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
