"""``ask`` and ``tell``: runs of real systems, which act between the two."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..errors import UserError
from .flags import Switch
from .output import Answer, metrics_answer, print_notes
from .sources import OfRun


@dataclass(frozen=True, kw_only=True)
class Ask(OfRun):
    """Write the next policy to a file; the same one until its episode is told.

    With --step, plan the rest of an episode anew that has begun: the file is again a policy for the
    whole episode; until the step it is the one that was run. Tell the episode as ever when it is
    over.
    """

    out: Path | None = None
    """File to copy the policy to; it is in the run's directory in any case. With scouts, the policy
    of the tracked agents lies beside it, as NAME-scouts.policy."""

    start: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Where the agents are now, .csv or .parquet, with the columns state_0, state_1, ... (on a
    city's map longitude and latitude) and one row for each agent; by default the problem's initial
    distribution."""

    step: Annotated[int | None, tyro.conf.arg(metavar="H")] = None
    """Number of the step that comes next in the episode, from 0; needs --start."""

    shock: int | None = None
    """With --step: the number of the present shock, if the problem has shocks, from 0."""

    options: dict[str, Any] = field(default_factory=dict)
    """With --step: options of the environment that are others for the rest of this episode, such as
    load=0.9 after vehicles were lost."""

    def __call__(self) -> Answer:
        if self.step is None and (self.options or self.shock is not None):
            raise UserError(
                "--options and --shock are for a begun episode; name its next step with --step"
            )
        if self.step is not None and self.start is None:
            raise UserError(
                "expected the file of where the agents are now, got none; name it with --start"
            )
        from ..io.atomic import write_bytes
        from ..io.observed import read_positions

        with self.session("planning") as session:
            now = None
            if self.start is not None:
                now, notes = read_positions(self.start, session.setup.problem)
                print_notes(notes)
            if now is not None and self.step is not None:
                plan = session.replan(now, self.step, self.options, self.shock)
            else:
                plan = session.ask(now)
            asked, value = session.asked(), float(plan.value)
            record = session.store.last_plan(asked.episode)
            files = {"file": record.policy()}
            if plan.scouts is not None:
                files["scouts"] = record.policy("scouts")
            if self.out is not None:
                for who, path in files.items():
                    end = "" if who == "file" else f"-{who}"
                    files[who] = self.out.with_stem(self.out.stem + end)
                    write_bytes(files[who], path.read_bytes())
        return Answer(
            {
                "episode": asked.episode,
                **({"from_step": asked.changes[-1][0]} if asked.changes else {}),
                **{who: str(path) for who, path in files.items()},
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
    carried (1 where a trip carried it off; not optional if the problem has trips);
    reward (what the agent was paid; not optional if the problem's reward is hidden); end_reward
    (what it was paid for the end, in each of its rows; likewise, if the problem pays the end);
    shock (the number of its step's shock, from 0; not optional if the problem has shocks);
    run, episode and policy (as `mufield ask` prints them; compared). Agents may join, leave or miss
    rows."""

    log: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """In place of an episode, rows that belong to none, such as a fleet's past: data, which the
    next plan knows. Columns as above, but time (a number, or a date with a time) in place of step
    if you like; episode and run only tell times apart; without next_0, ... the agent's next row
    says where it went. Agents may come and go, at any times."""

    mass: Path | None = None
    """File of the population's distributions, with the columns step (0, ..., horizon; for a log as
    in it), cell_0, cell_1, ... (from 0) and mass; or, for an episode, of where everybody was, with
    step and state_0, state_1, ... (on a city's map longitude and latitude), one row for each agent
    and step. By default that of the agents in the file."""

    learn_from: tuple[str, ...] = ()
    """Names of the agents to learn from, such as 0,3; by default all."""

    repeated: Switch = False
    """Accept an episode or a log that equals an earlier one."""

    def __call__(self) -> Answer:
        if (self.file is None) == (self.log is None):
            raise UserError(
                f"expected the file of an episode or --log, got {'both' if self.log else 'none'}; "
                "tell one at a time"
            )
        agents = list(self.learn_from)
        given: Any = {"mass_path": self.mass, "agents": agents, "repeated": self.repeated}
        with self.session("checking") as session:
            if self.log is not None:
                told = session.tell_log(self.log, **given)
                return Answer(
                    {
                        "log": len(session.store.logs),
                        "transitions": len(told.arrays["states"]),
                        "historical": session.store.historical,
                        "known_from_episode": told["since"],
                        "notes": told["source"]["notes"],
                    }
                )
            assert self.file is not None
            session.tell_file(self.file, **given)
            rows = session.store.rows
        return replace(metrics_answer(rows, self.run), document=rows[-1])
