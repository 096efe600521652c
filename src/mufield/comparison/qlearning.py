"""U2-MF-QL-FH as a contender: in finite games itself, beside the four rooms in discrete ones."""

from typing import Any

from .._progress import progress_bar
from ..baselines.q_learning import QLearning, compiled_loop
from ..baselines.training import QResult, train
from ..environments.registry import make
from ..errors import UserError
from ..problem import MoveSet
from ..systems import SimulatedSystem
from .arena import Arena
from .config import Q_LEARNERS
from .contenders import AbstractContender
from .result import Result

STANDARD, EXTENDED = Q_LEARNERS
CONTINUOUS_ROOMS = "four-rooms"
DISCRETE_ROOMS = ("discrete-rooms", "discrete-rooms-extended")
"""What the two Q-learners play beside them."""
SHARED = ("horizon", "drawing")
"""Options that the discrete four rooms share with the continuous ones."""

OTHER_GAME = "discrete rooms, other moves and noise"
ONE_OPTION = "the same game, with one option for each cell and step"


class QLearner(AbstractContender):
    """Q-learning, one seed after the other."""

    def __init__(self, name: str, arena: Arena):
        """Finds its game and tabulates it; raises if there is none, or if numba is missing."""
        super().__init__(name, arena)
        compiled_loop()
        self.comparable = arena.config.environment != CONTINUOUS_ROOMS
        self.system = _game(name, arena)
        other = DISCRETE_ROOMS[Q_LEARNERS.index(name)]
        self.plays = arena.config.environment if self.comparable else other
        self.algorithm = QLearning(self.system)

    def own_settings(self) -> dict[str, Any]:
        """The tabulated game, the rates and the budget."""
        config = self.arena.config
        return {
            "game": self.algorithm.settings(),
            "episodes": config.q_episodes,
            "evaluate_every": config.evaluate_every,
            "seeds": config.seeds,
        }

    def play(self, *, progress: bool) -> Result:
        """Learns."""
        config = self.arena.config
        found = []
        with progress_bar(f"{self.name}, seeds", config.seeds, shown=progress) as report:
            for seed in range(config.seeds):
                found.append(self._train(seed))
                report(seed + 1, J=float(found[-1].curve.evaluation[-1]))
        horizon = self.system.problem.horizon
        curves = tuple(tuple(map(float, each.curve.evaluation)) for each in found)
        return Result(
            name=self.name,
            plays=self.plays,
            comparable=self.comparable,
            remark=ONE_OPTION if self.comparable else OTHER_GAME,
            transitions=tuple(int(count) * horizon for count in found[0].curve.episodes),
            curves=curves,
            finals=tuple(curve[-1] for curve in curves),
            episodes=config.q_episodes,
            seconds=0.0,
        )

    def _train(self, seed: int) -> QResult:
        config = self.arena.config
        return train(
            self.system,
            episodes=config.q_episodes,
            evaluate_every=config.evaluate_every,
            seed=seed,
            progress=False,
        )


def _game(name: str, arena: Arena) -> SimulatedSystem:
    """The game that Q-learning plays in an arena."""
    environment, options = arena.config.environment, arena.run.options
    extended = name == EXTENDED
    actions = {"actions": "extended" if extended else "standard"}
    if environment == CONTINUOUS_ROOMS:
        shared = {option: options[option] for option in SHARED}
        return _simulated(make(DISCRETE_ROOMS[0], **shared, **actions))
    system = arena.simulated(name)
    if not isinstance(system.problem.actions, MoveSet):
        raise UserError(
            f"{name} needs a finite set of moves, but {environment} has "
            f"{system.problem.actions.describe()}; leave {name} out, or compare in discrete-rooms"
        )
    if not extended:
        return system
    if environment not in DISCRETE_ROOMS:
        raise UserError(
            f"{name} knows the extended options of the discrete rooms only, but the environment "
            f"is {environment}; use {STANDARD}, which plays with the options of any finite game"
        )
    return _simulated(make(DISCRETE_ROOMS[0], **{**options, **actions}))


def _simulated(system: Any) -> SimulatedSystem:
    assert isinstance(system, SimulatedSystem)
    return system
