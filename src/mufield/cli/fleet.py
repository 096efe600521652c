"""``new``, ``ask`` and ``tell``: runs of real systems, which stand between the two."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from .flags import Environment, ImportFlag, flag
from .printing import prepare, print_answer, print_notes, print_rows
from .settings import Settings
from .waiting import waiting


@dataclass(frozen=True, kw_only=True)
class New(Settings):
    """Begin a run without running it, for real systems: then ask and tell."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run; new or empty."""

    environment: Environment = None
    """Name of the system or problem; --import brings your own."""

    label: Annotated[str | None, flag("NAME", "drawn at random")] = None
    """Tells runs apart that share all else."""

    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        """Begin the run."""
        import secrets

        label = secrets.token_hex(4) if self.label is None else self.label
        config = self.make(self.environment, label=label)
        from ..runs.driver import new_run

        setup = new_run(self.run, config)
        answer = {"run": setup.config.identity, "directory": str(self.run)}
        return print_answer(answer, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Write the next policy to a file; asked again before it was told, it is the same."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""

    out: Annotated[Path | None, flag("FILE")] = None
    """File to copy the policy to; it is in the run's directory in any case."""

    imports: ImportFlag = None
    """Where your own Python file is now, if it is not where it was when the run began."""

    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        """Plan, unless that was done already, and print where the policy is."""
        prepare(self.run)
        from .._files import write_bytes
        from ..runs.driver import open_run

        with waiting("planning"), open_run(self.run, imports=self.imports) as session:
            print_notes(session.store.changes)
            plan, asked = session.ask(), session.asked()
            path = session.store.path("policies", asked.episode)
            if self.out is not None:
                write_bytes(self.out, path.read_bytes())
            value = float(plan.value)
            answer = {
                "episode": asked.episode,
                "file": str(self.out or path),
                "run": asked.run,
                "policy": asked.policy,
                "optimistic": value if value == value else None,
                "note": plan.note,
            }
        return print_answer(answer, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Tell:
    """Read what was observed under the last policy; if anything is wrong, nothing changes."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""

    file: Annotated[Path, tyro.conf.Positional]
    """The episode, .csv or .parquet: one row for each agent and step. Columns: agent; step (0, ...,
    horizon - 1); state_0, state_1, ... (where the agent was, in the units of the problem's grid);
    action_0, ... (what it did); next_0, ... (where it was one step later). Optional: stopped_0,
    ... (1 where a wall or border stopped it on that axis; else found from contact with walls);
    reward (what the agent was paid; not optional if the problem's reward is hidden); end_reward
    (what it was paid for the end, in each of its rows; likewise, if the problem pays the end);
    run, episode and policy (as `mufield ask` prints them; compared)."""

    mass: Annotated[Path | None, flag("FILE", "that of the agents in the episode's file")] = None
    """File of the population's distributions, with the columns step (0, ..., horizon), cell_0,
    cell_1, ... (from 0) and mass."""

    agents: Annotated[str, flag("NAMES", "all")] = ""
    """Agents to learn from, such as 0,3."""

    policy: Annotated[Path | None, flag("FILE")] = None
    """The policy file that was run, to check that it is the one that was asked for."""

    imports: ImportFlag = None
    """Where your own Python file is now, if it is not where it was when the run began."""

    repeated: bool = False
    """Take an episode that equals an earlier one."""

    json: bool = False
    """Print the episode's metrics as JSON."""

    def __call__(self) -> int:
        """Check the episode and make it part of the run."""
        prepare(self.run)
        from ..runs.driver import open_run
        from ..runs.episode_file import tell_file

        with waiting("checking"), open_run(self.run, imports=self.imports) as session:
            print_notes(session.store.changes)
            chosen = [name.strip() for name in self.agents.split(",") if name.strip()]
            tell_file(
                session,
                self.file,
                mass_path=self.mass,
                agents=chosen,
                policy_path=self.policy,
                repeated=self.repeated,
            )
            rows = session.store.rows
        if self.json:
            print(json.dumps(rows[-1], indent=2))
            return 0
        return print_rows(rows, self.run, as_json=False)
