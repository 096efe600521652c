"""An open run: ask, run, tell, with everything on disk before the next step.

The learner's state is always made from what is on disk, interrupted or not. So a run that was
killed and goes on computes the same as one that was not.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._files import digest, file_digest
from .._progress import expect, progress_bar
from .._types import Mass
from ..episode import Episode
from ..errors import UserError
from ..learning.best import BestPlan
from ..learning.m3ucrl import CHOOSING, RUN, LearnerState, PlanError
from ..learning.run import EpisodeMetrics, Usable, judged, measure
from ..observed.checks import Asked
from ..observed.episode import read_episode
from ..observed.log import read_log
from ..planning.planner import Plan
from ..policies.base import Profile
from ..policies.files import load_policy, read_info
from ..space.measure import MASS_TOLERANCE
from .build import Setup, build, build_problem, resolve, with_reward_options
from .config import RunConfig
from .layout import LogRecord, read_seconds
from .metrics_files import event_writer
from .store import (
    RunStore,
    check_vacant,
    logged_arrays,
    observed_arrays,
    to_transitions,
    told,
)
from .surroundings import import_users

KINDS = ("best", "cautious")
"""Kinds of policies that all data make best."""

STAGES = {"fit": "fitting", "plan": "planning", **dict(zip(KINDS, CHOOSING, strict=True))}
"""What a run's timings call the stages that are shown while it learns."""


