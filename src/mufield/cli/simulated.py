"""``train``, ``resume`` and ``show``: runs on simulators."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..errors import UserError
from ..runs.config import RunConfig
from .config_text import print_config
from .flags import Environment, ImportFlag, flag
from .printing import prepare, print_notes, print_rows
from .settings import Settings
from .waiting import resumable, waiting


@dataclass(frozen=True, kw_only=True)
class Train(Settings):
    """Learn on a simulator, episode by episode; all is kept in the run's directory."""

    environment: Environment = None
    """Name of the environment; `mufield list` shows them."""

    out: Annotated[Path | None, flag("DIR", "none, required")] = None
    """Directory of the run; new or empty."""

    episodes: Annotated[int | None, flag("INT", "30")] = None
    """Number of episodes."""

    agents: Annotated[int | None, flag("INT", "1")] = None
    """Number of agents that are tracked in each episode."""

    tensorboard: bool = False
    """Write the metrics as TensorBoard events, too, into the run's directory."""

    print_config: bool = False
    """Print all settings as TOML, with --json as JSON, and leave; --out is not needed."""

    json: bool = False
    """Print the metrics as JSON instead of a table."""

    def __call__(self) -> int:
        """Begin the run and go on to its end."""
        if self.print_config:
            return print_config(self._config(), as_json=self.json)
        if self.out is None:
            raise UserError("expected a directory for the run, got none; add --out my-run")
        with resumable(self.out) as check:
            config = self._config()
            _check_extra(self.tensorboard)
            from ..runs.driver import learn_run, new_run

            with waiting("preparing the run"):
                setup = new_run(self.out, config, simulated=True)
            rows = learn_run(self.out, setup=setup, tensorboard=self.tensorboard, check=check)
        return print_rows(rows, self.out, as_json=self.json)

    def _config(self) -> RunConfig:
        return self.make(self.environment, episodes=self.episodes, agents=self.agents)


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a run on a simulator, however it ended; the result is as if it never had."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""

    episodes: Annotated[int | None, flag("INT", "what the run was begun with")] = None
    """Number of episodes in all."""

    imports: ImportFlag = None
    """Where your own Python file is now, if it is not where it was when the run began."""

    tensorboard: bool = False
    """Write the metrics of all episodes as TensorBoard events, too."""

    json: bool = False
    """Print the metrics as JSON instead of a table."""

    def __call__(self) -> int:
        """Go on to the end."""
        with resumable(self.run) as check:
            prepare(self.run)
            _check_extra(self.tensorboard)
            from ..runs.driver import learn_run
            from ..runs.store import RunStore

            store = RunStore(self.run)
            print_notes(store.changes)
            done = len(store.rows)
            rows = learn_run(
                self.run,
                self.episodes,
                imports=self.imports,
                tensorboard=self.tensorboard,
                check=check,
            )
        if len(rows) == done:
            print_notes([f"complete already, with {done} episodes; --episodes N goes on to N"])
        return print_rows(rows, self.run, as_json=self.json)


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


def _check_extra(tensorboard: bool) -> None:
    """Raises before anything is computed if the package is not installed."""
    if tensorboard:
        importlib.import_module("tensorboardX")
