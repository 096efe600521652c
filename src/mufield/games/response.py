r"""What one agent can gain while all others go on as they do.

In a game every agent maximises its own reward. Against a population that one agent cannot change,
its values are

$$Q_h(s, a) = r(s, a, \mu_h) + \mathbb{E}[V_{h+1}(s')], \qquad V_h(s) = \max_a Q_h(s, a),$$

with the reward itself, and not its derivative by mu. The exploitability of a policy is what the
best response earns more than the policy; one that cannot be exploited is a Nash equilibrium.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._arrays import Mass, Scalar, Step
from ..actions import Box, MoveSet
from ..errors import UserError
from ..flow.backward import Choices, Weights, backward
from ..flow.flow import Flow
from ..flow.moves import MoveFlow
from ..flow.phi import Arrivals
from ..flow.rollout import Rollout, assemble_rollout, if_begun
from ..planning.certificate import BoxSearch, plan_derivatives
from ..policies.base import Profile, checked_profile
from ..problem import Motion, Problem


def exploitability(
    flow: Flow,
    motion: Motion,
    policy: Any,
    actions: Float[Array, "*steps_cells moves action_dim"] | None = None,
) -> float:
    """How much one agent gains by its best response while all others follow the policy.

    One population has one kind of agent, so this is also OpenSpiel's NashConv. The response may use
    any action of the box, the moves of a `MoveSet`, or the listed ``actions``, and the policy's
    own. In a box the greatest value is searched for: where `mufield.certify` would prove its bound,
    this is an upper bound, elsewhere the most that was found.
    """
    check_game(flow.problem)
    in_box = actions is None and isinstance(flow.problem.actions, Box)
    moves = None if in_box else MoveFlow(flow, motion, actions, interpolate=False)
    profile = checked_profile(policy, flow.problem)
    return finite_gain(_exploitability(moves or BoxSearch(flow, motion), profile))


@eqx.filter_jit
def _exploitability(others: MoveFlow | BoxSearch, profile: Profile) -> Scalar:
    mass = others.flow.rollout(profile, others.motion).mass
    return plan_derivatives(others, profile, mass, own=True).gap


def finite_gain(found: Scalar) -> float:
    """The exploitability, which rounding may have made negative; raises if it is not finite."""
    if not bool(jnp.isfinite(found)):
        raise UserError(f"exploitability is {found}: check motion and reward by system.evaluate")
    return max(0.0, float(found))


def check_game(problem: Problem) -> None:
    """Raises if it makes no sense that each agent maximises its own reward in this problem."""
    if problem.constraints is not None:
        raise UserError(
            "constraints bind the population, and no single agent: a game has none; leave them out"
        )
    if problem.stationary:
        raise UserError("games need a horizon, but here policies are the same at every step")


class Followers(eqx.Module):
    """A share of the population that follows a plan, given by its weights, whatever others do."""

    weights: Weights
    share: Float[Array, ""]

    def __init__(self, weights: Weights, share: float):
        if not 0 <= share <= 1:
            raise UserError(f"the share that follows the plan must be from 0 to 1, got {share}")
        self.weights, self.share = weights, jnp.asarray(share, dtype=weights.dtype)


class Response(eqx.Module):
    """A policy in its population, and what one agent makes of it.

    Attributes:
        rollout: The population; with `Followers`, all of it.
        values: Q of each step, cell and move, if the agent goes on with the policy.
        best: Q, if it goes on with its best response.
        exploitability: How much more the best response earns.
    """

    rollout: Rollout
    values: Weights
    best: Weights
    exploitability: Scalar


def respond(
    moves: MoveFlow, weights: Weights, followers: Followers | None = None, *, exact: bool = False
) -> Response:
    """The population of a policy forwards, then the values of one agent backwards.

    ``weights`` are of those who do not follow a plan; ``exact`` is that of `MoveFlow.rollout`.
    """
    if followers is None:
        rollout = moves.rollout(weights, exact=exact)
    else:
        rollout = _with_followers(moves, weights, followers, exact)

    def choices(row: tuple[Array, Array], mass: Mass, number: Step) -> Choices:
        def step(joint: Array, seen: Mass, _: Array | None) -> tuple[Arrivals, Scalar]:
            return moves.step(joint, seen, number, exact=exact)

        return Choices(row[0], step, row[1])

    rows = (weights, jnp.broadcast_to(usable(moves), weights.shape))
    found = backward(moves.flow.problem, rollout.mass, rows, choices, own=True)
    assert found.best is not None
    return Response(rollout, found.by_joint, found.best, found.gap)


def usable(moves: MoveFlow) -> Bool[Array, "*steps cells moves"]:
    """Which of the moves a cell has, if they are the problem's own; other lists are used whole."""
    problem, listed = moves.flow.problem, moves.actions
    actions, everything = problem.actions, jnp.ones(listed.shape[:-1], dtype=bool)
    if not isinstance(actions, MoveSet) or actions.available is None:
        return everything
    own = jnp.repeat(actions.by_cell(len(listed)), moves.group, axis=1).astype(listed.dtype)
    if own.shape != listed.shape:
        return everything
    axes = actions.dim - (problem.grid.dim if moves.group > 1 else 0)  # without controls
    others = jnp.any(own[..., :axes] != listed[..., :axes])
    return jnp.repeat(actions.available, moves.group, axis=1) | others


def _with_followers(
    moves: MoveFlow, weights: Weights, followers: Followers, exact: bool
) -> Rollout:
    """The population of two groups, who move by their own policies and see the mass of both."""
    problem = moves.flow.problem
    if len(problem.initial_arrivals) > 1:
        raise UserError("followers need trips of one step, and some take longer; give such trips")

    def one(parts: Array, row: tuple[Array, Step]) -> tuple[Array, tuple[Mass, Scalar]]:
        mass = jnp.sum(parts, axis=(0, 1))
        step = jax.vmap(partial(moves.step, seen=mass, step=row[1], exact=exact))
        after, paid = if_begun(problem, row[1], lambda at: step(at[:, 0, :, None] * row[0]), parts)
        return after, (mass, jnp.sum(paid))

    start = jnp.stack([followers.share, 1.0 - followers.share])[:, None, None] * problem.initial
    laws = jnp.stack([followers.weights, weights], axis=1)
    end, (before, rewards) = jax.lax.scan(one, start, (laws, problem.steps))
    mass = jnp.concatenate([before, jnp.sum(end, axis=(0, 1))[None]])
    return assemble_rollout(problem, mass, rewards)
