"""What the page shows of a run, read from its directory.

Files are written whole or not at all, so they can be read while the run learns; but it may begin,
go on or begin anew between two readings. The page says what cannot be read.
"""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from ..io.sealed import read_lines
from ..learning.metrics import COVERAGE_LEVEL
from ..runs.build import build_problem
from ..runs.config import RunConfig, read_config
from ..runs.files import short_names
from ..runs.layout import LAYOUT, part_numbers, part_path, policy_path, read_record, read_versions
from .flows import Scene, that_fit

Stamp = tuple[int, int, int]
"""Time, size and inode of a file, which differ once it has changed."""


class _Read(NamedTuple):
    """What was read of an episode's file.

    ``moves`` counts those that can be compared with the model's interval, axis by axis; ``told``
    says that the episode came from a file, not from a simulator.
    """

    stamp: Stamp
    row: dict[str, Any]
    moves: int
    agents: int
    told: bool


class RunReader:
    """Reads a run again and again, but each file only when it has changed."""

    def __init__(self, directory: Path, name: str | None = None, imports: str | None = None):
        """Reads nothing yet: the directory need not exist.

        ``name`` stands on the page, by default that of the directory; ``imports`` is the user's
        own file, if it is no longer where the configuration says.
        """
        self.directory = directory
        self.name = name or directory.resolve().name
        self._imports = imports
        self._read: dict[int, _Read] = {}
        self._scene: tuple[str, Scene] | None = None
        self._flows: dict[tuple[int, Stamp], dict[str, Any]] = {}
        self._lock = threading.Lock()  # several threads ask for flows
        self._closed = False

    def fingerprint(self) -> tuple[Any, ...]:
        """Changes whenever anything that the page shows has changed."""
        paths = [self.directory / name for name in (LAYOUT.config, LAYOUT.versions, LAYOUT.timings)]
        for part in ("plans", "episodes"):
            numbers = part_numbers(self.directory, part)
            paths += [part_path(self.directory, part, number) for number in numbers]
        return tuple((path.name, _stamp(path)) for path in paths)

    def document(self) -> dict[str, Any]:
        """The run without its flows."""
        found = {"name": self.name, "directory": str(self.directory), **blank()}
        try:
            config = self._config()
            if config is None:
                self._read = {}
                return found | {"message": "There is no run here yet."}
            found |= {"config": config.document(), "identity": config.identity}
            found |= {"versions": read_versions(self.directory), "seconds": self._seconds()}
            message = self._read_episodes()
            read = list(self._read.values())
            found["rows"] = [each.row for each in read]
            found["moves"] = [each.moves for each in read]
            found["stamps"] = ["-".join(map(str, each.stamp)) for each in read]
            found["told"] = any(each.told for each in read)
            found["agents"] = read[-1].agents if read else None
            found["planned"] = part_path(self.directory, "plans", len(read) + 1).exists()
            found["message"] = message or ("" if read else "There is no episode yet.")
        except (ValueError, OSError) as error:
            found["message"] = _line(error)
        return found

    def scene(self) -> Scene:
        """How the run's flows are drawn; raises if they cannot be."""
        config = self._config()
        if config is None:
            raise UserError("There is no run here yet.")
        if self._scene is None or self._scene[0] != config.identity:
            try:
                problem = build_problem(config, self._imports)
            except OSError:  # the next time the files may be readable
                raise
            except Exception as error:  # the user's own function may raise anything
                raise UserError(f"The flow cannot be drawn: {_line(error)}") from error
            if problem.grid.dim == 3:
                raise UserError("The flow cannot be drawn: the space has three dimensions.")
            self._scene = (config.identity, Scene(problem))
        return self._scene[1]

    def flow(self, episode: int) -> dict[str, Any]:
        """The flow of an episode with its space; if it cannot be drawn, a message instead."""
        with self._lock:
            path = part_path(self.directory, "episodes", episode)
            key = (episode, _stamp(path))
            if key not in self._flows:
                if self._closed:
                    return {"message": "The server is about to end."}
                try:
                    found = self._compute(path, episode)
                except (ValueError, OSError) as error:  # the next time it may be drawn
                    return {"message": _line(error)}
                while len(self._flows) >= 400:  # older ones are computed again
                    self._flows.pop(next(iter(self._flows)))
                self._flows[key] = found
            return self._flows[key]

    def close(self) -> None:
        """Waits for the flow that is being computed, and computes no other."""
        with self._lock:
            self._closed = True

    def _compute(self, path: Path, episode: int) -> dict[str, Any]:
        scene = self.scene()
        arrays = read_record(path, LAYOUT.episode).arrays
        masses = np.asarray(arrays["mass"], dtype=float)
        if masses.shape != (scene.problem.horizon + 1, scene.problem.grid.n_cells):
            raise UserError(f"The distributions of {path.name} are those of another space.")
        policy = policy_path(self.directory, episode)
        return {"space": scene.document(), **scene.episode(masses, policy, arrays.get("shocks"))}

    def _config(self) -> RunConfig | None:
        return read_config(self.directory) if (self.directory / LAYOUT.config).exists() else None

    def _seconds(self) -> dict[str, dict[str, float]]:
        """Seconds by episode and part; if a part was done again, the last time counts."""
        seconds: dict[str, dict[str, float]] = {}
        for line in read_lines(self.directory / LAYOUT.timings):
            parts = {k: v for k, v in line.items() if isinstance(v, float | int) and k != "episode"}
            seconds.setdefault(str(line.get("episode")), {}).update(parts)
        return seconds

    def _read_episodes(self) -> str:
        """Reads episodes up to the first that cannot be read; returns why not, or nothing."""
        known, self._read = self._read, {}
        numbers = part_numbers(self.directory, "episodes")
        for number in range(1, max(numbers, default=0) + 1):
            path = part_path(self.directory, "episodes", number)
            if number not in numbers:
                return f"{path} is missing."
            stamp, before = _stamp(path), known.get(number)
            try:
                if before is None or before.stamp != stamp:
                    record = read_record(path, LAYOUT.episode)
                    seen = ~record.arrays["stopped"].astype(bool)
                    if "present" in record.arrays:
                        seen &= record.arrays["present"][..., None]
                    agents, told = len(record.arrays["states"]), "file" in record["source"]
                    before = _Read(stamp, record["metrics"], int(seen.sum()), agents, told)
            except (ValueError, OSError) as error:
                return _line(error)
            self._read[number] = before
        return ""


