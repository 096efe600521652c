"""What selfishness costs, how much of it tolls win back, and what if only some obey."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from ..errors import UserError
from ..flow.moves import MoveFlow
from ..planning.mirror import MirrorAscent, MirrorResult
from .response import Followers, exploitability
from .solvers import AbstractSolver, Equilibrium, MirrorDescent
from .tolls import Tolls, priced, tolls


@dataclass(frozen=True)
class Anarchy:
    """The optimum and the equilibrium of one problem, over the same moves.

    Attributes:
        optimum: What is best for all.
        equilibrium: What agents do who think of themselves.
        tolls: Prices under which the optimum is an equilibrium.
        left: Exploitability of the optimum in the game with these tolls: zero for exact optima.
    """

    optimum: MirrorResult
    equilibrium: Equilibrium
    tolls: Tolls
    left: float

    @property
    def gap(self) -> float:
        """What selfishness costs: J of the optimum minus J of the equilibrium."""
        return float(self.optimum.value) - float(self.equilibrium.value)

    @property
    def price(self) -> float:
        """The price of anarchy: the gap as a share of |J| of the optimum.

        Where J is a cost, the usual ratio of costs is one more than this.
        """
        return self.gap / abs(float(self.optimum.value))

    def __repr__(self) -> str:
        return (
            f"Anarchy(price={self.price:.2%}, J={float(self.optimum.value):.6g} at best, "
            f"{float(self.equilibrium.value):.6g} in equilibrium, left={self.left:.2g})"
        )


def anarchy(
    moves: MoveFlow, ascent: MirrorAscent | None = None, solver: AbstractSolver | None = None
) -> Anarchy:
    """The optimum, the equilibrium and the tolls between them.

    Args:
        moves: The flow over the moves; in a box without a list of moves, both use the coarse ones.
        ascent: How the optimum is planned; by default with 400 sweeps.
        solver: How the equilibrium is found; by default mirror descent.
    """
    listed = MoveFlow(moves.flow, moves.motion, moves.actions) if moves.free else moves
    optimum = (ascent or MirrorAscent(sweeps=400)).solve(listed)
    equilibrium = (solver or MirrorDescent(iterations=400)).solve(listed)
    prices = tolls(listed.flow, listed.motion, optimum.profile)
    game = priced(listed.flow, prices)
    left = exploitability(game, listed.motion, optimum.profile, listed.actions)
    return Anarchy(optimum, equilibrium, prices, left)


@dataclass(frozen=True)
class TollRow:
    """What agents do under some tolls.

    Attributes:
        name: Of the tolls.
        value: J of the equilibrium under them, the tolls themselves not counted.
        closed: The share of the gap between equilibrium and optimum that they win back.
        exploitability: Of that equilibrium, as far as it was found.
        equilibrium: The equilibrium.
    """

    name: str
    value: float
    closed: float
    exploitability: float
    equilibrium: Equilibrium = field(repr=False)


def compare_tolls(
    found: Anarchy, candidates: dict[str, Tolls], solver: AbstractSolver | None = None
) -> list[TollRow]:
    """How much of the gap each of some tolls closes: equilibria are found under each.

    Solvers start at the equilibrium without tolls, so that no row is told the optimum.
    """
    moves, rows = found.equilibrium.moves, []
    start = 0.99 * found.equilibrium.weights + 0.01 * moves.uniform()
    for name, prices in candidates.items():
        game = MoveFlow(priced(moves.flow, prices), moves.motion, moves.actions)
        reached = (solver or MirrorDescent(iterations=400)).solve(game, start)
        value = float(moves.rollout(reached.weights).value)
        closed = (value - float(found.equilibrium.value)) / found.gap
        rows.append(TollRow(name, value, closed, float(reached.exploitability), reached))
    return rows


def obedience(
    moves: MoveFlow, plan: Any, shares: Sequence[float], solver: AbstractSolver | None = None
) -> list[tuple[float, Equilibrium]]:
    """The whole population's J if only a share follows a plan and the others their own interest.

    Args:
        moves: The flow over the moves.
        plan: The weights of the plan over these moves, such as `MirrorResult.weights`.
        shares: Of those who follow it, from 0 to 1.
        solver: How the equilibrium of the others is found; by default mirror descent.

    Returns:
        Each share with the equilibrium of the others; its ``value`` is J of all.
    """
    wanted = moves.uniform().shape
    if getattr(plan, "shape", None) != wanted:
        raise UserError(f"the plan must be weights of the shape {wanted} over these moves")
    rows = []
    for share in shares:
        if not 0 <= share <= 1:
            raise UserError(f"the share that follows the plan must be from 0 to 1, got {share}")
        followers = Followers(plan, jnp.asarray(share, dtype=plan.dtype))
        rows.append(
            (share, (solver or MirrorDescent(iterations=400)).solve(moves, None, followers))
        )
    return rows
