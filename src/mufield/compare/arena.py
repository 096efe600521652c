"""Where contenders meet: the system that they share, and the settings of all learners."""

from typing import Any

from ..jobs.compute import simulated, system_of
from ..jobs.job import Job, system_job
from ..runs.build import resolve
from ..runs.config import RunConfig, parse_config
from ..runs.surroundings import current_precision
from ..runs.trust import import_users
from ..systems import SimulatedSystem
from .config import ComparisonConfig


class Arena:
    """The system that contenders share, and the learners' configuration with all defaults."""

    def __init__(self, config: ComparisonConfig):
        """Builds the system; raises if there is none of that name or with these options."""
        import_users(config.imports)
        self.config = config
        names = ("environment", "options", "imports", "episodes", "agents", "model")
        settings = {name: getattr(config, name) for name in (*names, "model_options")} | {
            "planner_options": config.planner_options,
            "judge": False,
            "precision": current_precision(),
        }
        self.run: RunConfig = resolve(parse_config(settings, "the comparison"))
        self.settings = {"environment": config.environment, "options": self.run.options}
        problem = system_of(self.settings).problem
        self.horizon: int = problem.horizon
        self.constrained: bool = problem.constraints is not None
        self.points: int | None = self.run.planner_options["points"]

    def system(self, who: str) -> SimulatedSystem:
        """The system; raises, in the name of ``who``, if its motion is not known."""
        return simulated(self.settings, who)

    def job(self, name: str, kind: str, **settings: Any) -> Job:
        """A job of a contender; settings replace those of the arena."""
        own = {"precision": self.run.precision, "imports": self.config.imports}
        return system_job(name, kind, **(self.settings | own | settings))
