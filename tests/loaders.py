"""One sound file for each loader of mufield, how each of them is read, and ways to damage it.

The tests and `benchmarks/trust.py damage` share them.
"""

import ast
import json
import os
import random
import resource
import shutil
import signal
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import fleet
import jax
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save as to_safetensors

import mufield as mf
from mufield.deploy.export import describe, policy_bytes
from mufield.deploy.reader import DeployedPolicy
from mufield.fleet import regions_from_scenario, regions_from_trips
from mufield.fleet.reading import read_trips
from mufield.io import sealed as files
from mufield.io.episode import read_episode
from mufield.io.log import read_log
from mufield.io.observed import read_mass, read_positions
from mufield.io.policies import load_policy, read_info, save_policy
from mufield.jobs.job import Job, JobResult, JobStore, write_result
from mufield.runs.build import build, resolve
from mufield.runs.config import RunConfig, parse_config, read_settings
from mufield.runs.files import summarise
from mufield.runs.history import logged_arrays, observed_arrays
from mufield.runs.layout import read_versions
from mufield.runs.session import Session
from mufield.runs.store import RunStore
from mufield.runs.surroundings import changes_since

SECONDS = 10
"""What a loader may take at most; one that waits for a pipe would take for ever."""

CONFIG = RunConfig(
    environment="four-rooms",
    options={"horizon": 3, "drawing": "...\n.#.\n..."},
    episodes=3,
    model="ensemble",
    model_options={"members": 2, "width": 4, "steps": 3},
    planner_options={"points": 3, "sweeps": 2},
    judge=False,
    precision="float64",
)

JOB = Job("small", "random", {"steps": [1, 2]}, {"jax": "1"})

TABLES = ("csv", "parquet")
SEALED = ("network.policy", "moves.policy", "exported.safetensors", "result.safetensors")
"""Files with a checksum: changed ones are refused, or come out as if they were not."""

NAMES = (*SEALED, "episode.csv", "episode.parquet", "mass.csv", "mass.parquet")
NAMES += ("log.csv", "log.parquet", "settings.toml", "settings.json", "positions.csv", "trips.csv")
NAMES += ("zones.csv", "scenario.json")
"""Files that are read by themselves."""

WHOLE = ("episodes/0001.safetensors", "plans/0001.safetensors", "plans/0002.safetensors")
WHOLE += ("policies/0001.policy", "policies/0002.policy", "logs/0001.safetensors")
WHOLE += ("plans/0002-0001.safetensors", "policies/0002-0001.policy")
DERIVED = (
    "metrics.jsonl",
    "best_episode.policy",
    "last.policy",
    "timings.jsonl",
)
DERIVED += ("lock",)
PLAIN = ("config.json", "versions.json")
"""Files of a run: sealed ones, those that are written anew, and JSON for people."""