class Session:
    """An open run: its files and its learner, kept in step.

    Attributes:
        data: The transitions that the next plan knows.
        ends: Number of transitions after each episode.
    """

    def __init__(self, store: RunStore, setup: Setup, imports: str | None = None):
        """Reads the data of all episodes and logs so far."""
        self.store = store
        self.imports = imports
        self.setup = setup
        self.data, self.ends, _ = told(store, setup.problem)
        self._state: LearnerState | None = None
        self._plan: Plan | None = None
        for row in read_seconds(store.directory):
            for part, name in STAGES.items():
                if isinstance(row.get(part), float | int):
                    expect(name, row[part])

    @property
    def state(self) -> LearnerState:
        """The learner's state; the model is fitted when it is first needed."""
        if self._state is None:
            began, learner = time.perf_counter(), self.setup.learner
            key = jax.random.key(self.store.config.seed)
            if self.ends:
                last = self._read_plan(self.store.episodes)
                self._state = learner.restore(key, self.data, self.ends, last.memory, last.profile)
            else:
                self._state = learner.init(key, self.data)
            jax.block_until_ready(eqx.filter(self._state.model, eqx.is_array))
            self.store.note_seconds(self.episode, fit=time.perf_counter() - began)
        return self._state

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
                state, began = self.state, time.perf_counter()
                try:
                    plan = self.setup.learner.ask(state, initial=initial)
                except PlanError as error:
                    raise UserError(
                        f"the run {self.store.directory} cannot plan episode {self.episode}: "
                        f"{error}"
                    ) from error
                self.store.note_seconds(self.episode, plan=time.perf_counter() - began)
                self.store.write_plan(plan)
            # From disk even if it was just made, to go on as after an interruption.
            self._plan = self._read_plan(self.episode)
        start = self._plan.mass[0]
        if initial is not None and float(jnp.max(jnp.abs(start - initial))) > MASS_TOLERANCE:
            raise UserError(
                f"episode {self.episode} of the run {self.store.directory} was planned from "
                "another distribution already; run that plan and tell its episode, or delete "
                f"{self.store.path('plans', self.episode)} to plan anew"
            )
        return self._plan

    def replan(self, mass: Mass, step: int, options: dict[str, Any] | None = None) -> Plan:
        """Plans the rest of the next episode anew, from a step on; or reads it from disk.

        Args:
            mass: Where the population was observed to be.
            step: Number of the step that comes next.
            options: Options of the environment that are others today, such as the demand; for the
                rest of this episode only.
        """
        asked, given = self.asked(), options or {}
        changed = self.store.replans(asked.episode)
        if changed and changed[-1].step >= step:
            last = changed[-1]
            start = np.asarray(self.ask().mass[last.step])
            same = float(np.max(np.abs(start - np.asarray(mass)))) <= MASS_TOLERANCE
            if last.step == step and same and last.document["options"] == given:
                return self.ask()
            raise UserError(
                f"episode {asked.episode} of the run {self.store.directory} was planned anew from "
                f"step {last.step} already; name a later step, or delete {last.path} to plan it "
                "once more"
            )
        problem = None
        if given:
            config = self.store.config
            problem = build_problem(replace(config, options=config.options | given), self.imports)
        state, plan, began = self.state, self.ask(), time.perf_counter()
        fresh = self.setup.learner.replan(state, plan, mass, step, problem=problem)
        self.store.note_seconds(self.episode, replan=time.perf_counter() - began)
        self.store.write_replan(fresh, step, given)
        self._plan = None
        return self.ask()

    def best(self, *, cautious: bool = False) -> BestPlan:
        """The policy that all data make best, from disk; made and written if it is not there.

        Raises if there are no data yet.
        """
        kind = KINDS[cautious]
        found = self.store.read_best(kind)
        if found is None:
            if not len(self.data) and not self.store.logs:
                raise UserError(
                    f"the run {self.store.directory} has no data yet that could make a policy the "
                    "best; tell it an episode first, `mufield ask` plans one, or a log"
                )
            ran: tuple[Profile, float | None] | None = None
            if self.store.episodes:
                number = self.store.luckiest
                value, elsewhere = self.store.earned[number - 1]
                ran = (self._read_plan(number).profile, value if elsewhere is None else None)
            state = self.state
            for log in self.store.logs:
                if log.since > self.episode:  # told while a plan waits, which does not know it
                    state = self.setup.learner.add(state, to_transitions(log, self.setup.problem))
            began = time.perf_counter()
            found = self.setup.learner.best(state, cautious=cautious, ran=ran)
            self.store.note_seconds(self.episode, **{kind: time.perf_counter() - began})
            self.store.write_best(found, kind)
        return found

    def asked(self) -> Asked:
        """What the next episode to be told must belong to; raises if nothing was asked."""
        if not self.store.asked:
            done = self.store.episodes
            raise UserError(
                f"the run {self.store.directory} expects no episode: "
                + (f"episode {done} was told already; " if done else "")
                + f"run `mufield ask {self.store.directory}` first, then its policy, and tell that"
            )
        return Asked(
            problem=self.setup.problem,
            profile=self.ask().profile,
            start=np.asarray(self.ask().mass[0], dtype=float),
            run=self.store.config.identity,
            episode=self.episode,
            policy=self.store.plan_id(self.episode),
            changes=tuple((each.step, each.id) for each in self.store.replans(self.episode)),
        )

    def tell(
        self,
        episode: Episode,
        *,
        source: dict[str, Any] | None = None,
        repeated: bool = True,
        usable: Usable | None = None,
        notes: Sequence[str] = (),
    ) -> EpisodeMetrics:
        """Makes an episode part of the run; raises, and changes nothing, if it does not fit.

        Args:
            episode: What was observed under the plan of the last `ask`.
            source: Where it comes from, for the record.
            repeated: Whether it may equal an earlier one, number for number.
            usable: What a plan without optimism earned, if that is known.
            notes: Sentences on the episode, for its metrics.
        """
        asked = self.asked()
        data = self.data.append(episode)  # raises if it does not fit the problem
        if not repeated:
            self._check_new(episode, source or {})
        config = self.store.config
        plan = self.ask()
        if asked.changes:  # what the whole day was expected to earn, only its first plan said
            anew = ", ".join(str(step) for step, _ in asked.changes)
            note = "; ".join(each for each in (plan.note, f"planned anew from step {anew}") if each)
            plan = replace(plan, value=self._first_plan(self.episode).value, note=note)
        metrics = measure(
            self.state,
            plan,
            episode,
            data,
            earlier=self.store.earned,
            reference=config.reference,
            usable=usable,
            notes=notes,
        )
        self.store.write_episode(episode, metrics, source or {"from": "simulator"})
        self._reread()
        return metrics

    def tell_file(
        self,
        path: Path,
        *,
        mass_path: Path | None = None,
        agents: Sequence[str] = (),
        policy_path: Path | None = None,
        repeated: bool = False,
    ) -> EpisodeMetrics:
        """Tells an episode from a file; raises, and changes nothing, if it cannot be right.

        Args:
            path: The file of agents.
            mass_path: The file of distributions, if there is one.
            agents: The agents to learn from; by default all.
            policy_path: The policy file that was run, to check that it is the one asked for.
            repeated: Whether the episode may equal an earlier one.
        """
        asked = self.asked()
        if policy_path is not None:
            info = read_info(policy_path)
            last = asked.policy_at(math.inf)
            if info.get("id") != last:
                raise UserError(
                    f"{policy_path} is not the policy that was asked for last: expected the id "
                    f"{last} of episode {asked.episode} of the run {asked.run}, got "
                    f"{info.get('id')} of episode {info.get('episode')} of the run "
                    f"{info.get('run')}; tell the episode of that policy"
                )
            # In early versions plans of the same data had one id, whatever they started from.
            if not eqx.tree_equal(load_policy(policy_path), asked.profile):
                raise UserError(
                    f"{policy_path} is not the policy that was asked for last, though it has its "
                    f"id {last}: it does other things, as if planned from another start; tell the "
                    "episode in the run that it was asked of"
                )
        notes: list[str] = []
        episode = read_episode(path, asked, mass_path=mass_path, agents=agents, notes=notes)
        source = {"file": path.name, "sha256": file_digest(path)}
        return self.tell(episode, source=source, repeated=repeated, notes=notes)

    def tell_log(
        self,
        path: Path,
        *,
        mass_path: Path | None = None,
        agents: Sequence[str] = (),
        repeated: bool = False,
    ) -> LogRecord:
        """Tells transitions that belong to no episode from a file; see `read_log`.

        Raises, and changes nothing, if they cannot be right. Plans know them from the next on; one
        that was asked for already stays as it is. ``repeated`` accepts a log that equals an
        earlier one.
        """
        log = read_log(path, self.setup.problem, mass_path=mass_path, agents=agents)
        source = {"file": path.name, "sha256": file_digest(path), "notes": list(log.notes)}
        content = digest("", logged_arrays(log.data))
        for number, earlier in enumerate(self.store.logs, start=1):
            same = content == earlier.content or source["sha256"] == earlier.source.get("sha256")
            if same and not repeated:
                raise UserError(
                    f"{path} was told already, as log {number}; tell another, or pass --repeated "
                    "if the same really happened twice"
                )
        record = self.store.write_log(log.data, source)
        if record.since == self.episode:
            self._reread()
        return record

    def _reread(self) -> None:
        self.data, self.ends, _ = told(self.store, self.setup.problem)
        self._state = self._plan = None

    def step(self) -> EpisodeMetrics:
        """Asks, runs the simulator and tells: one episode."""
        system = self.setup.system
        if system is None:
            raise UserError(
                f"the run {self.store.directory} is of a real system, which cannot be run here; "
                "use `mufield ask` and `mufield tell`"
            )
        plan, number, began = self.ask(), self.episode, time.perf_counter()
        key = self.state.key_for(RUN)
        episode = system.run(plan.profile, key, agents=self.store.config.agents)
        ran, usable = time.perf_counter(), None
        if self.store.config.judge:
            usable = judged(system, self.setup.learner, [self.state])[0]
            self.store.note_seconds(number, judge=time.perf_counter() - ran)
        began += time.perf_counter() - ran
        metrics = self.tell(episode, usable=usable)
        self.store.note_seconds(number, run=time.perf_counter() - began)
        return metrics

    def _check_new(self, episode: Episode, source: dict[str, Any]) -> None:
        content, file = digest("", observed_arrays(episode)), source.get("sha256")
        for number, record in enumerate(self.store.records, start=1):
            if record.content == content or (file and file == record.source.get("sha256")):
                raise UserError(
                    f"this episode was told already, as episode {number}; tell the one that the "
                    "last policy gave, or pass --repeated if the system really did the same again"
                )

    def _read_plan(self, number: int) -> Plan:
        """The plan that an episode was ended with."""
        plan, changed = self._first_plan(number), self.store.replans(number)
        return self.store.read_replan(changed[-1], plan) if changed else plan

    def _first_plan(self, number: int) -> Plan:
        return self.store.read_plan(number, self._memory)

    @cached_property
    def _memory(self) -> Any:
        """The shapes of the planner's memory."""
        return eqx.filter_eval_shape(self.setup.learner.first_memory, jax.random.key(0))


