"""Histories of runs and jobs on a simulated disk, each drawn from a seed and judged as it goes.

A history begins runs, asks, tells, replans, exports, copies and computes jobs, while the disk
fails, the process is killed or the power goes. Beside it the same history happens on a disk that
never fails. What must hold, whatever happens:

- what was acknowledged is there, after a power failure, too;
- what was refused changed nothing, and what failed happened as a whole or not at all;
- the same history gives the same bits, interrupted or not.

    python tests/histories.py 0 60      # from seed 0 on, for a minute; ends at the first violation

The learner is a fake, whose plans are drawn from a digest of all that it knows, so that nothing is
compiled and one wrong bit in its data changes all that follows.
"""

import hashlib
import itertools
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from simulated_disk import Crash, Fault, SimulatedDisk, contents

import mufield as mf
from mufield.errors import UserError
from mufield.io.atomic import write_bytes
from mufield.jobs import compute
from mufield.jobs.job import Job, JobStore
from mufield.jobs.pool import SameProcess, compute_missing
from mufield.learning.best import BestPlan
from mufield.learning.m3ucrl import M3UCRL
from mufield.learning.metrics import EpisodeMetrics
from mufield.learning.state import LearnerState
from mufield.models.data import Transitions
from mufield.planning.planner import Plan
from mufield.policies.base import Profile
from mufield.policies.tables import TablePolicy
from mufield.runs import session, store
from mufield.runs.build import Setup
from mufield.runs.config import RunConfig
from mufield.runs.files import RunFiles
from mufield.runs.session import open_run
from mufield.runs.store import RunStore

RUNS = (Path("/simulated/one"), Path("/simulated/two"))
JOBS, USED = Path("/simulated/jobs"), Path("/simulated/use.policy")
DERIVED = ("metrics.jsonl", "last.policy", "best_episode.policy")
ACTIONS = {"ask": 6, "tell": 6, "log": 2, "replan": 3, "best": 1, "export": 1, "target": 1}
"""What is done with a run that is there, and how often."""


class Violation(AssertionError):
    """Something that must not happen has happened; says how to see it again."""


class State:
    """All that the fake learner knows."""

    __class__ = LearnerState  # so that checks of types let it pass

    def __init__(self, data, ends, memory):
        self.data, self.ends, self.memory, self.model = data, ends, memory, None


class Learner:
    """Draws its plans from a digest of all that it knows."""

    __class__ = M3UCRL

    def __init__(self, problem):
        self.problem = problem

    def first_memory(self, key):
        return jnp.zeros(2)

    def init(self, key, data):
        return self.restore(key, data, (), jnp.zeros(2), None, None)

    def restore(self, key, data, ends, memory, profile, mass):
        return State(data, ends, memory)

    def add(self, state, data):
        return State(state.data.join(data), state.ends, state.memory)

    def ask(self, state, initial=None):
        return self._plan(state, 0, initial)

    def replan(self, state, plan, mass, step, problem=None):
        return self._plan(state, step, mass)

    def best(self, state, cautious, best_run):
        profile = self._plan(state, 0, None).profile
        return BestPlan(profile, 1.0, 0.0, 2.0, 3, "drawn", len(state.data))

    def _plan(self, state, step, mass):
        draw, problem = _draw_from(state), self.problem
        masses = draw.dirichlet(np.ones(problem.grid.n_cells), problem.horizon + 1)
        if mass is not None:
            masses[step] = mass
        shape = (problem.horizon, problem.grid.n_cells, problem.actions.dim)
        table = TablePolicy.deterministic(jnp.asarray(draw.uniform(-1, 1, shape)))
        return Plan(
            profile=Profile.stacked(table, problem.horizon),
            memory=jnp.asarray(draw.uniform(size=2)),
            value=jnp.asarray(draw.uniform()),
            mass=jnp.asarray(masses),
            control=jnp.asarray(0.5),
        )


