"""Writing to a run's directory: no file is ever half written, and one process writes at a time."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten_with_path, tree_map_with_path

from ..episode import Episode
from ..errors import UserError
from ..flow.paths import Bands
from ..io import atomic, disk
from ..io.policies import leaf_name, load_policy, policy_document, read_info, save_policy
from ..io.sealed import digest, file_digest, read_lines, write_json, write_lines, write_sealed
from ..learning.best import BestPlan
from ..learning.metrics import EpisodeMetrics
from ..models.data import Transitions
from ..planning.planner import Plan
from ..policies.base import Profile
from .config import RunConfig, read_config, short_digest
from .files import RunFiles, replan_id
from .history import logged_arrays, observed_arrays
from .layout import LAYOUT, Record, part_path
from .surroundings import versions

Entries = dict[str, Any]


class RunStore(RunFiles):
    """A run that can be written to; only the process that holds the lock may."""

    facts: ClassVar[tuple[str, ...]] = ("expected", "lower", "upper", "draws", "transitions", "how")
    """Kept with the policy that the data make best: fields of `BestPlan`."""

    def __init__(self, directory: Path):
        super().__init__(directory)
        self.notes: list[str] = []  # what went wrong without harm, for people

    @classmethod
    def create(cls, directory: Path, config: RunConfig, imported: Path | None = None) -> "RunStore":
        """Begins a run in a new or empty directory."""
        atomic.make_directory(directory)
        with atomic.locked(directory):
            check_vacant(directory)
            atomic.check_own(directory)
            atomic.remove_leftovers(directory)
            for part in LAYOUT.parts:
                atomic.make_directory(directory / part)
            write_json(directory / LAYOUT.versions, versions(imported))
            # Last, because with this file the directory counts as a run.
            write_json(directory / LAYOUT.config, config.document())
        return cls(directory)

    @classmethod
    @contextmanager
    def writing(cls, directory: Path) -> Iterator["RunStore"]:
        """Opens a run to write to it, and completes what a crash left undone."""
        read_config(directory)  # raises if there is no run, before a lock is made there
        atomic.check_own(directory)
        with atomic.locked(directory):
            atomic.remove_leftovers(directory)
            # A process that was killed may have named files without waiting for the disk. What is
            # written now builds on them, so they must survive a power failure if it does.
            for part in ("", *LAYOUT.parts, LAYOUT.logs):
                if disk.kind(directory / part):
                    disk.sync_directory(directory / part)
            store = cls(directory)
            store.derive()
            yield store

    def set_target(self, episodes: int) -> None:
        """Changes the number of episodes that the run is to have."""
        if episodes != self.config.episodes:
            self.config = replace(self.config, episodes=episodes)
            write_json(self.directory / LAYOUT.config, self.config.document())

    def write_plan(self, plan: Plan) -> None:
        """Writes the plan of the next episode."""
        number = self.episodes + 1
        document, arrays = policy_document(plan.profile)
        policy = digest(json.dumps(document, sort_keys=True), arrays)
        leads = digest("", {"mass": np.asarray(plan.mass)})
        # By what the plan is: what it knew, its policy, and where that leads; scouts follow.
        about = {"id": short_digest(self.data_id(number), policy, leads)}
        leaves = tree_flatten_with_path(eqx.filter(plan.memory, eqx.is_array))[0]
        memory = {_memory_name(path): leaf for path, leaf in leaves}
        path, more = self.path("plans", number), {"data": self.data_id(number)}
        self._write_planned(path, plan, about, more, memory)

    def write_replan(self, plan: Plan, step: int, options: Entries, shock: int | None) -> None:
        """Writes the next episode's plan as it was changed at a step."""
        number = self.episodes + 1
        path = part_path(self.directory, "plans", number, len(self.replans(number)) + 1)
        name = replan_id(self.policy_id(number), step, np.asarray(plan.mass), options, shock)
        about, more = {"id": name, "step": step}, {"options": options, "shock": shock}
        self._write_planned(path, plan, about, more, {})

    def _write_planned(
        self, path: Path, plan: Plan, about: Entries, more: Entries, memory: Entries
    ) -> None:
        """Writes policies, then the file that makes them count, with what they are ``about``."""
        about = {"run": self.config.identity, "episode": self.episodes + 1, **about}
        told: Entries = {"note": plan.note}
        for who, profile in (("policy", plan.profile), ("scouts", plan.scouts)):
            if profile is not None:
                file = Record(path, about, {}).policy(who)
                save_policy(file, profile, info=about)
                told[f"{who}_sha256"] = file_digest(file)
        figures = {name: getattr(plan, name) for name in LAYOUT.planned}
        if plan.margins is not None:
            figures["margins"] = plan.margins
        if plan.bands is not None:
            figures |= {f"bands.{name}": each for name, each in vars(plan.bands).items()}
        write_sealed(path, about | more | told, figures | memory, kind=LAYOUT.plan)

    def read_plan(self, number: int, memory: Any) -> Plan:
        """The plan that an episode was ended with.

        ``memory`` is like the planner's, with arrays or their shapes; what the planner remembers
        is that of the day's first plan.
        """
        first = self.read_plan_file(number)
        plans = [first, *self.replans(number)]
        profile, last = [_read_policy(each) for each in plans][-1], plans[-1]
        scouts = _read_policy(last, "scouts") if "scouts_sha256" in last.document else None
        names = (*LAYOUT.planned, "margins")
        rest = {n: each for n, each in first.arrays.items() if n.startswith("memory.")}
        known: Entries = {n: jnp.asarray(each) for n, each in last.arrays.items() if n in names}
        bands = {n[6:]: each for n, each in last.arrays.items() if n.startswith("bands.")}
        known["bands"] = Bands(**jax.tree.map(jnp.asarray, bands)) if bands else None
        filled = _fill(memory, rest, first.path)
        return Plan(profile=profile, memory=filled, note=last["note"], scouts=scouts, **known)

    def write_best(self, plan: BestPlan, kind: str) -> None:
        """Writes the policy that all data make best, with what is expected of it."""
        about = {"run": self.config.identity, "episodes": self.episodes, "id": self.best_id(kind)}
        facts = {name: getattr(plan, name) for name in self.facts}
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
        return BestPlan(profile=profile, **{name: info[name] for name in self.facts})

    def best_path(self, kind: str) -> Path:
        """The file of the policy that all data make best: kinds are ``best`` and ``cautious``."""
        return self.directory / f"{kind}.policy"

    def write_episode(self, episode: Episode, metrics: EpisodeMetrics, source: Entries) -> None:
        """Makes an episode part of the run by writing one file, then updates derived files."""
        number = self.episodes + 1
        arrays, row = observed_arrays(episode), metrics.row()
        document = {
            "run": self.config.identity,
            "episode": number,
            "plan": self.plan_id(number),
            "data": self.data_id(number),
            "source": source,
            "metrics": row | {"notes": list(row["notes"])},
        }
        if changed := [each["id"] for each in self.replans(number)]:
            document["replans"] = changed
        record = Record(self.path("episodes", number), document, arrays)
        write_sealed(record.path, document, arrays, kind=LAYOUT.episode)
        self.records.append(record)
        try:
            self.derive()
        except OSError as error:  # such as a full disk; the episode itself is there
            what = f"its metrics or copies of policies could not be written ({error})"
            later = "they are written when the run is opened next"
            self.notes.append(f"episode {number} is part of the run, but {what}; {later}")

    def write_log(self, data: Transitions, source: Entries) -> Record:
        """Makes transitions that belong to no episode part of the run by writing one file."""
        number = len(self.logs) + 1
        # A plan that was asked for already does not know them.
        since = self.episodes + 1 + self.asked
        about = {"run": self.config.identity, "log": number, "since": since, "source": source}
        record = Record(self.log_path(number), about, logged_arrays(data))
        atomic.make_directory(record.path.parent)
        write_sealed(record.path, about, record.arrays, kind=LAYOUT.log)
        self.logs.append(record)
        return record

    def derive(self) -> None:
        """Writes the metrics and the copies of policies where they are missing or differ."""
        write_lines(self.directory / LAYOUT.metrics, self.rows)
        if not self.records:
            return
        for name, number in (("last", self.episodes), ("best_episode", self.best_episode)):
            data = _policy_bytes(self.last_plan(number))
            atomic.write_changed(self.directory / f"{name}.policy", data)

    def note_seconds(self, number: int, **seconds: float) -> None:
        """Adds a row to the run's timings."""
        new = {"episode": number} | {name: round(value, 4) for name, value in seconds.items()}
        path = self.directory / LAYOUT.timings
        write_lines(path, [*read_lines(path), new])


