"""``ask`` and ``tell``: runs of real systems, which act between the two."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..errors import UserError
from .flags import Switch
from .output import Answer, metrics_answer, print_notes
from .sources import RunCommand


@dataclass(frozen=True, kw_only=True)
class Ask(RunCommand):
    """Write the next policy to a file; the same one until its episode is told.

    With --step, plan the rest of a begun episode anew: the file is again a policy for all of it,
    with what was run until the step. Tell the episode as ever when it is over.

    Attributes:
        out: File to copy the policy to; it is in the run's directory in any case. With scouts, the
            policy of the tracked agents lies beside it, as NAME-scouts.policy.
        start: Where the agents are now, .csv or .parquet, one row for each agent, with the columns
            state_0, state_1, ... or, on a city's map, longitude and latitude; by default the
            problem's initial distribution.
        step: Number of the step that comes next in the episode, from 0; needs --start.
        shock: With --step: the number of the present shock, if the problem has shocks, from 0.
        options: With --step: the environment's options for the rest of the episode, as load=0.9.
    """

    out: Path | None = None
    start: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    step: Annotated[int | None, tyro.conf.arg(metavar="H")] = None
    shock: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> Answer:
        if self.step is None and (self.options or self.shock is not None):
            raise UserError("--options and --shock are for begun episodes: name the step by --step")
        if self.step is not None and self.start is None:
            raise UserError("--step needs the file of where the agents are; name it with --start")
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
class Tell(RunCommand):
    """Read what was observed under the last policy; if anything is wrong, nothing changes.

    Attributes:
        file: The episode, .csv or .parquet: one row for each agent and step. Columns: agent; step,
            from 0 to horizon - 1; state_0, state_1, ... (where the agent was, in the units of the
            problem's grid); action_0, ... (what it did); next_0, ... (where it was one step later);
            on a city's map longitude, latitude, next_longitude and next_latitude may stand for the
            positions. If the problem has trips: carried (1 where a trip carried it off); if its
            reward is hidden: reward (what the agent was paid) and, if the end is paid, end_reward
            in each of its rows; if it has shocks: shock (the number of its step's shock, from 0).
            Else reward is optional, as are run, episode and policy, as `mufield ask` prints them,
            which are compared. Agents may join, leave or miss rows.
        log: In place of an episode, rows that belong to none, such as a fleet's past: data, which
            the next plan knows. Columns as above, but time (a number, or a date with a time) in
            place of step if you like; episode and run only tell times apart; without next_0, ...
            the agent's next row says where it went. Agents may come and go, at any times.
        mass: File of the population's distributions, with the columns step (0, ..., horizon; for a
            log as in it), cell_0, cell_1, ... (from 0) and mass; or, for an episode, of where
            everybody was, with step and state_0, state_1, ... (on a city's map longitude and
            latitude), one row for each agent and step. By default that of the agents in the file.
        counted: Number of agents in that file, if all of them followed the policy: on nodes the
            model then learns from where they went, too.
        learn_from: Names of the agents to learn from, such as 0,3; by default all.
        repeated: Accept an episode or a log that equals an earlier one.
    """

    file: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE]")] = None
    log: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    mass: Path | None = None
    counted: int | None = None
    learn_from: tuple[str, ...] = ()
    repeated: Switch = False

    def __call__(self) -> Answer:
        if (self.file is None) == (self.log is None):
            raise UserError(
                f"expected the file of an episode or --log, got {'both' if self.log else 'none'}; "
                "tell one at a time"
            )
        if self.log is not None and self.counted is not None:
            raise UserError("--counted is for episodes; logs do not say which policy was followed")
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
            session.tell_file(self.file, population=self.counted, **given)
            rows = session.store.rows
        return replace(metrics_answer(rows, self.run), document=rows[-1])