def _draw_from(state):
    """Random numbers that all that a learner knows decides."""
    total = hashlib.sha256(np.asarray(state.memory).tobytes())
    for name in ("states", "actions", "next_states", "observed", "mass", "moment"):
        total.update(np.ascontiguousarray(getattr(state.data, name)).tobytes())
    return np.random.default_rng(int.from_bytes(total.digest()[:8], "little"))


def _measure(state, plan, episode, *, earlier, notes, **_):
    value = float(np.asarray(episode.rewards).sum())
    return EpisodeMetrics(
        episode=len(state.ends) + 1,
        value=value,
        optimistic=None if np.isnan(plan.value) else float(plan.value),
        beta=1.0,
        spread=None,
        control=0.5,
        w1_end=None,
        coverage=None,
        transitions=len(state.data),
        best=max([value, *(each.value for each in earlier)]),
        notes=tuple(notes),
    )


@cache
def world():
    """The one small problem of all histories, and episodes, logs and places in it."""
    system = mf.make("four-rooms", horizon=3, drawing="...\n.#.\n...")
    problem, dim = system.problem, 2
    config = RunConfig("four-rooms", precision="float64", label="simulated")
    episodes, draw = [], np.random.default_rng(0)
    for _ in range(6):
        cells = draw.integers(problem.grid.n_cells, size=(1, problem.horizon + 1))
        places = np.asarray(problem.grid.centres)[cells]
        episodes.append(
            mf.Episode(
                states=jnp.asarray(places[:, :-1]),
                actions=jnp.zeros((1, problem.horizon, dim)),
                next_states=jnp.asarray(places[:, 1:]),
                stopped=jnp.zeros((1, problem.horizon, dim), dtype=bool),
                mass=jnp.asarray(draw.dirichlet(np.ones(8), problem.horizon + 1)),
                rewards=jnp.asarray(draw.uniform(size=problem.paid_steps)),
            )
        )
    return SimpleNamespace(
        setup=Setup(config, problem, None, Learner(problem)),
        episodes=episodes,
        logs=[Transitions.of(problem, [each]) for each in episodes],
        masses=draw.dirichlet(np.ones(8), 6),
        jobs=[Job(f"job{k}", "fake", {"precision": "float64", "imports": None}) for k in range(3)],
    )


def _fake_job(settings, directory):
    write_bytes(directory / "checkpoint", b"half")
    return {"value": 1.5, "rewards": np.arange(3.0), "seconds": 1.0}


def surroundings():
    """Fakes of what takes time and is not under test."""
    stack = ExitStack()
    stack.enter_context(mock.patch.object(session, "measure", _measure))
    stack.enter_context(mock.patch.object(store, "versions", return_value={"mufield": "0"}))
    stack.enter_context(mock.patch.dict(compute.KINDS, {"fake": _fake_job}))
    return stack


def act(name, run, number, meanwhile=lambda: None):
    """Does one thing, as a process of its own would; ``meanwhile`` is done while a run is open."""
    known = world()
    if name == "new":
        RunStore.create(run, known.setup.config)
    elif name == "job":
        jobs, job = JobStore(JOBS), known.jobs[number % 3]
        with jobs.writing():
            for ended in compute_missing([job], jobs, SameProcess(), progress=False):
                if ended.problem:
                    raise OSError(ended.problem)
    elif name == "export":
        found = RunFiles(run)
        path = found.policy_path(found.episode_number("last"))
        write_bytes(USED, store.disk.read_bytes(path))
    else:
        with open_run(run, known.setup) as opened:
            meanwhile()
            _act_on(opened, name, number, known)


def _act_on(opened, name, number, known):
    mass = jnp.asarray(known.masses[number])
    if name == "ask":
        opened.ask(mass if number == 5 else None)
    elif name == "tell":
        opened.tell(known.episodes[number], source={"from": str(number)}, repeated=number > 2)
    elif name == "log":
        opened.store.write_log(known.logs[number], {"from": str(number)})
    elif name == "replan":
        opened.replan(mass, number % 3)
    elif name == "best":
        opened.best(cautious=number > 2)
    elif name == "target":
        opened.store.set_target(number + 1)