def check_vacant(directory: Path) -> None:
    """Raises if a directory holds a run or anything else."""
    if disk.kind(directory / LAYOUT.config):
        go_on = f"go on with `mufield train --out {directory}`, or choose another directory"
        raise UserError(f"{directory} holds a run already; {go_on}")
    # A process that was killed while it began a run may have left these.
    own = {"lock", LAYOUT.versions, *LAYOUT.parts}
    found = [name for name in disk.names(directory) if name not in own]
    others = [name for name in found if not name.endswith(".tmp")]
    others += [part for part in LAYOUT.parts if disk.names(directory / part)]
    if others:
        what = f"{directory} holds {others[0]}"
        raise UserError(f"expected a new or empty directory for the run, but {what}")


def _policy_bytes(plan: Record, who: str = "policy") -> bytes:
    """The file of a plan's policy; raises if it is not the one that was planned."""
    path = plan.policy(who)
    atomic.check_file(path)
    data = disk.read_bytes(path)
    if hashlib.sha256(data).hexdigest() != plan[f"{who}_sha256"]:
        raise atomic.unusable(path, "it is not the policy that was planned")
    return data


def _read_policy(plan: Record, who: str = "policy") -> Profile:
    _policy_bytes(plan, who)
    profile = load_policy(plan.policy(who))
    assert isinstance(profile, Profile)
    return profile


def _memory_name(path: Any) -> str:
    return "memory." + leaf_name(path)


def _fill(template: Any, arrays: dict[str, np.ndarray], path: Path) -> Any:
    """Puts a file's arrays into a planner's memory; raises unless all have a place there."""
    kinds = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)
    slots, rest = eqx.partition(template, lambda leaf: isinstance(leaf, kinds))
    wanted = {
        _memory_name(place): (leaf.shape, leaf.dtype)
        for place, leaf in tree_flatten_with_path(slots)[0]
    }
    found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            what = f"expected {name} of {wanted.get(name)}, got {found.get(name)}"
            raise atomic.unusable(path, f"{what}: the memory of another planner")
    filled = tree_map_with_path(lambda place, _: jnp.asarray(arrays[_memory_name(place)]), slots)
    return eqx.combine(filled, rest)
