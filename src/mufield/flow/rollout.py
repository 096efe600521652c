"""One scan forwards over an episode, r-hat and J (lemma DistMDP), and one backwards."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _types
from .._types import Mass, Scalar, Step
from ..constraints.lagrangian import Penalty
from ..policies.base import Profile, as_profile
from ..policies.tables import TablePolicy
from ..problem import Motion, Problem
from .dependence import depends_on_mu
from .landing import Pieces, Tables
from .phi import AbstractPhi, Departure, rest_law
from .stencil import UNROLLED
from .windows import Windows


class Rollout(eqx.Module):
    """One episode of the population.

    Attributes:
        mass: The distributions mu_0, ..., mu_H.
        rewards: The integrated rewards r-hat, one for each paid step.
        value: Their sum J.
    """

    mass: _types.Masses
    rewards: Float[Array, "paid_steps"]
    value: Scalar


class PolicyCheck(eqx.Module):
    """What a policy and a motion did at each step, to be checked afterwards.

    Attributes:
        allowed: Whether all actions with weight, in cells with mass, are in the action space.
        weight_error: Largest difference from one of the sum of a cell's weights, where it has mass.
        least_weight: The smallest weight, which must not be negative.
        farthest: The longest displacement on each axis that agents aimed at.
    """

    allowed: Bool[Array, "*steps"]
    weight_error: Float[Array, "*steps"]
    least_weight: Float[Array, "*steps"]
    farthest: Float[Array, "*steps dim"]

    @classmethod
    def of(cls, problem: Problem, mass: Mass, leaving: Departure) -> "PolicyCheck":
        """The figures of one step."""
        law, displacement = leaving.law, leaving.displacement
        used = (law.weights != 0) & (mass[:, None] > 0)
        total = jnp.where(mass > 0, jnp.sum(law.weights, axis=1), 1.0)
        far = jnp.max(jnp.abs(displacement), axis=(0, 1), where=used[..., None], initial=0.0)
        return cls(
            allowed=jnp.all(problem.actions.contains(law.actions) | ~used),
            weight_error=jnp.max(jnp.abs(total - 1.0)),
            least_weight=jnp.min(law.weights),
            farthest=far,
        )


def forward(
    phi: AbstractPhi,
    problem: Problem,
    inputs: Any,
    step: Callable[[Any, Any, Step], tuple[Any, Any]],
    *,
    start: Mass | None = None,
) -> tuple[_types.Masses, Any, Any]:
    """The population along an episode: the one scan forwards.

    Args:
        phi: The transition.
        problem: The problem; steps before its first one leave the population as it is.
        inputs: What is given to each step, stacked.
        step: From the population, the step's input and number to the next population, and whatever
            is to be kept of the step.
        start: Where the population starts, if not from the problem's initial distribution.

    Returns:
        The distributions mu_0, ..., mu_H; the last population; what was kept, stacked.
    """

    def one(population: Any, rows: tuple[Any, Array]) -> tuple[Any, tuple[Mass, Any]]:
        after, kept = if_begun(problem, rows[1], lambda now: step(now, *rows), population)
        return after, (phi.mass(population), kept)

    begin = phi.start(problem.initial if start is None else start)
    kept_bytes = 4 * phi.floats_kept * problem.horizon * problem.initial.dtype.itemsize
    # Gradients compute steps again where keeping what all of them need would take 256 MB.
    scanned = jax.checkpoint(one) if kept_bytes > 1 << 28 else one
    end, (before, kept) = jax.lax.scan(scanned, begin, (inputs, problem.steps))
    return jnp.concatenate([before, phi.mass(end)[None]]), end, kept


def rollout(
    phi: AbstractPhi, problem: Problem, policy: Any, motion: Motion
) -> tuple[Rollout, PolicyCheck]:
    """The flow of an episode under a policy profile and a motion, and what to check of it."""
    profile = as_profile(policy, problem.horizon)
    law = jax.eval_shape(lambda: profile.at(0).at_cells(phi.grid, problem.initial, 0))
    problem.check_action(law.actions.shape[2:])  # before motions are asked for such actions
    stepwise = profile.per_step is not None and not profile.sees_mu
    if stepwise and phi.centred and not profile.by_cell:
        # Laws of networks that do not see mu are computed for all steps at once, which is faster.
        at: Any = jax.vmap(
            lambda part, h: profile.join(part).at_cells(phi.grid, problem.initial, h)
        )
        laws = at(profile.per_step, problem.steps)
        profile = Profile.stacked(TablePolicy(laws.actions, laws.weights), problem.horizon)
    if stepwise and isinstance(phi, Windows) and _fixes_windows(phi, problem, profile, motion):
        return _with_windows_ahead(phi, problem, profile, motion)

    def step(population: Any, part: Any, number: Step) -> tuple[Any, Any]:
        mass = phi.mass(population)
        leaving = phi.depart(population, profile.join(part), motion, number)
        after = phi.push(mass[:, None] * leaving.law.weights, leaving.targets, mass, number)
        earned = phi.earn(population, leaving, problem.reward, number)
        return after, (earned, PolicyCheck.of(problem, mass, leaving))

    mass, end, (rewards, checks) = forward(phi, problem, profile.per_step, step)
    return complete(phi, problem, mass, rewards, end), checks


def _fixes_windows(phi: Windows, problem: Problem, profile: Profile, motion: Motion) -> bool:
    """Whether mass moves by small windows alone that do not depend on mu.

    Then those of all steps are computed ahead, which is faster; for laws of several actions they
    would take much memory.
    """
    if not isinstance(phi.landing, Tables):
        return False
    small = phi.floats_kept * problem.horizon <= 1 << 24
    small = small and math.prod(phi.landing.window) <= UNROLLED
    law = jax.eval_shape(lambda: profile.at(0).at_cells(phi.grid, problem.initial, 0))
    return small and law.weights.shape[1] == 1 and not depends_on_mu(problem, motion)


def _with_windows_ahead(
    phi: Windows, problem: Problem, profile: Profile, motion: Motion
) -> tuple[Rollout, PolicyCheck]:
    tables = phi.landing
    assert isinstance(tables, Tables)

    def ahead(part: Any, number: Step) -> tuple[Departure, Pieces]:
        leaving = phi.depart(problem.initial, profile.join(part), motion, number)
        weights, std = leaving.law.weights, phi.std(problem.initial.dtype)
        return leaving, tables.pieces(weights, phi.in_cells(leaving.targets), std, many=True)

    def step(mass: Mass, row: tuple[Departure, Pieces], number: Step) -> tuple[Mass, PolicyCheck]:
        leaving, pieces = row
        return tables.carry(pieces, mass), PolicyCheck.of(problem, mass, leaving)

    leaving, pieces = jax.vmap(ahead)(profile.per_step, problem.steps)
    mass, end, checks = forward(phi, problem, (leaving, pieces), step)
    earn: Any = jax.vmap(lambda now, row, number: phi.earn(now, row, problem.reward, number))
    rewards = earn(mass[:-1], leaving, problem.steps)
    if problem.first is not None:
        rewards = jnp.where(problem.begun, rewards, 0.0)
    return complete(phi, problem, mass, rewards, end), checks


def complete(
    phi: AbstractPhi, problem: Problem, mass: _types.Masses, rewards: Array, end: Any
) -> Rollout:
    """An episode from its distributions, the rewards of its moves and its last population."""
    if problem.pay_end:
        rewards = jnp.append(rewards, _end_reward(phi, problem, end))
    return Rollout(mass=mass, rewards=rewards, value=jnp.sum(rewards))


def _end_reward(phi: AbstractPhi, problem: Problem, end: Any) -> Scalar:
    """The integrated reward of the last population, with agents at rest where they stand."""
    law = rest_law(problem)
    still = Departure(law, jnp.zeros((phi.grid.n_cells, 1, phi.grid.dim), law.weights.dtype), None)
    return phi.earn(end, still, problem.reward, problem.horizon)


class Choices(eqx.Module):
    """What agents in each cell can choose from at one step of an episode.

    Attributes:
        weights: Probability of each choice.
        step: A function of the joint mass of cells and choices, and of the distribution that
            motion and reward see; returns the next distribution and the integrated reward.
        usable: Which choices the best response may use; all of them if it is None.
    """

    weights: Float[Array, "cells choices"]
    step: Callable[[Array, Mass], tuple[Mass, Scalar]]
    usable: Bool[Array, "cells choices"] | None = None


def backward(
    phi: AbstractPhi,
    problem: Problem,
    mass: _types.Masses,
    inputs: Any,
    choices: Callable[[Any, Mass, Step], Choices],
    *,
    bound: bool = True,
    penalty: Penalty | None = None,
) -> tuple[Float[Array, "steps cells choices"], Scalar]:
    """The derivatives of J by the joint mass of cells and choices: the one scan backwards.

    Args:
        phi: The transition, whose population is the distribution.
        problem: The problem.
        mass: The distributions of the episode.
        inputs: What is given to ``choices`` for each step, stacked.
        choices: Returns what agents can choose from, given one step's input, distribution, number.
        bound: Whether to compute the gap, a third of the work; otherwise it is infinite.
        penalty: What constraints add to J, whose derivatives are added.

    Returns:
        The derivatives, and how much the best response to the linearised reward would gain.
    """

    def one(values: tuple[Mass, Mass], rows: tuple[Any, ...]) -> tuple[tuple[Mass, Mass], Array]:
        return if_begun(problem, rows[-1], lambda now: back(now, *rows), values)

    def back(
        carry: tuple[Mass, Mass], row: Any, now: Mass, slope: Mass | None, number: Step
    ) -> tuple[tuple[Mass, Mass], Array]:
        values, best = carry
        options = choices(row, now, number)
        # mu matters twice: as the joint mass that moves, and as what motion and reward see.
        (_, reward), pull = jax.vjp(options.step, now[:, None] * options.weights, now)
        by_choice, by_mu = pull((values, jnp.ones_like(reward)))
        if slope is not None:
            by_mu = by_mu + slope
        values = jnp.sum(options.weights * by_choice, axis=1) + by_mu
        if bound:
            best_by_choice, _ = pull((best, jnp.ones_like(reward)))
            if options.usable is not None:
                best_by_choice = jnp.where(options.usable, best_by_choice, -jnp.inf)
            best = jnp.max(best_by_choice, axis=1) + by_mu
        return (values, best), by_choice

    last = jnp.zeros_like(problem.initial)
    if problem.pay_end:
        last = jax.grad(lambda end: _end_reward(phi, problem, end))(mass[-1])
    slopes = None
    if penalty is not None:
        slopes, last = penalty.slopes[:-1], last + penalty.slopes[-1]
    (values, best), action_values = jax.lax.scan(
        one, (last, last), (inputs, mass[:-1], slopes, problem.steps), reverse=True
    )
    gap = jnp.vdot(problem.initial, best - values)
    return action_values, gap if bound else jnp.full_like(gap, jnp.inf)


def if_begun(
    problem: Problem, step: Step, run: Callable[[Any], tuple[Any, Any]], carry: Any
) -> tuple[Any, Any]:
    """A step of a scan, ``run(carry)``; before the problem's first step nothing happens.

    Then the carry stays as it is, and what ``run`` would give besides is zero.
    """
    if problem.first is None:
        return run(carry)
    shapes = jax.eval_shape(run, carry)[1]

    def wait(carry: Any) -> tuple[Any, Any]:
        return carry, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    done: tuple[Any, Any] = jax.lax.cond(step >= problem.first, run, wait, carry)
    return done