def blank(message: str = "") -> dict[str, Any]:
    """What the page shows of a run of which nothing can be read, and why."""
    found: dict[str, Any] = {"config": None, "versions": {}, "rows": [], "moves": [], "stamps": []}
    found |= {"seconds": {}, "planned": False, "told": False, "agents": None}
    return found | {"message": message}


def make_readers(directories: Sequence[Path], imports: str | None = None) -> list[RunReader]:
    """One reader for each directory, under names that tell them apart."""
    if not directories:
        raise UserError("expected the directory of at least one run, got none")
    named = zip(directories, short_names(directories), strict=True)
    return [RunReader(directory, name, imports) for directory, name in named]


def snapshot(readers: Sequence[RunReader], *, live: bool = True) -> dict[str, Any]:
    """All runs without flows, which a live page asks for one by one."""
    runs = [reader.document() for reader in readers]
    return {"live": live, "level": COVERAGE_LEVEL, "runs": runs}


def collect(readers: Sequence[RunReader]) -> dict[str, Any]:
    """All runs with the flows that a file has room for."""
    found = snapshot(readers, live=False)
    for reader, run in zip(readers, found["runs"], strict=True):
        run |= {"space": None, "flows": {}, "flow_note": ""}
        try:
            scene = reader.scene()
        except (ValueError, OSError) as error:
            run["flow_message"] = _line(error) if run["rows"] else ""
            continue
        chosen = that_fit([row["value"] for row in run["rows"]], scene.bytes_of_flow)
        if len(chosen) < len(run["rows"]):
            run["flow_note"] = f"The file holds {len(chosen)} flows; `mufield watch` has all."
        for number in chosen:
            flow = dict(reader.flow(number))
            run["space"] = flow.pop("space", None) or run["space"]  # the same for all
            run["flows"][number] = flow
    return found


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def to_json(document: Any) -> str:
    """JSON without spaces; raises if a number is not finite.

    Bytes of file names that are not UTF-8, lone surrogates in Python, are escaped.
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace").decode()
