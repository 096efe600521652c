"""What selfishness costs, and how much of it tolls win back."""

from dataclasses import dataclass, replace

from ..flow.moves import MoveFlow
from ..planning.mirror import MirrorAscent, MirrorResult
from .response import exploitability
from .solvers import AbstractSolver, Equilibrium, MirrorDescent
from .tolls import Tolls, priced, tolls


@dataclass(frozen=True)
class Anarchy:
    """The optimum and the equilibrium of one problem, over the same moves.

    Attributes:
        optimum: What is best for all.
        equilibrium: What agents do who think of themselves.
        tolls: Prices under which the optimum is an equilibrium.
        left: Exploitability of the optimum in the game with these tolls; zero if it is exact.
        solver: How the equilibrium was found.
    """

    optimum: MirrorResult
    equilibrium: Equilibrium
    tolls: Tolls
    left: float
    solver: AbstractSolver

    @property
    def gap(self) -> float:
        """What selfishness costs: J of the optimum minus J of the equilibrium."""
        return float(self.optimum.value) - float(self.equilibrium.value)

    @property
    def price(self) -> float:
        """The price of anarchy: the gap as a share of |J| of the optimum.

        Where J is a cost, the usual ratio of costs is one more than this.
        """
        best = abs(float(self.optimum.value))
        return self.gap / best if best > 0 else float("nan")

    def under(self, prices: Tolls) -> Equilibrium:
        """The equilibrium in which agents pay tolls, found from the one without; J without them."""
        moves = self.equilibrium.moves
        game = MoveFlow(priced(moves.flow, prices), moves.motion, moves.actions)
        start = 0.99 * self.equilibrium.weights + 0.01 * self.solver.init(moves).weights
        found = self.solver.solve(game, start)
        return replace(found, moves=moves, value=moves.rollout(found.weights).value)

    def closed(self, other: Equilibrium) -> float:
        """The share of the gap that another equilibrium wins back; 1 if there is no gap."""
        won = float(other.value) - float(self.equilibrium.value)
        return won / self.gap if self.gap > 0 else 1.0

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
        moves: The flow over the moves; of a box without a list of moves, both use the coarse ones.
        ascent: How the optimum is planned; by default mirror ascent with 400 sweeps.
        solver: How the equilibrium is found; by default mirror descent with 400 iterations.
    """
    flow, motion = moves.flow, moves.motion
    moves = MoveFlow(flow, motion, moves.actions) if moves.free else moves
    solver = solver or MirrorDescent(400)
    optimum = (ascent or MirrorAscent(sweeps=400)).solve(moves)
    prices = tolls(flow, motion, optimum.profile)
    left = exploitability(priced(flow, prices), motion, optimum.profile, moves.actions)
    return Anarchy(optimum, solver.solve(moves), prices, left, solver)
