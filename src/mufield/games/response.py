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
from jaxtyping import Array, Float

from .._types import Mass, Scalar, Step
from ..actions import Box, MoveSet
from ..errors import UserError
from ..flow.backward import Choices, Weights, backward
from ..flow.flow import Flow
from ..flow.moves import MoveFlow
from ..flow.phi import Arrivals
from ..flow.rollout import Rollout, assemble_rollout, if_begun
from ..planning.box import BoxSearch
from ..planning.certificate import plan_derivatives
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

    Args:
        flow: The problem's flow.
        motion: The law of motion.
        policy: A profile, a policy or a function, which all agents follow.
        actions: The moves that a response may use; by default any.
    """
    check_game(flow.problem)
    profile = checked_profile(policy, flow.problem)
    others: MoveFlow | BoxSearch
    if actions is None and isinstance(flow.problem.actions, Box):
        others = BoxSearch(flow, motion)
    else:
        others = MoveFlow(flow, motion, actions, interpolate=False)
    return finite_gain(_exploitability(others, profile))


@eqx.filter_jit
def _exploitability(others: MoveFlow | BoxSearch, profile: Profile) -> Scalar:
    mass = others.flow.rollout(profile, others.motion).mass
    return plan_derivatives(others, profile, mass, own=True).gap


def finite_gain(found: Scalar) -> float:
    """The exploitability, which rounding may have made negative; raises if it is not finite."""
    if not bool(jnp.isfinite(found)):
        raise UserError(
            f"the exploitability is {float(found)}: motion or reward are not finite for a policy "
            "that was tried; check them with system.evaluate"
        )
    return max(0.0, float(found))


def check_game(problem: Problem) -> None:
    """Raises if it makes no sense that each agent maximises its own reward in this problem."""
    if problem.constraints is not None:
        raise UserError(
            "constraints bind the population, and no single agent: a game has none; leave them "
            "out, or plan with them and take mufield.games.tolls, which make agents satisfy them"
        )
    if problem.stationary:
        raise UserError(
            "games are played step by step, and this problem's policies are the same at every "
            "step; give it a horizon"
        )


class Followers(eqx.Module):
    """A part of the population that follows a plan, whatever the others do.

    Attributes:
        weights: The plan's, over the moves of the game.
        share: Their share of the population, from 0 to 1.
    """

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

    ``weights`` are of those who do not follow a plan. If ``exact``, the motion itself is used where
    kernels would be interpolated.
    """
    if followers is None:
        rollout = moves.rollout(weights, exact=exact)
    else:
        rollout = _with_followers(moves, weights, followers, exact)

    def choices(row: Array, mass: Mass, number: Step) -> Choices:
        def step(joint: Array, seen: Mass, _: Array | None) -> tuple[Arrivals, Scalar]:
            return moves.step(joint, seen, number, exact=exact)

        return Choices(row, step, usable(moves))

    found = backward(moves.flow.problem, rollout.mass, weights, choices, own=True)
    assert found.best is not None
    return Response(rollout, found.by_joint, found.best, found.gap)


def usable(moves: MoveFlow) -> Array | None:
    """Which moves each cell has; None if it has all of them."""
    actions = moves.flow.problem.actions
    if not isinstance(actions, MoveSet) or actions.available is None:
        return None
    return jnp.repeat(actions.available, moves.group, axis=1)


def _with_followers(
    moves: MoveFlow, weights: Weights, followers: Followers, exact: bool
) -> Rollout:
    """The population of two groups, who move by their own policies and see the mass of both."""
    problem = moves.flow.problem
    if len(problem.start) > 1:
        raise UserError(
            "a share that follows the plan is not supported where trips take several steps; give "
            "trips of one step"
        )

    def one(parts: Array, row: tuple[Array, Step]) -> tuple[Array, tuple[Mass, Scalar]]:
        mass = jnp.sum(parts, axis=0)

        def advance(parts: Array) -> tuple[Array, Scalar]:
            step = partial(moves.step, seen=mass, step=row[1], exact=exact)
            after, paid = jax.vmap(step)(parts[..., None] * row[0])
            return after[:, 0], jnp.sum(paid)

        after, paid = if_begun(problem, row[1], advance, parts)
        return after, (mass, paid)

    start = jnp.stack([followers.share, 1.0 - followers.share])[:, None] * problem.initial
    laws = jnp.stack([followers.weights, weights], axis=1)
    end, (before, rewards) = jax.lax.scan(one, start, (laws, problem.steps))
    mass = jnp.concatenate([before, jnp.sum(end, axis=0)[None]])
    return assemble_rollout(problem, mass, rewards)
