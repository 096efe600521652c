"""``list`` and ``simulate``: which environments there are, and one episode of one."""

from dataclasses import dataclass, field
from typing import Any

from .flags import Command, EnvironmentArgument, ImportFlag
from .output import Answer, Table


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List the environments."""

    imports: ImportFlag = None
    """Python file or module to import first, which registers your own environments."""

    def __call__(self) -> Answer:
        from ..environments.registry import catalogue
        from ..runs.surroundings import import_users

        import_users(self.imports)
        rows = [{"name": entry.name, "summary": entry.summary} for entry in catalogue()]
        return Answer(rows, [Table(rows, texts=("name", "summary"))])


@dataclass(frozen=True, kw_only=True)
class Simulate(Command):
    """Run one episode of an environment under the uniform random policy."""

    environment: EnvironmentArgument
    """Name of the environment; `mufield list` shows them."""

    options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment, such as horizon=10."""

    imports: ImportFlag = None
    """Python file or module to import first, which registers your own environment."""

    seed: int = 0
    """Seed of the tracked agents."""

    agents: int = 1
    """Number of tracked agents."""

    def __call__(self) -> Answer:
        import jax

        from mufield import entropy, make, random_policy

        from ..runs.surroundings import import_users

        import_users(self.imports)
        system = make(self.environment, **self.options)
        policy, key = random_policy(system.problem), jax.random.key(self.seed)
        episode = system.run(policy, key, agents=self.agents)
        return Answer(
            {
                "environment": self.environment,
                "value": float(episode.value),
                "moves": system.problem.horizon,
                "cells": system.problem.grid.n_cells,
                "entropy_at_the_end": float(entropy(episode.mass[-1])),
                "share_of_tracked_moves_stopped_by_walls": float(
                    episode.stopped.any(axis=-1).mean()
                ),
            }
        )
