"""One scan forwards over an episode: the distributions, r-hat and J (lemma DistMDP)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._arrays import Margins, Mass, Masses, Scalar, Step
from ..errors import MASS_TOLERANCE
from ..policies.base import ActionLaw, Profile, checked_profile
from ..policies.tables import TablePolicy
from ..problem import Motion, Problem
from ..space.measure import at_all_cells
from .phi import AbstractPhi, Arrivals, Displacements, displacements, integrated_reward

MOST_KEPT = 1 << 28
"""Bytes that the gradient of an episode may keep; if it would be more, steps are computed again."""


class Rollout(eqx.Module):
    """One episode of the population.

    Attributes:
        mass: The distributions mu_0, ..., mu_H.
        rewards: The integrated rewards r-hat, one for each paid step.
        value: Their sum J.
        margins: With shocks, how far inside its constraints the path is, or each of the paths if
            this is their mean; else None.
    """

    mass: Masses
    rewards: Float[Array, "paid_steps"]
    value: Scalar
    margins: Margins | None = None


class Misuse(NamedTuple):
    """Invalid actions, weights and motion results at one step.

    Entries whose mass or weight is zero do not count.

    Attributes:
        actions: Actions that are not in the action space.
        weights: Cells whose weights are negative or do not sum to one.
        targets: Results of the motion beyond ``max_move``, or on nodes no probabilities.
    """

    actions: Bool[Array, "cells moves"]
    weights: Bool[Array, "cells"]
    targets: Bool[Array, "cells moves"]

    @classmethod
    def of(cls, problem: Problem, mass: Mass, law: ActionLaw, targets: Displacements) -> "Misuse":
        """What is wrong at one step."""
        used = (law.weights != 0) & (mass[:, None] > 0)
        fits = problem.actions.contains(law.actions, jnp.arange(len(mass))[:, None])
        even = jnp.abs(jnp.sum(law.weights, axis=1) - 1.0) <= MASS_TOLERANCE
        even = (even | ~(mass > 0)) & jnp.all(law.weights >= 0, axis=1)
        possible = problem.grid.possible(targets, problem.max_move)
        return cls(used & ~fits, ~even, used & ~possible)

    @property
    def any(self) -> Bool[Array, ""]:
        """Whether anything is wrong."""
        return jnp.any(self.actions) | jnp.any(self.weights) | jnp.any(self.targets)


def forward(
    phi: AbstractPhi,
    problem: Problem,
    inputs: Any,
    step: Callable[[Mass, Any, Step], tuple[Arrivals, Any]],
    *,
    start: Mass | None = None,
) -> tuple[Masses, Any]:
    """The distributions mu_0, ..., mu_H of an episode and what steps keep: the one scan forwards.

    Args:
        phi: The transition.
        problem: The problem; steps before its first one leave mu as it is.
        inputs: What is given to each step, stacked.
        step: From the distribution, the step's input and number to where agents arrive (see
            `AbstractPhi.push`), and whatever is to be kept of the step.
        start: The first distribution; by default the problem's initial one.
    """

    def one(now: Arrivals, rows: tuple[Any, Array]) -> tuple[Arrivals, tuple[Mass, Any]]:
        after, kept = if_begun(problem, rows[1], lambda now: advance(now, *rows), now)
        return after, (now[0], kept)

    def advance(now: Arrivals, row: Any, number: Step) -> tuple[Arrivals, Any]:
        arrivals, kept = step(now[0], row, number)
        return one_step_later(now, arrivals), kept

    begin = problem.initial_arrivals if start is None else problem.initial_arrivals.at[0].set(start)
    # The gradient of a step keeps about as much as the tables of Phi, and a few numbers by cell.
    kept = 12 * phi.grid.n_cells + sum(x.size for x in jax.tree.leaves(phi) if eqx.is_array(x))
    kept_bytes = kept * problem.horizon * problem.initial.dtype.itemsize
    scanned = jax.checkpoint(one) if kept_bytes > MOST_KEPT else one
    end, (before, kept) = jax.lax.scan(scanned, begin, (inputs, problem.steps))
    return jnp.concatenate([before, end[:1]]), kept


def one_step_later(now: Arrivals, arrivals: Arrivals) -> Arrivals:
    """The population after a step; the first row are the agents that are free.

    To those who left for somewhere come those who were under way before.
    """
    return arrivals if len(now) == 1 else arrivals.at[:-1].add(now[1:])


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

    return jax.lax.cond(step >= problem.first, run, wait, carry)


def arriving(phi: AbstractPhi, problem: Problem, mass: Float[Array, "steps cells"]) -> Any:
    """Agents whose trips of several steps end after the last move, given mu before each."""
    trips = problem.trips
    if trips is None or trips.stages == 0:
        return 0.0

    def one(now: Arrivals, row: tuple[Mass, Step]) -> tuple[Arrivals, Mass]:
        def advance(now: Arrivals) -> tuple[Arrivals, Mass]:
            taken = row[0] * phi.chances(*row)
            return one_step_later(now, trips.ends(taken, row[1])), now[1]

        return if_begun(problem, row[1], advance, now)

    return jax.lax.scan(one, problem.initial_arrivals, (mass, problem.steps))[1][-1]


def rollout(
    phi: AbstractPhi, problem: Problem, policy: Any, motion: Motion
) -> tuple[Rollout, Bool[Array, "steps"]]:
    """The flow of an episode under a policy profile and a motion, and steps with any `Misuse`."""
    profile = checked_profile(policy, problem)
    law = jax.eval_shape(lambda: profile.at(0).at_cells(phi.grid, problem.initial, 0))
    problem.check_action(law.actions.shape[2:])  # before motions are asked for such actions
    if profile.per_step is not None and not (profile.sees_mu or profile.by_cell):
        # Laws of networks that do not see mu are computed for all steps at once, which is faster.
        at: Any = jax.vmap(lambda own, h: profile.join(own).at_cells(phi.grid, problem.initial, h))
        laws = at(profile.per_step, problem.steps)
        profile = Profile.stacked(TablePolicy(laws.actions, laws.weights), problem.horizon)

    def step(mass: Mass, part: Any, number: Step) -> tuple[Arrivals, Any]:
        law = profile.join(part).at_cells(phi.grid, mass, number)
        targets = displacements(phi.grid, mass, motion, law.actions, number)
        after = phi.push(mass[:, None] * law.weights, targets, mass, number)
        earned = integrated_reward(phi.grid, mass, law, problem.reward, number)
        return after, (earned, Misuse.of(problem, mass, law, targets).any)

    mass, (rewards, misused) = forward(phi, problem, profile.per_step, step)
    return assemble_rollout(problem, mass, rewards), misused


def assemble_rollout(problem: Problem, mass: Masses, rewards: Array) -> Rollout:
    """An episode from its distributions and the rewards of its moves."""
    if problem.pay_end:
        rewards = jnp.append(rewards, end_reward(problem, mass[-1]))
    return Rollout(mass=mass, rewards=rewards, value=jnp.sum(rewards))


def end_reward(problem: Problem, mass: Mass) -> Scalar:
    """The integrated reward of the last distribution, with agents at rest at cell centres."""
    return jnp.vdot(mass, end_rewards(problem, mass))


def end_rewards(problem: Problem, mass: Mass) -> Mass:
    """The reward of one agent at rest at each cell centre, given the last distribution."""
    rest = jnp.asarray(problem.actions.rest, dtype=mass.dtype)
    actions = jnp.broadcast_to(rest, (len(mass), 1, len(rest)))
    return at_all_cells(problem.grid, mass, problem.reward, actions, problem.horizon)[:, 0]
