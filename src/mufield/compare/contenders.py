"""The contenders: the jobs that each needs, and what their results say."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..actions import MoveSet
from ..errors import UserError
from ..fleet.fluid import of_fleet
from ..flow.dependence import depends_on_mu, trips_see_mu
from ..jobs.compute import simulated, system_of
from ..jobs.job import Q_RATES, Job, JobResult, learning_job, system_job
from ..planning.certificate import is_concave
from ..planning.starts import Table
from ..runs.build import resolve
from ..runs.config import RunConfig, parse_config
from ..runs.overview import judged
from ..runs.surroundings import current_precision, import_users
from .config import CONTENDERS, ComparisonConfig, split
from .result import Result


@dataclass(frozen=True)
class Contender:
    """One of those who are compared.

    Attributes:
        name: Its name on the command line.
        jobs: One for each seed, or a single one if nothing is random.
        plays: The system that it plays in.
        comparable: Whether the others play in the same system.
        remark: What people should know of it.
        horizon: Moves of an episode.
        constrained: Whether the system has constraints.
        agents: Agents that are tracked in an episode.
    """

    name: str
    jobs: tuple[Job, ...]
    plays: str
    comparable: bool
    remark: str
    horizon: int
    constrained: bool = False
    agents: int = 1

    def result(self, found: Sequence[JobResult]) -> Result:
        """Puts the results of its jobs together."""
        figures, kind = [each.figures for each in found], self.jobs[0].kind
        shared: dict[str, Any] = {
            "name": self.name,
            "plays": self.plays,
            "comparable": self.comparable,
            "remark": self.remark,
            "seconds": sum(each.seconds for each in found),
        }
        if kind not in ("learn", "qlearning"):
            return self._reference(shared, **figures[0])
        learned = kind == "learn"
        curves = np.array([each["values" if learned else "evaluation"] for each in figures])
        episodes = np.arange(1, curves.shape[1] + 1) if learned else figures[0]["episodes"]
        last = judged(len(episodes)) if learned else 1
        return Result(
            **shared,
            transitions=tuple(int(count) * self.horizon * self.agents for count in episodes),
            curves=tuple(tuple(map(float, curve)) for curve in curves),
            finals=tuple(float(value) for value in curves[:, -last:].mean(axis=1)),
            last=last,
            episodes=int(episodes[-1]),
            violated=_violated(figures) if learned else None,
        )

    def _reference(
        self, shared: dict[str, Any], *, value: float, upper: float | None = None, **more: Any
    ) -> Result:
        """The result of a contender that learns nothing."""
        if upper is not None:
            # Rounded up, so that it remains a bound.
            bound = math.ceil(100 * upper) / 100
            which = "that satisfies the constraints " if self.constrained else ""
            shared |= {
                "remark": f"no policy on the learners' moves {which}earns more than {bound:.2f}"
            }
        return Result(**shared, finals=(value,), upper=upper)


def _violated(figures: Sequence[dict[str, Any]]) -> float | None:
    """Share of the episodes of all seeds that violated a constraint; None if there is none."""
    margins = [row["margin"] for each in figures for row in each["rows"] if "margin" in row]
    return float(np.mean(np.array(margins) < -0.01)) if margins else None


class Arena:
    """The system that contenders share, and the learners' configuration with all defaults."""

    def __init__(self, config: ComparisonConfig):
        """Builds the system; raises if there is none of that name or with these options."""
        import_users(config.imports)
        self.config = config
        settings = {
            "environment": config.environment,
            "options": config.options,
            "imports": config.imports,
            "episodes": config.episodes,
            "agents": config.agents,
            "judge": False,
            "model": config.model,
            "model_options": config.model_options,
            "planner_options": config.planner_options,
            "precision": current_precision(),
        }
        self.run: RunConfig = resolve(parse_config(settings, "the comparison"))
        self.settings = {"environment": config.environment, "options": self.run.options}
        problem = system_of(self.settings).problem
        self.horizon: int = problem.horizon
        self.constrained: bool = problem.constraints is not None

    def contenders(self) -> list[Contender]:
        """All contenders of the configuration; raises if one cannot play in this system."""
        return [self._enter(name) for name in self.config.contenders]

    def _enter(self, name: str) -> Contender:
        own, family = split(name)
        kind, setting = CONTENDERS[own]
        if kind == "learner":
            return self._learner(name, family, optimism=setting)
        if kind == "constrained":
            if not self.constrained:
                raise UserError(
                    f"{name} needs a system with constraints, but {self.config.environment} has "
                    f"none; leave {name} out, or compare in four-rooms-doors"
                )
            return self._learner(name, family, pessimism=setting)
        if kind == "q-learner":
            return self._q_learner(name, setting)
        if kind == "fleet":
            return self._of_fleet(name)
        if name == "known":
            return self._known()
        simulated(self.settings, name)  # raises if the random policy cannot be evaluated here
        return self._contender(name, self._job(name, "random"))

    def _learner(self, name: str, family: str, **settings: str) -> Contender:
        document = self.run.document() | settings
        if family and family != self.run.model:  # whose settings have other names
            document |= {"model": family, "model_options": {}}
        jobs = [
            learning_job(
                f"{name.replace(':', '-')}-{seed}",
                parse_config(document | {"seed": seed}, name),
                seconds=float(self.config.episodes),
            )
            for seed in self.config.seeds
        ]
        return self._contender(name, *jobs, agents=self.config.agents)

    def _known(self) -> Contender:
        """Plans with the true motion.

        By mirror ascent over the moves that the learners plan with, so that its certificate
        bounds them as well. Where there is no certificate and actions form a box, also by gradient
        ascent for a table of actions; the better of the two counts.
        """
        system = simulated(self.settings, "known")
        flow, motion = system.reveal()
        # With trips vehicles of a cell must part, which a single action for each cell cannot say.
        mixes = is_concave(flow, motion) or system.problem.trips is not None
        if mixes or isinstance(system.problem.actions, MoveSet):
            more = {}
        else:
            more = {"table": {"steps": Table().steps, "learning_rate": Table().learning_rate}}
        points = int(self.run.planner_options["points"])
        # It stops after these sweeps, or this near to the optimum.
        job = self._job("known", "mirror", points=points, sweeps=400, bracket=0.05, **more)
        moved = depends_on_mu(system.problem, motion)
        why = "the motion depends on mu" if moved else "the reward is not concave in mu"
        if not moved and trips_see_mu(system.problem):
            why = "trips depend on mu"
        remark = f"a better plan may exist: nothing bounds the optimum, because {why}"
        return self._contender("known", job, remark=remark)

    def _of_fleet(self, name: str) -> Contender:
        """A contender that needs passengers."""
        of_fleet(simulated(self.settings, name).problem)  # raises if there are none
        if name != "fluid":
            return self._contender(name, self._job(name, "fleet", policy=name))
        points = int(self.run.planner_options["points"])
        # Its plan has five moves on each axis; its bound is for all that the learners plan with.
        job = self._job(name, "fluid", points=5, tried=points)
        return self._contender(name, job)

    def _q_learner(self, name: str, formulation: str) -> Contender:
        """Q-learning; it plays the discrete rooms where the others play the continuous ones."""
        from ..baselines.q_learning import QLearning, compiled_loop

        compiled_loop()  # raises if numba is missing
        config, game = self.config, self._game(name, formulation)
        # Tabulates the game, and raises if that is impossible.
        algorithm = QLearning(simulated(game, name))
        jobs = [
            self._job(
                f"{name}-{seed}",
                "qlearning",
                **game,
                rates=Q_RATES,
                episodes=config.q_episodes,
                evaluate_every=config.q_episodes // config.evaluations,
                seed=seed,
            )
            for seed in config.seeds
        ]
        if config.environment != "four-rooms":
            remark = "the same game, with one option for each cell and step"
            return self._contender(name, *jobs, remark=remark)
        other = "discrete-rooms" + ("-extended" if formulation == "extended" else "")
        horizon = algorithm.system.problem.horizon
        remark = "discrete rooms, other moves and noise"
        return Contender(name, tuple(jobs), other, False, remark, horizon)

    def _game(self, name: str, formulation: str) -> dict[str, Any]:
        """The environment that Q-learning plays in, with its options."""
        environment, options = self.config.environment, self.run.options
        if environment == "four-rooms":
            shared = {option: options[option] for option in ("horizon", "drawing")}
            return {"environment": "discrete-rooms", "options": shared | {"actions": formulation}}
        problem = simulated(self.settings, name).problem
        if not isinstance(problem.actions, MoveSet):
            raise UserError(
                f"{name} needs a finite set of moves, but {environment} has "
                f"{problem.actions.describe()}; leave {name} out, or compare in discrete-rooms"
            )
        if formulation == "standard":
            return self.settings
        if environment not in ("discrete-rooms", "discrete-rooms-extended"):
            raise UserError(
                f"{name} knows the extended options of the discrete rooms only, but the "
                f"environment is {environment}; use u2mfqlfh, which plays with the options of "
                "any finite game"
            )
        return {"environment": "discrete-rooms", "options": options | {"actions": formulation}}

    def _job(self, name: str, kind: Any, **settings: Any) -> Job:
        own = {"precision": self.run.precision, "imports": self.config.imports}
        return system_job(name, kind, **(self.settings | own | settings))

    def _contender(self, name: str, *jobs: Job, remark: str = "", agents: int = 1) -> Contender:
        shared = (self.config.environment, True, remark, self.horizon, self.constrained)
        return Contender(name, jobs, *shared, agents=agents)