def core(disk, run):
    """What makes up a run, by the bytes of its files; nothing if there is none."""
    there = contents(disk, run)
    kept = {n: d for n, d in there.items() if n.endswith(".safetensors") or n == "config.json"}
    policies = {n: n.replace("policies", "plans") for n in there if n.endswith(".policy")}
    for name, plan in policies.items():
        if "/" in name and plan.replace(".policy", ".safetensors") in there:
            kept[name] = there[name]
    return kept if "config.json" in there else {}


class History:
    """One history; `run` raises a Violation if something happens that must not."""

    def __init__(self, seed, length=14):
        self.seed, self.length, self.draw = seed, length, random.Random(seed)
        self.trace, self.faults = [], 0
        self.disk, self.sound = SimulatedDisk(self.draw), SimulatedDisk(random.Random(seed))
        for each in (self.disk, self.sound):
            with each.installed():
                each.make_directory(RUNS[0].parent)
                each.sync_directory(Path("/"))
        self.done_jobs = set()
        # What was killed or failed may be there and yet not synced. Nobody was told that it is, so
        # a power failure may take it, until the run is opened: the disk without it, by run.
        self.unsynced = {}

    def run(self):
        """Lets it happen; returns how often each kind of fault struck."""
        try:
            for _ in range(self.length):
                self._step()
            self._power_cut()
            for run in RUNS:
                self._open(run)
        except (Violation, Crash):
            raise
        except Exception as error:  # a traceback is a violation, too
            self._fail(f"{type(error).__name__}: {error}", error)
        return self.disk.happened

    def _fail(self, what, cause=None):
        lines = "\n  ".join(self.trace)
        raise Violation(f"{what}\nseed {self.seed} replays this history:\n  {lines}") from cause

    def _step(self):
        run, number = self.draw.choice(RUNS), self.draw.randrange(6)
        there = bool(core(self.sound, run))
        usual = list(ACTIONS) if there else ["new"]
        weights = list(ACTIONS.values()) if there else [6]
        more = {"job": 1, "power": 2, "copy": 1, "concurrent": 2, "open": 1, "new": 1, "ask": 1}
        chosen = self.draw.choices([*usual, *more], [*weights, *more.values()])[0]
        self.trace.append(f"{chosen} {run.name} {number}")
        if chosen == "power":
            self._power_cut()
        elif chosen == "open":
            self._open(run)
        elif chosen == "copy":
            self._copy(run)
        elif chosen == "concurrent":
            self._concurrently(run, number)
        else:
            self._attempt(chosen, run, number)
        self._compare()

    def _attempt(self, name, run, number):
        """Does one thing while the disk may fail, and sees what came of it."""
        if self.draw.random() < 0.5:
            kind = self.draw.choice(("kill", "power", "ENOSPC", "EIO", "EMFILE"))
            after, only = int(self.draw.expovariate(1 / 12)), ""
            # Between a rename and its sync most can go wrong.
            if kind != "ENOSPC" and self.draw.random() < 0.3:
                after, only = self.draw.randrange(8), "sync_directory"
            self.disk.fault = Fault(kind, after, self.draw.random() < 0.3, only)
            self.trace[-1] += f", {kind} after {after} {only}".rstrip()
        struck = self.disk.happened.total()
        before = core(self.disk, run)
        outcome, error = self._outcome(self.disk, name, run, number)
        faulty = self.disk.happened.total() > struck
        kind = self.disk.fault.kind if self.disk.fault else ""
        self.disk.fault = None
        self.trace[-1] += f": {outcome}"
        if outcome == "crashed":
            self._restart(power=kind == "power")
        if outcome == "done":
            if name not in ("job", "export"):  # these do not open the run to write to it
                self.unsynced.pop(run, None)
            self._happen(name, run, number, error)
            return
        if outcome == "refused" and core(self.disk, run) != before:
            self._fail(f"refused, and yet changed something: {error}")
        if outcome == "refused" and not faulty:
            expected, _ = self._outcome(self.sound.fork(), name, run, number)
            if expected != "refused":
                self._fail(f"refused without a reason: {error}", error)
        if outcome == "failed" and not faulty:
            self._fail(f"failed without a fault: {error}", error)
        # It happened as a whole or not at all.
        if outcome in ("failed", "crashed") and core(self.disk, run) != core(self.sound, run):
            if kind != "power":
                self.unsynced[run] = self.sound.fork()
            self._happen(name, run, number, error)

    def _outcome(self, disk, name, run, number):
        with disk.installed():
            try:
                act(name, run, number)
            except UserError as error:
                return "refused", error
            except OSError as error:
                return "failed", error
            except Crash:
                return "crashed", None
        return "done", None

    def _happen(self, name, run, number, cause):
        """Lets the same happen on the disk that never fails."""
        if name == "job":
            self.done_jobs.add(number % 3)
            return
        expected, error = self._outcome(self.sound, name, run, number)
        if expected != "done":
            self._fail(f"should have been {expected}: {error}", cause)

    def _compare(self):
        """All that was acknowledged is there, and nothing else."""
        for run in RUNS:
            found, expected = core(self.disk, run), core(self.sound, run)
            odd = [n for n in {**found, **expected} if found.get(n) != expected.get(n)]
            if odd:
                self._fail(f"{run.name}: {', '.join(odd)} lost, or other than without faults")
        with self.disk.installed():
            for job in self.done_jobs:
                if JobStore(JOBS).find(world().jobs[job]) is None:
                    self._fail(f"the result of job {job} is lost")

    def _power_cut(self):
        self.disk.happened["power"] += 1
        self._restart(power=True)
        self._compare()

    def _restart(self, power):
        self.disk.restart(power)
        if power:
            for run, before in self.unsynced.items():
                if core(self.disk, run) == core(before, run):
                    self.sound.take_back(before, run)
            self.unsynced = {}

    def _open(self, run):
        """A run that is opened is complete again, and nothing is left behind."""
        if not core(self.sound, run):
            return
        self.unsynced.pop(run, None)
        for disk in (self.disk, self.sound):
            with disk.installed(), open_run(run, world().setup):
                pass
        found, expected = contents(self.disk, run), contents(self.sound, run)
        odd = [name for name in DERIVED if found.get(name) != expected.get(name)]
        odd += [name for name in found if name.endswith(".tmp")]
        if odd:
            self._fail(f"{run.name}: {', '.join(odd)} is not as it should be")

    def _copy(self, run):
        other = RUNS[run == RUNS[0]]
        if core(self.sound, run) and not core(self.sound, other):
            self.disk.copy(run, other)
            self.sound.copy(run, other)

    def _concurrently(self, run, number):
        """A second process tries to write while a run is open."""
        names = [self.draw.choice(("ask", "tell", "log", "target")) for _ in range(2)]
        others = self.draw.randrange(6)
        self.trace[-1] += f": {names}, {others}"
        seen = []

        def meanwhile():
            self.unsynced.pop(run, None)
            seen.append(self._outcome(self.disk, names[1], run, others)[0])
            if seen[0] == "done":
                self._happen(names[1], run, others, None)

        with self.disk.installed():
            try:
                act(names[0], run, number, meanwhile)
            except UserError:
                return
        self._happen(names[0], run, number, None)


def draw_histories(first, seconds, least=1):
    """Lets histories happen for some processor seconds; yields each seed, and faults or violation.

    There are at least ``least`` of them, however slow the machine is.
    """
    end = time.process_time() + seconds
    with surroundings():
        for seed in itertools.count(first):
            try:
                yield seed, History(seed).run()
            except Violation as error:
                yield seed, error
            if time.process_time() > end and seed - first + 1 >= least:
                return


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    world()
    count, faults = 0, Counter()
    for _, found in draw_histories(int(sys.argv[1]), float(sys.argv[2]), least=21):
        if isinstance(found, Violation):
            raise found
        count, faults = count + 1, faults + found
    sys.stdout.write(f"{count} histories, faults: {dict(faults)}\n")
