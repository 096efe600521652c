"""Writing to a run's directory: no file is ever half written, and one process writes at a time."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten_with_path, tree_map_with_path

from .._files import (
    check_file,
    check_own,
    digest,
    file_digest,
    locked,
    remove_leftovers,
    unusable,
    write_changed,
    write_json,
    write_lines,
    write_sealed,
)
from ..episode import Episode
from ..errors import UserError
from ..learning.best import BestPlan
from ..learning.run import EpisodeMetrics
from ..models.data import Transitions
from ..planning.planner import Plan
from ..policies.base import Profile
from ..policies.files import leaf_name, load_policy, plain, read_info, save_policy
from ..problem import Problem
from .config import RunConfig, read_config
from .layout import (
    COLUMNS,
    CONFIG,
    EPISODE,
    LOG,
    LOGGED,
    METRICS,
    OBSERVED,
    PARTS,
    PLAN,
    PLANNED,
    REPLAN,
    SOMETIMES,
    TIMINGS,
    VERSIONS,
    EpisodeRecord,
    LogRecord,
    ReplanRecord,
    RunFiles,
    read_seconds,
    replan_path,
)
from .metrics_files import write_columns
from .surroundings import versions

FACTS = ("expected", "lower", "upper", "draws", "transitions", "how")
"""What is kept with the policy that the data make best: fields of `BestPlan`."""

MEMORY = "memory."
"""Prefix of the arrays of the planner's memory in a plan's file."""


class RunStore(RunFiles):
    """A run that can be written to; only the process that holds the lock may."""

    @classmethod
    def create(cls, directory: Path, config: RunConfig, imported: Path | None = None) -> "RunStore":
        """Begins a run in a new or empty directory."""
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory):
            check_vacant(directory)
            check_own(directory)
            remove_leftovers(directory)
            for part in PARTS:
                (directory / part).mkdir(exist_ok=True)
            write_json(directory / VERSIONS, versions(imported))
            # Last, because with this file the directory counts as a run.
            write_json(directory / CONFIG, config.document())
        return cls(directory)

    @classmethod
    @contextmanager
    def writing(cls, directory: Path) -> Iterator["RunStore"]:
        """Opens a run to write to it, and completes what a crash left undone."""
        read_config(directory)  # raises if there is no run, before a lock is made there
        check_own(directory)
        with locked(directory):
            remove_leftovers(directory)
            store = cls(directory)
            store.derive()
            yield store

    def set_target(self, episodes: int) -> None:
        """Changes the number of episodes that the run is to have."""
        if episodes != self.config.episodes:
            self.config = replace(self.config, episodes=episodes)
            write_json(self.directory / CONFIG, self.config.document())

    def write_plan(self, plan: Plan) -> None:
        """Writes the plan of the next episode: its policy, then the file that makes it count."""
        number = self.episodes + 1
        policy = self.path("policies", number)
        document, arrays = plain(plan.profile)
        content = digest(json.dumps(document, sort_keys=True), arrays)
        name = self.new_plan_id(number, content, np.asarray(plan.mass))
        about = {"run": self.config.identity, "episode": number, "id": name}
        save_policy(policy, plan.profile, info=about)
        leaves = tree_flatten_with_path(eqx.filter(plan.memory, eqx.is_array))[0]
        memory = {MEMORY + leaf_name(path): leaf for path, leaf in leaves}
        least = {} if plan.least is None else {"least": plan.least}
        write_sealed(
            self.path("plans", number),
            about
            | {"data": self.data_id(number), "note": plan.note}
            | {"policy_sha256": file_digest(policy)},
            {name: getattr(plan, name) for name in PLANNED} | least | memory,
            kind=PLAN,
        )

    def read_plan(self, number: int, memory: Any) -> Plan:
        """The plan of an episode; ``memory`` is like the planner's, with arrays or their shapes."""
        document, arrays = self.read_plan_file(number)
        policy = self.path("policies", number)
        check_file(policy)
        if file_digest(policy) != document.get("policy_sha256"):
            raise unusable(policy, "it is not the policy that was planned")
        profile = load_policy(policy)
        assert isinstance(profile, Profile)
        figures: dict[str, Any] = {name: jnp.asarray(arrays.pop(name)) for name in PLANNED}
        if "least" in arrays:
            figures["least"] = jnp.asarray(arrays.pop("least"))
        filled = _fill(memory, arrays, self.path("plans", number))
        return Plan(profile=profile, memory=filled, note=document["note"], **figures)

    def write_replan(self, plan: Plan, step: int, options: dict[str, Any]) -> None:
        """Writes the next episode's plan as it was changed at a step: first its policy."""
        number = self.episodes + 1
        path, mass = replan_path(self.directory, number, step), np.asarray(plan.mass)
        path.parent.mkdir(exist_ok=True)
        name = self.replan_id(number, self.replans(number), step, mass, options)
        about = {"run": self.config.identity, "episode": number, "id": name, "step": step}
        policy = path.with_suffix(".policy")
        save_policy(policy, plan.profile, info=about)
        least = {} if plan.least is None else {"least": plan.least}
        told = {"options": options, "note": plan.note, "policy_sha256": file_digest(policy)}
        figures = {name: getattr(plan, name) for name in PLANNED}
        write_sealed(path, about | told, figures | least, kind=REPLAN)

    def read_replan(self, record: ReplanRecord, plan: Plan) -> Plan:
        """A plan as it was changed within the day; ``plan`` is the day's first."""
        check_file(record.policy)
        if file_digest(record.policy) != record.document["policy_sha256"]:
            raise unusable(record.policy, "it is not the policy that was planned")
        profile = load_policy(record.policy)
        assert isinstance(profile, Profile)
        figures = {name: jnp.asarray(array) for name, array in record.arrays.items()}
        memory, note = plan.memory, record.document["note"]
        return Plan(profile=profile, memory=memory, note=note, **figures)

    def write_best(self, plan: BestPlan, kind: str) -> None:
        """Writes the policy that all data make best, with what is expected of it."""
        about = {"run": self.config.identity, "episodes": self.episodes, "id": self.best_id(kind)}
        facts = {name: getattr(plan, name) for name in FACTS}
        save_policy(self.best_path(kind), plan.profile, info=about | facts)

    def read_best(self, kind: str) -> BestPlan | None:
        """What `write_best` wrote; None if that is not there, or there are more data by now."""
        path = self.best_path(kind)
        try:
            info = read_info(path)
            if info.get("id") != self.best_id(kind):
                return None
            profile = load_policy(path)
        except UserError:  # it is lost or damaged, and can be made again
            return None
        assert isinstance(profile, Profile)
        return BestPlan(profile=profile, **{name: info[name] for name in FACTS})

    def best_path(self, kind: str) -> Path:
        """The file of the policy that all data make best: kinds are ``best`` and ``cautious``."""
        return self.directory / f"{kind}.policy"

    def write_episode(
        self, episode: Episode, metrics: EpisodeMetrics, source: dict[str, Any]
    ) -> None:
        """Makes an episode part of the run by writing one file, then updates derived files."""
        number = self.episodes + 1
        arrays, name = observed_arrays(episode), self.plan_id(number)
        row = metrics.row()
        row["notes"] = list(row["notes"])
        document = {
            "run": self.config.identity,
            "episode": number,
            "plan": name,
            "data": self.data_id(number),
            "source": source,
            "metrics": row,
        }
        changed = [each.id for each in self.replans(number)]
        if changed:
            document["replans"] = changed
        write_sealed(self.path("episodes", number), document, arrays, kind=EPISODE)
        self.records.append(EpisodeRecord(arrays, digest("", arrays), row, source, name))
        self.derive()

    def write_log(self, data: Transitions, source: dict[str, Any]) -> LogRecord:
        """Makes transitions that belong to no episode part of the run by writing one file."""
        number = len(self.logs) + 1
        # A plan that was asked for already does not know them.
        since = self.episodes + 1 + self.asked
        arrays = logged_arrays(data)
        about = {"run": self.config.identity, "log": number, "since": since, "source": source}
        path = self.log_path(number)
        path.parent.mkdir(exist_ok=True)
        write_sealed(path, about, arrays, kind=LOG)
        self.logs.append(LogRecord(arrays, digest("", arrays), since, source))
        return self.logs[-1]

    def derive(self) -> None:
        """Writes the metrics and the copies of policies where they are missing or differ."""
        write_lines(self.directory / METRICS, self.rows)
        write_columns(self.directory / COLUMNS, self.rows)
        if not self.records:
            return
        for name, number in (("last", self.episodes), ("luckiest", self.luckiest)):
            source, changed = self.policy_path(number), self.replans(number)
            planned = changed[-1].document if changed else self.read_plan_file(number).document
            check_file(source)
            data = source.read_bytes()
            if hashlib.sha256(data).hexdigest() != planned.get("policy_sha256"):
                raise unusable(source, "it is not the policy that was planned")
            write_changed(self.directory / f"{name}.policy", data)

    def note_seconds(self, number: int, **seconds: float) -> None:
        """Adds a row to the run's timings."""
        new = {"episode": number} | {name: round(value, 4) for name, value in seconds.items()}
        write_lines(self.directory / TIMINGS, [*read_seconds(self.directory), new])


