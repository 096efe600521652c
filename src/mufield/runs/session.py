"""An open run: ask, run, tell, with everything on disk before the next step.

The learner's state is always made from what is on disk, interrupted or not. So a run that was
killed and goes on computes the same as one that was not.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._arrays import Mass
from ..episode import Episode
from ..errors import MASS_TOLERANCE, UserError
from ..finite.populations import with_chance
from ..finite.system import FiniteSystem
from ..io import disk
from ..io.checks import Asked
from ..io.episode import read_episode
from ..io.log import read_log
from ..io.sealed import digest, file_digest
from ..learning.best import BestPlan, likely_motion
from ..learning.diagnostics import GreedyRun, measure
from ..learning.metrics import EpisodeMetrics
from ..learning.run import run_greedy_plan, run_plan
from ..learning.state import LearnerState, Use
from ..planning.planner import Plan
from ..policies.base import Profile
from .build import Setup, build, build_problem, for_population
from .history import history_of, logged_arrays, observed_arrays, to_episode, to_transitions
from .layout import Record
from .store import RunStore


class Session:
    """An open run: its files and its learner, kept in step.

    ``data`` are the transitions that the next plan knows, ``ends`` their number after each episode.
    """

    def __init__(self, store: RunStore, setup: Setup, imports: str | None = None):
        """Reads the data of all episodes and logs so far."""
        self.store, self.setup, self.imports = store, setup, imports
        self._state: LearnerState | None = None
        self._plan: Plan | None = None
        self.reread()

    @property
    def state(self) -> LearnerState:
        """The learner's state; the model is fitted when it is first needed."""
        if self._state is None:
            with self._timed("fit"):
                learner, key = self.setup.learner, jax.random.key(self.store.config.seed)
                if self.ends:
                    last = self._read_plan(self.store.episodes)
                    mass = to_episode(self.store.records[-1]).mass
                    known = last.memory, last.profile, mass.astype(self.setup.problem.initial.dtype)
                    self._state = learner.restore(key, self.data, self.ends, *known)
                else:
                    self._state = learner.init(key, self.data)
                jax.block_until_ready(eqx.filter(self._state.model, eqx.is_array))
        return self._state

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Notes the seconds of a part of the next episode, if it succeeds."""
        number, began = self.episode, disk.clock()
        yield
        self.store.note_seconds(number, **{part: disk.clock() - began})

    @property
    def episode(self) -> int:
        """Number of the next episode."""
        return self.store.episodes + 1

    def ask(self, initial: Mass | None = None) -> Plan:
        """The plan of the next episode, from disk; if there is none, it is made and written.

        ``initial`` is where the population is today, if not where the problem says; raises if the
        plan on disk starts elsewhere.
        """
        if self._plan is None:
            if not self.store.asked:
                state = self.state
                with self._timed("plan"):
                    plan = self.setup.learner.ask(state, initial=initial)
                self.store.write_plan(plan)
            # From disk even if it was just made, to go on as after an interruption.
            self._plan = self._read_plan(self.episode)
        start = self._plan.mass[0]
        if initial is not None and float(jnp.max(jnp.abs(start - initial))) > MASS_TOLERANCE:
            file, which = self.store.path("plans", self.episode), f"episode {self.episode}"
            raise UserError(
                f"{which} of the run {self.store.directory} was planned from another distribution "
                f"already; run that plan and tell its episode, or delete {file} to plan anew"
            )
        return self._plan

    def replan(
        self, mass: Mass, step: int, options: dict[str, Any] | None = None, shock: int | None = None
    ) -> Plan:
        """Plans the rest of the next episode anew, from a step on, in place of the last plan.

        If that was made for the same step, place and options, it is read from disk. ``mass`` is
        where the population was observed to be, ``options`` are those of the environment that are
        others for the rest of this episode, such as the demand; ``shock`` is the number of the
        present shock, if the problem has shocks.
        """
        asked, given = self.asked(), options or {}
        for last in self.store.replans(asked.episode)[-1:]:
            start = np.asarray(self.ask().mass[last["step"]])
            same = float(np.max(np.abs(start - np.asarray(mass)))) <= MASS_TOLERANCE
            known = last["options"], last.document.get("shock")
            if last["step"] == step and same and known == (given, shock):
                return self.ask()
        problem, config = None, self.store.config
        if given:
            problem = build_problem(replace(config, options=config.options | given), self.imports)
        if config.population is not None:  # vehicles were counted, so that chance begins later
            problem = for_population(problem or self.setup.problem, config.population, seen=step)
        state, plan = self.state, self.ask()
        with self._timed("replan"):
            learner = self.setup.learner
            fresh = learner.replan(state, plan, mass, step, problem=problem, shock=shock)
        self.store.write_replan(fresh, step, given, shock)
        self._plan = None
        return self.ask()

    def best(self, *, cautious: bool = False) -> BestPlan:
        """The policy that all data make best, made and written if need be; raises without data."""
        kind = "cautious" if cautious else "best"
        found = self.store.read_best(kind)
        if found is None:
            if not len(self.data) and not self.store.logs:
                first = "tell it an episode first, `mufield ask` plans one, or a log"
                raise UserError(f"the run {self.store.directory} has no data yet; {first}")
            best_run: tuple[Profile, float | None] | None = None
            if self.store.episodes:
                number = self.store.best_episode
                value, elsewhere, _ = self.store.earned[number - 1]
                best_run = (self._read_plan(number).profile, value if elsewhere is None else None)
            learner, problem, state = self.setup.learner, self.setup.problem, self.state
            for log in self.store.logs:
                if log["since"] > self.episode:  # told while a plan waits, which does not know it
                    state = learner.add(state, to_transitions(log, problem))
            with self._timed(kind):
                found = learner.best(state, cautious=cautious, best_run=best_run)
                if (size := self.store.config.population) is not None:
                    fleet = FiniteSystem(*likely_motion(learner, state, problem), agents=size)
                    found = with_chance(found, fleet, state.key_for(Use.DRAW))
            self.store.write_best(found, kind)
        return found

    def asked(self) -> Asked:
        """What the next episode to be told must belong to; raises if nothing was asked."""
        if not self.store.asked:
            run, done = self.store.directory, self.store.episodes
            told = f"episode {done} was told already; " if done else ""
            first = f"run `mufield ask {run}` first, then its policy, and tell that"
            raise UserError(f"the run {run} expects no episode: {told}{first}")
        return Asked(
            problem=self.setup.problem,
            profile=self.ask().profile,
            start=np.asarray(self.ask().mass[0], dtype=float),
            run=self.store.config.identity,
            episode=self.episode,
            policy=self.store.plan_id(self.episode),
            changes=tuple((each["step"], each["id"]) for each in self.store.replans(self.episode)),
        )

    def tell(
        self,
        episode: Episode,
        *,
        source: dict[str, Any] | None = None,
        repeated: bool = True,
        greedy: GreedyRun | None = None,
        notes: Sequence[str] = (),
    ) -> EpisodeMetrics:
        """Makes an episode part of the run; raises, and changes nothing, if it does not fit.

        It was observed under the plan of the last `ask`. ``source`` and ``notes`` are kept with it;
        ``repeated`` says whether it may equal an earlier one, number for number; ``greedy`` is what
        a plan without optimism earned, if that is known.
        """
        asked = self.asked()
        self.data.append(episode)  # raises if it does not fit the problem
        if not repeated:
            content = digest("", observed_arrays(episode))
            check_new("episode", content, source or {}, self.store.records)
        config, plan = self.store.config, self.ask()
        if asked.changes:  # the last plan expected what the rest of the day earns, not the whole
            anew = ", ".join(str(step) for step, _ in asked.changes)
            note = "; ".join(each for each in (plan.note, f"planned anew from step {anew}") if each)
            plan = replace(plan, value=jnp.nan * plan.value, note=note)
        known: Any = {"earlier": self.store.earned, "reference": config.reference}
        metrics = measure(self.state, plan, episode, greedy=greedy, notes=notes, **known)
        if not math.isfinite(metrics.value):
            what = f"expected rewards whose sum is a number, got J = {metrics.value}"
            raise UserError(f"{what}; tell them in larger units")
        self.store.write_episode(episode, metrics, source or {"from": "simulator"})
        self.reread()
        return metrics

    def tell_file(self, path: Path, *, repeated: bool = False, **given: Any) -> EpisodeMetrics:
        """Tells an episode from a file; ``given`` is as of `read_episode`."""
        notes: list[str] = []
        episode = read_episode(path, self.asked(), notes=notes, **given)
        source = {"file": path.name, "sha256": file_digest(path)}
        return self.tell(episode, source=source, repeated=repeated, notes=notes)

    def tell_log(self, path: Path, *, repeated: bool = False, **given: Any) -> Record:
        """Tells transitions that belong to no episode from a file; ``given`` is as of `read_log`.

        Raises, and changes nothing, if they cannot be right. Plans know them from the next on; one
        that was asked for already stays as it is.
        """
        log = read_log(path, self.setup.problem, **given)
        source = {"file": path.name, "sha256": file_digest(path), "notes": list(log.notes)}
        if not repeated:
            check_new("log", digest("", logged_arrays(log.data)), source, self.store.logs)
        record = self.store.write_log(log.data, source)
        if record["since"] == self.episode:
            self.reread()
        return record

    def reread(self) -> None:
        """Reads the data again, after more were written; the plan is forgotten."""
        self.data, self.ends = history_of(self.store, self.setup.problem)
        self._state = self._plan = None

    def step(self) -> EpisodeMetrics:
        """Asks, runs the simulator and tells: one episode."""
        system = self.setup.system
        if system is None:
            what = "is of a real system, which cannot be run here"
            use = "use `mufield ask` and `mufield tell`"
            raise UserError(f"the run {self.store.directory} {what}; {use}")
        plan, greedy, key = self.ask(), None, self.state.key_for(Use.RUN)
        if self.store.config.judge:
            with self._timed("judge"):
                greedy = run_greedy_plan(system, self.setup.learner, self.state)
        with self._timed("run"):
            episode = run_plan(system, plan, key, self.store.config.agents)
            return self.tell(episode, greedy=greedy)

    def _read_plan(self, number: int) -> Plan:
        return self.store.read_plan(number, self._memory)

    @cached_property
    def _memory(self) -> Any:
        return eqx.filter_eval_shape(self.setup.learner.first_memory, jax.random.key(0))


def check_new(what: str, content: str, source: dict[str, Any], earlier: Sequence[Record]) -> None:
    """Raises if an episode or a log equals an earlier one, or is of the same file."""
    file = source.get("sha256")
    for number, record in enumerate(earlier, start=1):
        if record.content == content or (file and file == record["source"].get("sha256")):
            told = f"this {what} was told already, as {what} {number}"
            raise UserError(f"{told}; tell another, or pass --repeated if the same happened twice")


@contextmanager
def open_run(
    directory: Path, setup: Setup | None = None, *, imports: str | None = None
) -> Iterator[Session]:
    """Opens a run for as long as the block lasts; other processes are kept out.

    Its configuration is built again, unless ``setup`` is what `build` made of it.
    """
    with RunStore.writing(directory) as store:
        if setup is None or setup.config.identity != store.config.identity:
            setup = build(store.config, imports)
        yield Session(store, setup, imports)