@contextmanager
def in_time():
    def late(number, frame):
        raise AssertionError(f"the loader took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused(load, path, name=None):
    """None if a file is refused in words that name it; else what was loaded.

    Errors of these kinds are what the command line prints in one line.
    """
    try:
        with in_time():
            return load(path)
    except (ValueError, OSError) as error:
        caught = error
    assert str(name or path) in str(caught), f"{caught!r} does not name {name or path}"
    return None


def put_nothing(path):
    """A directory, a link to nowhere and a pipe in a file's place, one after the other."""
    for make in (path.mkdir, partial(path.symlink_to, "nowhere"), partial(os.mkfifo, path)):
        make()
        yield make
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


class Originals:
    """A small run and one sound file for each loader.

    Attributes:
        setup: The problem, system and learner of the run.
        run: Its directory: a log and one episode that were told, and a plan that waits.
        place: Directory of the files that are read by themselves.
        loaders: How each of them is read; what comes back can be compared.
    """

    def __init__(self, directory):
        self.setup = build(resolve(CONFIG))
        self.run, self.place = directory / "run", directory / "originals"
        self.place.mkdir(parents=True)
        self._make_run()
        session = Session(RunStore(self.run), self.setup)
        self.asked, self._template = session.asked(), session._memory
        self._make_files()
        self.loaders = self._loaders()

    def _make_run(self):
        setup = self.setup
        RunStore.create(self.run, setup.config)
        past = setup.system.run(mf.random_policy(setup.problem), jax.random.key(0), agents=2)
        with RunStore.writing(self.run) as store:
            session = Session(store, setup)
            session.tell_log(fleet.write(self.place / "past.csv", fleet.rows_of(past)))
            session.step()
            session.ask()
            session.replan(mf.uniform(setup.problem.grid), 1)

    def _make_files(self):
        place, problem, asked = self.place, self.setup.problem, self.asked
        episode = self.setup.system.run(asked.profile, jax.random.key(0), agents=2)
        profile = mf.policies.network_profile(
            problem, jax.random.key(0), width=4, mu=mf.policies.Pooled()
        )
        save_policy(place / "network.policy", profile, info={"note": "sound"})
        save_policy(place / "moves.policy", asked.profile)
        exported = describe(asked.profile, problem, identity={"run": asked.run})
        (place / "exported.safetensors").write_bytes(policy_bytes(exported))
        masses = fleet.mass_rows(problem.grid, episode.mass)
        for suffix in ("csv", "parquet"):
            fleet.write(place / f"episode.{suffix}", fleet.rows_of(episode))
            fleet.write(place / f"log.{suffix}", fleet.rows_of(episode))
            fleet.write(place / f"mass.{suffix}", masses)
        store = JobStore(place)
        write_result(store.begin(JOB), JOB, {"value": 1.5, "rewards": np.arange(3.0)}, 2.0)
        shutil.copy(store.path(JOB) / JobResult.file, place / "result.safetensors")
        fleet.write(place / "positions.csv", fleet.rows_of(episode))
        (place / "trips.csv").write_text(
            "hour,pickup_longitude,pickup_latitude,dropoff_longitude,dropoff_latitude\n"
            "7,-73.99,40.73,-73.98,40.74\n8,-73.97,40.75,-73.99,40.72\n"
        )
        (place / "zones.csv").write_text(
            "origin,destination,hour,minutes,fare\n12,7,7.5,11.5,14.2\n7,12,8,9,11\n"
        )
        files.write_json(place / "scenario.json", fleet.region_scenario())
        files.write_json(
            place / "versions.json", {"jax": "1", "imported": {"file": "x", "sha256": "y"}}
        )
        files.write_json(place / "settings.json", CONFIG.document())
        (place / "settings.toml").write_text(
            'environment = "four-rooms"\nseed = 3\nscale = 0.5\n[model]\nname = "gp"\nbeta = 2.0\n'
            "[planner]\nname = 'mirror'\npoints = 5\n"
        )

    def _loaders(self):
        problem, asked = self.setup.problem, self.asked
        clock = {"steps": 3, "minutes": 4}

        def policy(path):
            return read_info(path), [np.asarray(a).tolist() for a in leaves(load_policy(path))]

        def zones(path):
            records = read_trips(path)
            try:
                return regions_from_trips(records, start=7, vehicles=8, **clock).pay.tolist()
            except mf.UserError as error:  # records do not know their file
                raise mf.UserError(f"{path}: {error}") from error

        def exported(path):
            read = DeployedPolicy.load(path)
            return read.document, {n: a.tolist() for n, a in read.arrays.items()}

        def settings(path):
            return parse_config(read_settings(path), str(path)).document()

        def result(path):
            store = JobStore(path.parent / "store")
            place = store.begin(JOB) / JobResult.file
            place.unlink(missing_ok=True)
            place.symlink_to(path)
            found = store.find(JOB)
            if found is None:
                return None
            return found.figures["value"], found.figures["rewards"].tolist()

        readers = {
            "episode": lambda path: files.digest("", observed_arrays(read_episode(path, asked))),
            "log": lambda path: files.digest("", logged_arrays(read_log(path, problem).data)),
            "mass": lambda path: read_mass(path, problem).tolist(),
            "settings": settings,
        }
        return {
            "network.policy": policy,
            "moves.policy": policy,
            "exported.safetensors": exported,
            "result.safetensors": result,
            "positions.csv": lambda path: read_positions(path, problem)[0].tolist(),
            "zones.csv": zones,
            "scenario.json": lambda path: regions_from_scenario(path, hour=8, **clock).pay.tolist(),
            "trips.csv": lambda path: read_trips(path).pickup.tolist(),
            **{
                f"{name}.{end}": readers[name]
                for name in ("episode", "log", "mass")
                for end in TABLES
            },
            **{f"settings.{end}": settings for end in ("toml", "json")},
        }

    def open_run(self, directory):
        """All that is read of a run, by whoever goes on with it and by whoever lists it."""
        summarise(directory)
        with RunStore.writing(directory) as store:
            plans = [store.read_plan(number, self._template) for number in (1, 2)]
            store.note_seconds(1, fuzz=0.0)
            changes_since(read_versions(directory))
            arrays = [np.asarray(a).tolist() for plan in plans for a in leaves(plan)]
            return store.rows, arrays


def peak_megabytes():
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def leaves(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array | np.ndarray)]


