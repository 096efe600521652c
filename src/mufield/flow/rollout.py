"""One scan forwards over an episode, r-hat and J (lemma DistMDP), and one backwards."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _types
from .._types import Mass, Scalar, Step
from ..errors import UserError
from ..policies.base import ActionLaw, Profile, checked_profile
from ..policies.tables import TablePolicy
from ..problem import Motion, Problem
from .phi import AbstractPhi, Departure, integrated_reward
from .under_way import if_begun, shifted, under_way


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
        farthest: The longest displacement on each axis that agents aimed at; on nodes, how wrong
            probabilities were, as `mufield.Nodes.extremes` has it.
    """

    allowed: Bool[Array, "*steps"]
    weight_error: Float[Array, "*steps"]
    least_weight: Float[Array, "*steps"]
    farthest: Float[Array, "*steps figures"]

    @classmethod
    def of(cls, problem: Problem, mass: Mass, leaving: Departure) -> "PolicyCheck":
        """The figures of one step."""
        law, cells = leaving.law, jnp.arange(len(mass))[:, None]
        used = (law.weights != 0) & (mass[:, None] > 0)
        total = jnp.where(mass > 0, jnp.sum(law.weights, axis=1), 1.0)
        return cls(
            allowed=jnp.all(problem.allowed(law.actions, cells) | ~used),
            weight_error=jnp.max(jnp.abs(total - 1.0)),
            least_weight=jnp.min(law.weights),
            farthest=problem.grid.extremes(leaving.displacement, used),
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

    def one(carry: Any, rows: tuple[Any, Array]) -> tuple[Any, tuple[Mass, Any]]:
        after, kept = if_begun(problem, rows[1], lambda now: advance(now, *rows), carry)
        return after, (phi.mass(carry[0]), kept)

    def advance(carry: Any, row: Any, number: Step) -> tuple[Any, Any]:
        population, away = carry
        after, kept = step(population, row, number)
        if away is not None:
            mass = phi.mass(population)
            after = phi.add(after, away[0])
            away = shifted(away) + phi.later(mass, mass, number)
        return (after, away), kept

    begin = phi.start(problem.initial if start is None else start), under_way(problem)
    kept_bytes = phi.floats_kept * problem.horizon * problem.initial.dtype.itemsize
    # Gradients compute steps again where keeping what all of them need would take 256 MB.
    scanned = jax.checkpoint(one) if kept_bytes > 1 << 28 else one
    (end, _), (before, kept) = jax.lax.scan(scanned, begin, (inputs, problem.steps))
    return jnp.concatenate([before, phi.mass(end)[None]]), end, kept


def rollout(
    phi: AbstractPhi, problem: Problem, policy: Any, motion: Motion
) -> tuple[Rollout, PolicyCheck]:
    """The flow of an episode under a policy profile and a motion, and what to check of it."""
    profile = checked_profile(policy, problem)
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

    def step(population: Any, part: Any, number: Step) -> tuple[Any, Any]:
        mass = phi.mass(population)
        leaving = phi.depart(population, profile.join(part), motion, number)
        after = phi.push(mass[:, None] * leaving.law.weights, leaving.targets, mass, number)
        earned = phi.earn(population, leaving.law, leaving.targets, problem.reward, number)
        return after, (earned, PolicyCheck.of(problem, mass, leaving))

    mass, end, (rewards, checks) = forward(phi, problem, profile.per_step, step)
    return assemble_rollout(phi, problem, mass, rewards, end), checks


def assemble_rollout(
    phi: AbstractPhi, problem: Problem, mass: _types.Masses, rewards: Array, end: Any
) -> Rollout:
    """An episode from its distributions, the rewards of its moves and its last population."""
    if problem.pay_end:
        rewards = jnp.append(rewards, _end_reward(phi, problem, end))
    return Rollout(mass=mass, rewards=rewards, value=jnp.sum(rewards))


def _end_reward(phi: AbstractPhi, problem: Problem, end: Any) -> Scalar:
    """The integrated reward of the last population, with agents at rest where they stand."""
    return phi.earn(end, _rest_law(problem), None, problem.reward, problem.horizon)


def end_reward(problem: Problem, mass: Mass) -> Scalar:
    """The integrated reward of the last distribution, with agents at rest at cell centres."""
    law, last = _rest_law(problem), problem.horizon
    return integrated_reward(problem.grid, mass, law, problem.reward, last)


def _rest_law(problem: Problem) -> ActionLaw:
    cells, dtype = problem.grid.n_cells, problem.initial.dtype
    rest = jnp.asarray(problem.actions.rest, dtype=dtype)
    return ActionLaw(jnp.broadcast_to(rest, (cells, 1, len(rest))), jnp.ones((cells, 1), dtype))


def check_planned(problem: Problem, motion: Motion, mass: _types.Masses, *values: Any) -> None:
    """Raises unless the figures of a plan with known motion are finite, and says why not.

    ``mass`` are the distributions of the plan's episode.
    """
    if all(bool(jnp.isfinite(value)) for value in values):
        return
    from .diagnose import diagnose  # only needed here

    why = diagnose(problem, motion, mass) or "check the reward and the motion"
    raise UserError(f"no plan with a finite J and derivatives was found: {why}")


class Choices(eqx.Module):
    """What agents in each cell can choose from at one step of an episode.

    Attributes:
        weights: Probability of each choice.
        step: A function of the joint mass of cells and choices, of the distribution that motion
            and reward see, and of ``actions``; returns the next distribution and the integrated
            reward.
        usable: Which choices the best response may use; all of them if it is None.
        actions: The actions, if derivatives by them are wanted.
        best: The values of a best response that may use more than these choices, from those of the
            next step.
    """

    weights: Float[Array, "cells choices"]
    step: Callable[[Array, Mass, Array | None], tuple[Mass, Scalar]]
    usable: Bool[Array, "cells choices"] | None = None
    actions: Float[Array, "cells choices action_dim"] | None = None
    best: Callable[[Mass], Mass] | None = None


class Derivatives(NamedTuple):
    """The derivatives of J along an episode.

    Attributes:
        by_joint: By the joint mass of each step, cell and choice: Q_h(s, a).
        by_actions: By the actions of the choices, if `Choices` has them.
        gap: How much the best response to the linearised reward would gain.
    """

    by_joint: Float[Array, "steps cells choices"]
    by_actions: Float[Array, "steps cells choices action_dim"] | None
    gap: Scalar


def backward(
    phi: AbstractPhi,
    problem: Problem,
    mass: _types.Masses,
    inputs: Any,
    choices: Callable[[Any, Mass, Step], Choices],
    *,
    bound: bool = True,
    slopes: _types.Masses | None = None,
) -> Derivatives:
    """The derivatives of J by the joint mass of cells and choices: the one scan backwards.

    Args:
        phi: The transition, whose population is the distribution.
        problem: The problem.
        mass: The distributions of the episode.
        inputs: What is given to ``choices`` for each step, stacked.
        choices: Returns what agents can choose from, given one step's input, distribution, number.
        bound: Whether to compute the gap, a third of the work; otherwise it is infinite.
        slopes: Derivative by mu_0, ..., mu_H of what is added to J, such as a penalty.
    """

    def one(values: tuple[Array, Array], rows: tuple[Any, ...]) -> tuple[Any, Any]:
        return if_begun(problem, rows[-1], lambda now: back(now, *rows), values)

    def back(
        carry: tuple[Array, Array], row: Any, now: Mass, slope: Mass | None, number: Step
    ) -> tuple[tuple[Array, Array], Any]:
        values, best = carry
        options = choices(row, now, number)

        def step(joint: Array, seen: Mass, actions: Array | None) -> tuple[Any, Scalar]:
            after, reward = options.step(joint, seen, actions)
            if away is None:
                return after[None], reward
            later = phi.later(jnp.sum(joint, axis=1), seen, number)
            return jnp.concatenate([after[None], later]), reward

        # mu matters twice: as the joint mass that moves, and as what motion and reward see.
        joint = now[:, None] * options.weights
        (_, reward), pull = jax.vjp(step, joint, now, options.actions)
        by_choice, by_mu, by_action = pull((values, jnp.ones_like(reward)))
        if slope is not None:
            by_mu = by_mu + slope
        values = before(values, jnp.sum(options.weights * by_choice, axis=1) + by_mu)
        if bound:
            best_by_choice = pull((best, jnp.ones_like(reward)))[0]
            if options.usable is not None:
                best_by_choice = jnp.where(options.usable, best_by_choice, -jnp.inf)
            most = jnp.max(best_by_choice, axis=1)
            if options.best is not None:
                most = jnp.maximum(most, options.best(best[0]) + riding(best, now, number))
            best = before(best, most + by_mu)
        return (values, best), (by_choice, by_action)

    def before(values: Array, now: Mass) -> Array:
        """Values of cells by step from the present one on; agents under way arrive later."""
        return jnp.concatenate([now[None], values[:-1]])

    def riding(best: Array, now: Mass, number: Step) -> Mass | float:
        """What trips that last longer than a step are worth to an agent, whatever its action."""
        if away is None:
            return 0.0
        worth: Mass = jax.vjp(lambda taken: phi.later(taken, now, number), now)[1](best[1:])[0]
        return worth

    away = under_way(problem)
    last = jnp.zeros_like(problem.initial)
    if problem.pay_end:
        last = jax.grad(lambda end: _end_reward(phi, problem, end))(mass[-1])
    if slopes is not None:
        slopes, last = slopes[:-1], last + slopes[-1]
    start = problem.initial[None]
    if away is not None:
        start = jnp.concatenate([start, away])
    ends = jnp.zeros_like(start).at[0].set(last)
    (values, best), (by_joint, by_actions) = jax.lax.scan(
        one, (ends, ends), (inputs, mass[:-1], slopes, problem.steps), reverse=True
    )
    gap = jnp.vdot(start, best - values)
    return Derivatives(by_joint, by_actions, gap if bound else jnp.full_like(gap, jnp.inf))
