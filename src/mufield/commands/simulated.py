"""``learn``, ``resume`` and ``show``: runs on simulators."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from .printing import prepare, print_changes, print_rows
from .settings import Settings


@dataclass(frozen=True, kw_only=True)
class Learn(Settings):
    """Learn on a simulator, episode by episode; all is kept in the run's directory."""

    environment: Annotated[str | None, tyro.conf.Positional] = None
    """Name of the environment; `mufield list` shows them."""

    out: Path
    """Directory of the run; new or empty."""

    episodes: int | None = None
    """Number of episodes [30]."""

    agents: int | None = None
    """Number of agents that are tracked in each episode [1]."""

    json: bool = False
    """Print the metrics as JSON instead of a table."""

    def __call__(self) -> int:
        """Begin the run and go on to its end."""
        config = self.make(self.environment, episodes=self.episodes, agents=self.agents)
        from ..runs.driver import learn_run, new_run

        setup = new_run(self.out, config)
        return print_rows(learn_run(self.out, setup=setup), self.out, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a run on a simulator, however it ended; the result is as if it never had."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""

    episodes: int | None = None
    """Number of episodes in all [what the run was begun with]."""

    json: bool = False
    """Print the metrics as JSON instead of a table."""

    def __call__(self) -> int:
        """Go on to the end."""
        prepare(self.run)
        from ..runs.driver import learn_run
        from ..runs.store import RunStore

        print_changes(RunStore(self.run).changes)
        return print_rows(learn_run(self.run, self.episodes), self.run, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Show:
    """Show the metrics of a run."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""

    json: bool = False
    """Print the metrics as JSON instead of a table."""

    def __call__(self) -> int:
        """Print them."""
        prepare(self.run)
        from ..runs.store import RunStore

        return print_rows(RunStore(self.run).rows, self.run, as_json=self.json)
