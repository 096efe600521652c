"""``new``, ``ask`` and ``tell``: runs of real systems, which act between ask and tell."""

import math
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..errors import UserError
from .flags import Switch
from .output import Answer, metrics_answer, print_notes, waiting
from .settings import Configured
from .sources import OfRun, prepare

if TYPE_CHECKING:
    from ..planning.planner import Plan
    from ..runs.session import Session


@dataclass(frozen=True, kw_only=True)
class New(Configured):
    """Begin a run of a real system; then ask for a policy and tell what happened, in turn."""

    def __call__(self) -> Answer:
        run, config = self.directory(), self.run_config()
        config = replace(config, label=config.label or secrets.token_hex(4))
        from ..runs.learn import new_run

        setup = new_run(run, config)
        return Answer({"run": setup.config.identity, "directory": str(run)})


@dataclass(frozen=True, kw_only=True)
class Ask(OfRun):
    """Write the next policy to a file; the same one until its episode is told."""

    out: Path | None = None
    """File to copy the policy to; it is in the run's directory in any case."""

    start: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Where the agents are today, .csv or .parquet, with the columns state_0, state_1, ... (on a
    city's map longitude and latitude) and one row for each agent; by default the problem's initial
    distribution."""

    def __call__(self) -> Answer:
        prepare(self.run)
        from ..io.episode import read_positions
        from ..runs.layout import read_versions
        from ..runs.session import open_run
        from ..runs.surroundings import changes_since

        with waiting("planning"), open_run(self.run, imports=self.imports) as session:
            print_notes(changes_since(read_versions(self.run)))
            today = None
            if self.start is not None:
                today, notes = read_positions(self.start, session.setup.problem)
                print_notes(notes)
            return _answer(session, session.ask(today), self.out)


@dataclass(frozen=True, kw_only=True)
class Replan(OfRun):
    """Plan the rest of an episode anew, from where the agents are now; asked for before it began.

    The file is a policy for the whole episode; until the step it is the one that was run. Tell the
    episode as ever when it is over.
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """Where the agents are now, .csv or .parquet: as of `mufield ask --start`."""

    step: Annotated[int, tyro.conf.arg(metavar="H")]
    """Number of the step that comes next, from 0; later than that of an earlier replan."""

    out: Path | None = None
    """File to copy the policy to; it is in the run's directory in any case."""

    options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment that are others for the rest of this day, such as load=0.9 after
    vehicles were lost."""

    def __call__(self) -> Answer:
        prepare(self.run)
        from ..io.episode import read_positions
        from ..runs.layout import read_versions
        from ..runs.session import open_run
        from ..runs.surroundings import changes_since

        with waiting("planning"), open_run(self.run, imports=self.imports) as session:
            print_notes(changes_since(read_versions(self.run)))
            now, notes = read_positions(self.file, session.setup.problem)
            print_notes(notes)
            return _answer(session, session.replan(now, self.step, self.options), self.out)


def _answer(session: "Session", plan: "Plan", out: Path | None) -> Answer:
    """What is said of the policy to run, which is copied to ``out``."""
    from ..io.atomic import write_bytes

    asked, value = session.asked(), float(plan.value)
    path = session.store.policy_path(asked.episode)
    if out is not None:
        write_bytes(out, path.read_bytes())
    return Answer(
        {
            "episode": asked.episode,
            **({"from_step": asked.changes[-1][0]} if asked.changes else {}),
            "file": str(out or path),
            "run": asked.run,
            "policy": asked.policy_at(math.inf),
            "optimistic": None if math.isnan(value) else value,
            "note": plan.note,
        }
    )


@dataclass(frozen=True, kw_only=True)
class Tell(OfRun):
    """Read what was observed under the last policy; if anything is wrong, nothing changes."""

    file: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE]")] = None
    """The episode, .csv or .parquet: one row for each agent and step. Columns: agent; step (0, ...,
    horizon - 1); state_0, state_1, ... (where the agent was, in the units of the problem's grid);
    action_0, ... (what it did); next_0, ... (where it was one step later); on a city's map
    longitude, latitude, next_longitude and next_latitude may stand for the positions. Optional:
    stopped_0, ... (1 where a wall or border stopped it on that axis; else found from contact with
    walls); carried (1 where a trip carried it off; not optional if the problem has trips);
    reward (what the agent was paid; not optional if the problem's reward is hidden); end_reward
    (what it was paid for the end, in each of its rows; likewise, if the problem pays the end);
    run, episode and policy (as `mufield ask` prints them; compared). Agents may join, leave or miss
    rows."""

    log: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """In place of an episode, rows that belong to none, such as a fleet's past: data, which the
    next plan knows. Columns as above, but time (a number, or a date with a time) in place of step
    if you like; episode and run only tell times apart; without next_0, ... the agent's next row
    says where it went. Agents may come and go, at any times."""

    mass: Path | None = None
    """File of the population's distributions, with the columns step (0, ..., horizon; for a log as
    in it), cell_0, cell_1, ... (from 0) and mass; by default that of the agents in the file."""

    learn_from: tuple[str, ...] = ()
    """Names of the agents to learn from, such as 0,3; by default all."""

    policy: Path | None = None
    """The policy file that was run, to check that it is the one that was asked for."""

    repeated: Switch = False
    """Accept an episode or a log that equals an earlier one."""

    def __call__(self) -> Answer:
        if (self.file is None) == (self.log is None):
            raise UserError(
                f"expected the file of an episode or --log, got {'both' if self.log else 'none'}; "
                "tell one at a time"
            )
        if self.log is not None and self.policy is not None:
            raise UserError("--policy is for episodes; rows of a log belong to no policy")
        prepare(self.run)
        from ..runs.layout import read_versions
        from ..runs.session import open_run
        from ..runs.surroundings import changes_since
        from ..runs.tell import tell_episode, tell_log

        with waiting("checking"), open_run(self.run, imports=self.imports) as session:
            print_notes(changes_since(read_versions(self.run)))
            given: Any = {
                "mass_path": self.mass,
                "agents": list(self.learn_from),
                "repeated": self.repeated,
            }
            if self.log is not None:
                told = tell_log(session, self.log, **given)
                return Answer(
                    {
                        "log": len(session.store.logs),
                        "transitions": len(told),
                        "historical": session.store.historical,
                        "known_from_episode": told.since,
                        "notes": told.source["notes"],
                    }
                )
            assert self.file is not None
            tell_episode(session, self.file, policy_path=self.policy, **given)
            rows = session.store.rows
        return replace(metrics_answer(rows, self.run), document=rows[-1])