def new_run(directory: Path, config: RunConfig, *, simulated: bool = False) -> Setup:
    """Begins a run in a new or empty directory.

    Raises before anything is written if the configuration is wrong, or if the run is to be
    ``simulated`` and its problem has no simulator.
    """
    check_vacant(directory)  # first, because building takes seconds
    full = resolve(config)
    if full.imports is not None and full.imports.endswith(".py"):
        # So that the run can be resumed from anywhere.
        full = replace(full, imports=str(Path(full.imports).expanduser().resolve()))
    setup = with_reward_options(build(full))
    if simulated and setup.system is None:
        raise UserError(
            f"{config.environment!r} is a problem without a simulator, which cannot be trained "
            f"here; begin with `mufield new {config.environment} --out {directory}`, then ask and "
            "tell"
        )
    RunStore.create(directory, setup.config, import_users(full.imports))
    return setup


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


def learn_run(
    directory: Path,
    episodes: int | None = None,
    *,
    setup: Setup | None = None,
    imports: str | None = None,
    tensorboard: bool = False,
    check: Callable[[], None] | None = None,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Goes on with a run on a simulator until it has a number of episodes.

    Args:
        directory: A run that `new_run` began, however it was stopped since.
        episodes: Number of episodes in all; by default what the configuration says.
        setup: What `new_run` returned, to save time.
        imports: The user's own file, if it is no longer where it was when the run began.
        tensorboard: Whether to write all metrics as TensorBoard events, too.
        check: Called before each episode; it may raise to stop.
        progress: Whether to show a bar with the figures of the last episode.

    Returns:
        The metrics of all episodes.
    """
    if episodes is not None and episodes < 1:
        raise UserError(f"expected at least one episode, got {episodes}")
    with open_run(directory, setup, imports=imports) as session:
        store = session.store
        if episodes is not None:
            store.set_target(episodes)
        total = store.config.episodes
        events = event_writer(directory / "tensorboard", store.rows) if tensorboard else None
        with (
            events or nullcontext() as write,
            progress_bar("learning", total, shown=progress) as report,
        ):
            while store.episodes < total:
                if check is not None:
                    check()
                session.step()
                row = store.rows[-1]
                if write is not None:
                    write(row)
                report(store.episodes, **_figures(row))
        return store.rows


def _figures(row: dict[str, Any]) -> dict[str, float]:
    others = ("optimistic", "usable", "best", "beta", "spread", "reference")
    figures = {"J": row["value"]} | {name: row.get(name) for name in others}
    return {name: value for name, value in figures.items() if value is not None}
