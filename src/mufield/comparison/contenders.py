"""The contenders: each says what its result depends on, and plays."""

import math
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import UserError
from ..flow.moves import MoveFlow, depends_on_mu
from ..learning.m3ucrl import PlanError
from ..learning.run import learn_many
from ..planning.certificate import is_concave
from ..planning.mirror import MirrorAscent
from ..planning.plan import plan
from ..policies.tables import random_policy
from ..problem import MoveSet
from ..runs.build import build
from .arena import Arena
from .config import LEARNERS
from .result import Result

LAST = 5
"""A learner is judged by the mean of its last episodes."""

SWEEPS, BRACKET = 400, 0.05
"""Of mirror ascent with known motion: most sweeps, and how near to the optimum is enough."""


class AbstractContender(ABC):
    """One of those who are compared. Its constructor raises if it cannot play in the arena.

    Attributes:
        name: How the command line calls it.
        arena: Where it plays.
    """

    name: str
    arena: Arena

    def __init__(self, name: str, arena: Arena):
        """Enters the arena."""
        self.name = name
        self.arena = arena

    def settings(self) -> dict[str, Any]:
        """All that the result depends on, as JSON has it."""
        return {"contender": self.name, **self.arena.settings(), **self.own_settings()}

    @abstractmethod
    def own_settings(self) -> dict[str, Any]:
        """What it depends on besides the arena."""

    @abstractmethod
    def play(self, *, progress: bool) -> Result:
        """Plays with all seeds; the time is filled in by `timed`."""

    def timed(self, *, progress: bool) -> Result:
        """Plays and takes the time."""
        began = time.perf_counter()
        result = self.play(progress=progress)
        return replace(result, seconds=time.perf_counter() - began)


class ModelLearner(AbstractContender):
    """M3-UCRL with one kind of optimism; all seeds side by side."""

    def own_settings(self) -> dict[str, Any]:
        """The run with all defaults written out, and the number of seeds."""
        run = replace(self.arena.run, optimism=LEARNERS[self.name])
        return {"run": run.document(), "seeds": self.arena.config.seeds}

    def play(self, *, progress: bool) -> Result:
        """Learns."""
        config = self.arena.config
        setup = build(replace(self.arena.run, optimism=LEARNERS[self.name]))
        try:
            results = learn_many(
                self.arena.system,
                setup.learner,
                seeds=range(config.seeds),
                episodes=config.episodes,
                progress=progress,
            )
        except PlanError as error:
            raise UserError(f"{self.name} cannot go on: {error}; or leave it out") from error
        curves = [tuple(row.value for row in result.metrics) for result in results]
        return Result(
            name=self.name,
            plays=config.environment,
            comparable=True,
            remark="",
            transitions=results[0].state.ends,
            curves=tuple(curves),
            finals=tuple(float(np.mean(curve[-LAST:])) for curve in curves),
            episodes=config.episodes,
            seconds=0.0,
        )


class RandomPolicy(AbstractContender):
    """All agents draw from all actions alike; J is exact, so one run says it all."""

    def __init__(self, name: str, arena: Arena):
        """Needs the flow."""
        super().__init__(name, arena)
        self.system = arena.simulated(name)

    def own_settings(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def play(self, *, progress: bool) -> Result:
        """Evaluates the policy."""
        value = float(self.system.evaluate(random_policy(self.system.problem)).value)
        return _reference(self, value)


class KnownMotion(AbstractContender):
    """Plans with the true motion.

    By mirror ascent over the moves that the learners plan with, so that its certificate bounds
    them as well. Outside the class that has certificates, and where actions form a box, gradient
    ascent for a table of actions takes its place.
    """

    def __init__(self, name: str, arena: Arena):
        """Needs the flow."""
        super().__init__(name, arena)
        self.system = arena.simulated(name)

    def own_settings(self) -> dict[str, Any]:
        """The moves, and when to stop."""
        return {"points": self._points, "sweeps": SWEEPS, "bracket": BRACKET}

    def play(self, *, progress: bool) -> Result:
        """Plans, and evaluates the plan."""
        flow, motion = self.system.reveal()
        problem = self.system.problem
        concave, upper = is_concave(flow, motion), math.inf
        if concave or isinstance(problem.actions, MoveSet):
            moves = MoveFlow(flow, motion, problem.actions.points(self._points))
            found = MirrorAscent(SWEEPS, BRACKET).solve(moves, progress=progress)
            profile, upper = found.profile, float(found.upper)
        else:
            profile = plan(flow, motion, progress=progress).profile
        value = float(self.system.evaluate(profile).value)
        if math.isfinite(upper):
            # Rounded up, or it would be no bound.
            bound = math.ceil(100 * upper) / 100
            remark = f"no policy on the learners' moves earns more than {bound:.2f}"
            return _reference(self, value, remark=remark, upper=upper)
        if depends_on_mu(problem, motion):
            return _reference(self, value, remark="no certificate, the motion depends on mu")
        return _reference(self, value, remark="no certificate, the reward is not concave in mu")

    @property
    def _points(self) -> int:
        return int(self.arena.run.planner_options["points"])


def _reference(
    contender: AbstractContender, value: float, *, remark: str = "", upper: float | None = None
) -> Result:
    """The result of a contender that learns nothing."""
    return Result(
        name=contender.name,
        plays=contender.arena.config.environment,
        comparable=True,
        remark=remark,
        transitions=(),
        curves=(),
        finals=(value,),
        episodes=0,
        seconds=0.0,
        upper=upper,
    )