class Told(NamedTuple):
    """All data of a run, in the order in which plans came to know them.

    Attributes:
        data: The transitions of episodes and logs.
        ends: Number of transitions after each episode.
        known: Number of transitions that each plan knows, that of the next episode included.
    """

    data: Transitions
    ends: tuple[int, ...]
    known: tuple[int, ...]


def told(store: RunFiles, problem: Problem) -> Told:
    """The data that the next plan of a run knows."""
    data, ends, known = Transitions.empty(problem), [], []
    for number in range(1, store.episodes + 2):
        for log in store.logs:
            if log.since == number:
                data = data.join(to_transitions(log, problem))
        known.append(len(data))
        if number <= store.episodes:
            data = data.append(to_episode(store.records[number - 1]))
            ends.append(len(data))
    return Told(data, tuple(ends), tuple(known))


def to_transitions(log: LogRecord, problem: Problem) -> Transitions:
    """A log as learners take it."""
    arrays: dict[str, Any] = dict(log.arrays)
    return Transitions(problem=problem, **arrays)


def to_episode(record: EpisodeRecord) -> Episode:
    """The observed episode as learners take it."""
    return Episode(**{name: jnp.asarray(array) for name, array in record.arrays.items()})


def observed_arrays(episode: Episode) -> dict[str, np.ndarray]:
    """An episode's arrays as a record keeps them."""
    found = {name: getattr(episode, name) for name in (*OBSERVED, *SOMETIMES)}
    return {name: np.asarray(array) for name, array in found.items() if array is not None}


