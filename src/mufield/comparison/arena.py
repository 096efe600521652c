"""Where all contenders meet: the system, and what their figures may depend on."""

from dataclasses import dataclass
from typing import Any

from ..environments.registry import make
from ..episode import AbstractSystem
from ..errors import UserError
from ..runs.build import resolve
from ..runs.config import RunConfig, parse_config
from ..runs.surroundings import current_precision, import_users, versions
from ..systems import SimulatedSystem
from .config import ComparisonConfig


@dataclass(frozen=True, eq=False)
class Arena:
    """What contenders are given.

    Attributes:
        config: The comparison.
        run: The learners' run with all defaults written out, those of the system included.
        system: The system.
        versions: Of all that computes.
    """

    config: ComparisonConfig
    run: RunConfig
    system: AbstractSystem
    versions: dict[str, Any]

    def simulated(self, name: str) -> SimulatedSystem:
        """The system, for a contender that needs its flow; raises if it has none."""
        if not isinstance(self.system, SimulatedSystem):
            raise UserError(
                f"{name} needs the flow of a SimulatedSystem, but {self.config.environment} is "
                f"a {type(self.system).__name__}; leave {name} out"
            )
        return self.system

    def settings(self) -> dict[str, Any]:
        """What every result depends on."""
        # Not the platform: its name changes with every update of the kernel.
        packages = {name: found for name, found in self.versions.items() if name != "platform"}
        return {
            "environment": self.config.environment,
            "options": self.run.options,
            "precision": self.run.precision,
            "versions": packages,
        }


def make_arena(config: ComparisonConfig) -> Arena:
    """Builds the system; raises if there is none of that name or with these options."""
    imported = import_users(config.imports)
    system = make(config.environment, **config.options)
    settings = {
        "environment": config.environment,
        "options": config.options,
        "imports": config.imports,
        "episodes": config.episodes,
        "model_options": config.model_options,
        "planner_options": config.planner_options,
        "precision": current_precision(),
    }
    run = resolve(parse_config(settings, "the comparison"))
    return Arena(config, run, system, versions(imported))