def flips(data, count, seed=0):
    """The file with a single bit flipped, at places that are the same in every run."""
    rng = random.Random(seed)
    # Headers are short and matter most, so half of the places are there.
    places = [rng.randrange(min(len(data), 600)) for _ in range(count // 2)]
    places += [rng.randrange(len(data)) for _ in range(count - count // 2)]
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << rng.randrange(8)
        yield bytes(changed)


def mutations(data, count, others, seed=7):
    """The file changed at random: bytes, parts cut out, doubled or of another file, numbers."""
    rng = random.Random(seed)
    for _ in range(count):
        changed, kind = bytearray(data), rng.randrange(6)
        place = rng.randrange(len(data))
        size = rng.randrange(1, 40)
        if kind == 0:
            changed[place : place + size] = rng.randbytes(size)
        elif kind == 1:
            del changed[place : place + size]
        elif kind == 2:
            changed[place:place] = changed[place : place + size] * rng.randrange(1, 20)
        elif kind == 3:
            other = rng.choice(others)
            begin = rng.randrange(len(other))
            changed[place : place + size] = other[begin : begin + size]
        elif kind == 4:
            digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57] or [place]
            at = rng.choice(digits)
            words = [b"-1", b"1e39", b"NaN", b"null", b"true", b"9" * 30, b"[]", b"{}", b"0"]
            changed[at : at + 1] = rng.choice(words)
        else:
            changed = changed[: rng.randrange(len(data))] + changed[place:]
        yield bytes(changed)


def forged(path, texts):
    """Sealed files with these descriptions in place of their own, and a checksum that is right."""
    with safe_open(path, framework="np") as file:
        entry = json.loads(file.metadata()["mufield"])
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    for changed in texts(entry["document"].encode()):
        text = changed.decode("utf-8", "replace")
        seal = files.digest(f"{entry['kind']}\n{text}", arrays)
        whole = entry | {"document": text, "sha256": seal}
        yield to_safetensors(arrays, metadata={"mufield": json.dumps(whole)})


WRONG = (None, -1, 0, 10**12, 1.5, 1e300, "x", [], [[]], {}, {"a": 1}, True, [None], 10**400)


def forgeries(text):
    """Descriptions with a bit flipped, a value of another kind in some place, or a part missing."""
    yield from flips(text, 80, seed=3)
    document = json.loads(text)
    for path in _places(document):
        for other in WRONG:
            yield json.dumps(_put(document, path, other)).encode()
    for name in document:
        yield json.dumps({k: v for k, v in document.items() if k != name}).encode()


def _places(value, path=()):
    """Where in a document there is something, the first three of each list."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value[:3]) if isinstance(value, list) else inner
    for key, part in inner:
        yield from _places(part, (*path, key))


def _put(value, path, other):
    if not path:
        return other
    copy = value.copy()
    copy[path[0]] = _put(value[path[0]], path[1:], other)
    return copy


READERS = {"read_sealed", "unsealed", "read_json", "read_lines", "read_table", "safe_open"}
READERS |= {"read_text", "read_bytes", "ParquetFile", "read_settings", "open", "load"}
READERS |= {"fromfile", "memmap", "genfromtxt", "loadtxt", "mmap", "fdopen", "FileIO"}
"""What functions read files with; whoever calls one of these is a loader."""

LOADERS = {
    "deploy/reader.py:DeployedPolicy.load": "exported.safetensors",
    "jobs/compute.py:_learn": "timings.jsonl",
    "jobs/job.py:read_result": "result.safetensors",
    "fleet/manhattan.py:trip_table": None,
    "io/observed.py:ObservedMoves.__init__": "episode.csv",
    "io/observed.py:read_positions": "positions.csv",
    "io/observed.py:read_mass": "mass.csv",
    "io/log.py:_from_file": "mass.csv",
    "fleet/reading.py:read_trips": "trips.csv",
    "fleet/region_data.py:regions_from_scenario": "scenario.json",
    "io/table_files.py:_read_parquet": "episode.parquet",
    "io/policies.py:_read": "network.policy",
    "runs/config.py:read_settings": "settings.toml",
    "runs/config.py:read_config": "config.json",
    "runs/layout.py:read_record": "episodes/0001.safetensors",
    "runs/store.py:RunStore.note_seconds": "timings.jsonl",
    "report/data.py:RunReader._seconds": "timings.jsonl",
    "runs/layout.py:read_versions": "versions.json",
    "runs/files.py:summarise": "timings.jsonl",
    # From the command line, which names the file, or files of the package itself.
    "cli/train.py:Configured.settings": "settings.toml",
    "cli/train.py:Train.settings": "config.json",
    "report/page.py:_asset": None,
    "io/table_files.py:_opened": "episode.csv",
    "runs/store.py:_policy_bytes": "policies/0001.policy",
    # The readers themselves.
    "io/sealed.py:read_sealed": "network.policy",
    "io/sealed.py:read_json": "versions.json",
    "io/sealed.py:read_lines": "timings.jsonl",
    "io/disk.py:lock": "lock",
    "io/disk.py:read_bytes": "network.policy",
    # They write, or copy, compare or execute what was read by one of those above.
    "io/sealed.py:file_digest": None,
    "viz/film.py:animate_flow": None,
    "io/atomic.py:open_new": None,
    "io/disk.py:sync_directory": None,
    "io/disk.py:write_new": None,
    "io/atomic.py:write_changed": None,
    "cli/policies.py:Evaluate.__call__": None,
    "cli/policies.py:Export.__call__": None,
    "cli/fleet.py:Ask.__call__": None,
    "cli/program.py:main": None,
    "deploy/export.py:read_back": None,
    "deploy/export.py:export_policy": None,
    # They pass the bytes of a job's own files on, or ask the system.
    "jobs/cluster.py:work": None,
    "jobs/cluster.py:read_files": None,
    "jobs/job.py:code_digest": None,
    # They read the user's own code, whatever it says.
    "runs/surroundings.py:_import": None,
}
"""Every function that reads a file, and the file that is damaged above or below to try it."""


def readers():
    """Every function of mufield that calls one of `READERS`, as ``file.py:function``."""
    found, package = set(), Path(mf.__file__).parent
    for path in sorted(package.rglob("*.py")):
        found |= {f"{path.relative_to(package)}:{name}" for name in _readers_in(path)}
    return found


def _readers_in(path):
    """Names of the functions of a module that call one of `READERS`."""
    names = set()

    def look(node, name):
        for inner in ast.iter_child_nodes(node):
            own = name
            if isinstance(inner, ast.FunctionDef | ast.ClassDef):
                own = f"{name}.{inner.name}".lstrip(".")
            if isinstance(inner, ast.Call):
                called = getattr(inner.func, "id", getattr(inner.func, "attr", ""))
                if called in READERS:
                    names.add(own)
            look(inner, own)

    look(ast.parse(path.read_text(encoding="utf-8")), "")
    return names