def logged_arrays(data: Transitions) -> dict[str, np.ndarray]:
    """A log's arrays as a record keeps them."""
    arrays = {name: getattr(data, name) for name in LOGGED}
    return arrays if data.earned is None else arrays | {"earned": data.earned}


def check_vacant(directory: Path) -> None:
    """Raises if a directory holds a run or anything else."""
    if not directory.exists():
        return
    if (directory / CONFIG).exists():
        raise UserError(
            f"{directory} holds a run already; go on with `mufield resume {directory}`, or choose "
            "another directory"
        )
    # A process that was killed while it began a run may have left these.
    own = {"lock", VERSIONS, *PARTS}
    others = sorted(p.name for p in directory.iterdir() if p.name not in own and p.suffix != ".tmp")
    others += [part for part in PARTS if any((directory / part).glob("*"))]
    if others:
        raise UserError(
            f"expected a new or empty directory for the run, but {directory} holds {others[0]}; "
            "choose another"
        )


def _fill(template: Any, arrays: dict[str, np.ndarray], path: Path) -> Any:
    """Puts a file's arrays into a planner's memory; raises unless all have a place there."""
    left = dict(arrays)

    def one(place: Any, leaf: Any) -> Any:
        name = MEMORY + leaf_name(place)
        if name not in left:
            raise unusable(path, f"it lacks {name}")
        array = left.pop(name)
        if (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            raise unusable(
                path,
                f"{name} should be {leaf.dtype} of the shape {leaf.shape}, but is {array.dtype} "
                f"of the shape {array.shape}",
            )
        return jnp.asarray(array)

    def is_slot(leaf: Any) -> bool:
        return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)

    slots, rest = eqx.partition(template, is_slot)
    filled = eqx.combine(tree_map_with_path(one, slots), rest)
    if left:
        raise unusable(path, f"it holds {next(iter(left))}, which this planner does not know")
    return filled
