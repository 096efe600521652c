"""Damaged and foreign files: every loader refuses them by name; none hangs, crashes or runs them.

Files with a checksum (policies, exported policies, plans, episodes of a run) must refuse any
change, or come out as if there had been none. CSV, TOML and JSON have no checksum: a flipped digit
makes another sound file, so there a changed file is refused by name or read as what it now says.
What follows from other files (metrics, copies of policies, the lock) is written anew.
"""

import ast
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import zipfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import fleet
import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save as to_safetensors

import mufield as mf
from mufield import _files as files
from mufield.baselines.training import train
from mufield.deploy.export import describe, write_policy
from mufield.deploy.reader import DeployedPolicy
from mufield.environments import registry
from mufield.jobs.job import RESULT, Job, JobStore, write_result
from mufield.observed.episode import read_episode, read_mass, read_positions
from mufield.observed.log import read_log
from mufield.observed.records import read_trips
from mufield.paper.budget import QUICK
from mufield.paper.results import KIND as RECORD
from mufield.paper.results import Results
from mufield.policies.files import load_policy, read_info, save_policy
from mufield.runs.build import build, resolve
from mufield.runs.config import RunConfig, parse_config, read_settings
from mufield.runs.layout import read_versions
from mufield.runs.overview import summarise
from mufield.runs.session import Session
from mufield.runs.store import RunStore, logged_arrays, observed_arrays
from mufield.runs.surroundings import changes_since
from mufield.runs.sweep import read_sweep, read_trials, write_record

pytestmark = pytest.mark.slow

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


def _train(path):
    """Q-learning from a checkpoint on, which is made if there is none."""
    system = registry.make("discrete-rooms", horizon=2, drawing="..\n..")
    found = train(system, episodes=20, evaluate_every=10, checkpoint=path, progress=False)
    return found.state.q.tolist()


class Bomb:
    """What a careless loader would unpickle, and so create a file."""

    def __init__(self, sentinel):
        self.sentinel = sentinel

    def __reduce__(self):
        return (Path.touch, (self.sentinel,))


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


def truncations(data):
    """The file cut at many places."""
    places = {0, 1, 7, 8, 9, len(data) // 2, len(data) - 1, len(data) - 9}
    places |= {round(share * len(data) / 23) for share in range(23)}
    return [data[:place] for place in sorted(places) if 0 <= place < len(data)]


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


def foreign(sentinel):
    """Files of other programs, and files that were made to do harm."""
    rng = random.Random(1)
    bomb = pickle.dumps(Bomb(sentinel))
    archive, arrays = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as inner:
        inner.writestr("document.npy", b"\0" * 10_000_000)
    np.savez(arrays, document=np.array([Bomb(sentinel)], dtype=object))
    deep = b"[" * 100_000
    nested = json.dumps({"mufield": "[" * 50_000}).encode()
    header = b'{"__metadata__":' + nested + b"}"
    return {
        "an empty file": b"",
        "a picture": b"\x89PNG\r\n\x1a\n" + rng.randbytes(300),
        "an archive": archive.getvalue(),
        "a pickle": bomb,
        "arrays with a pickle": arrays.getvalue(),
        "a sealed pickle": files.sealed_bytes({}, {"bomb": np.frombuffer(bomb, "u1")}, kind="bomb"),
        "a page": b"<!doctype html><html><body>404</body></html>\n",
        "a huge header": (2**63).to_bytes(8, "little") + b"{}",
        "a long header": (90_000_000).to_bytes(8, "little") + b"{" + b" " * 1000,
        "random bytes": rng.randbytes(2000),
        "zeros": bytes(4096),
        "deep lists": deep,
        "deep lists that end": deep + b"]" * 100_000,
        "deep tables": b"a = " + b"{b = " * 5_000,
        "a deep description": len(header).to_bytes(8, "little") + header,
        "a number": b"3\n",
        "a text": b'"text"\n',
        "a list": b"[]\n",
        "an empty table": b"{}\n",
        "a long number": b"9" * 10_000,
        "parquet's name only": b"PAR1PAR1",
        "parquet that lies": b"PAR1" + b"\xff" * 64 + b"\xff\xff\xff\x7fPAR1",
    }


def put_nothing(path):
    """A directory, a link to nowhere and a pipe in a file's place, one after the other."""
    for make in (path.mkdir, partial(path.symlink_to, "nowhere"), partial(os.mkfifo, path)):
        make()
        yield make
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def small():
    return build(resolve(CONFIG))


@pytest.fixture(scope="module")
def run(small, tmp_path_factory):
    """A run with a log and one episode that were told, and a plan that waits."""
    place = tmp_path_factory.mktemp("fuzz")
    directory = place / "run"
    RunStore.create(directory, small.config)
    past = small.system.run(mf.random_policy(small.problem), jax.random.key(0), agents=2)
    with RunStore.writing(directory) as store:
        session = Session(store, small)
        session.tell_log(fleet.write(place / "log.csv", fleet.rows_of(past)))
        session.step()
        session.ask()
        session.replan(mf.uniform(small.problem.grid), 1)
    return directory


@pytest.fixture(scope="module")
def asked(small, run):
    session = Session(RunStore(run), small)
    return session.asked()


@pytest.fixture(scope="module")
def episode(small, asked):
    return small.system.run(asked.profile, jax.random.key(0), agents=2)


@pytest.fixture(scope="module")
def originals(small, asked, episode, tmp_path_factory):
    """One sound file for each loader."""
    place = tmp_path_factory.mktemp("originals")
    profile = mf.network_profile(small.problem, jax.random.key(0), width=4, mu=mf.Pooled())
    save_policy(place / "network.policy", profile, info={"note": "sound"})
    save_policy(place / "moves.policy", asked.profile)
    exported = describe(asked.profile, small.problem, identity={"run": asked.run})
    write_policy(place / "exported.safetensors", exported)
    masses = fleet.mass_rows(small.problem.grid, episode.mass)
    for suffix in ("csv", "parquet"):
        fleet.write(place / f"episode.{suffix}", fleet.rows_of(episode))
        fleet.write(place / f"log.{suffix}", fleet.rows_of(episode))
        fleet.write(place / f"mass.{suffix}", masses)
    store = JobStore(place)
    write_result(store.begin(JOB), JOB, {"value": 1.5, "curve": np.arange(3.0)}, 2.0)
    shutil.copy(store.path(JOB) / RESULT, place / "result.safetensors")
    record = {"made_of": {}, "files": ["a.png"], "numbers": {"J": 1.5}}
    files.write_sealed(place / "made.safetensors", record, {}, kind=RECORD)
    _train(place / "checkpoint.safetensors")
    fleet.write(place / "positions.csv", fleet.rows_of(episode))
    (place / "trips.csv").write_text(
        "hour,pickup_longitude,pickup_latitude,dropoff_longitude,dropoff_latitude\n"
        "7,-73.99,40.73,-73.98,40.74\n8,-73.97,40.75,-73.99,40.72\n"
    )
    files.write_json(
        place / "versions.json", {"jax": "1", "imported": {"file": "x", "sha256": "y"}}
    )
    files.write_json(place / "settings.json", CONFIG.document())
    (place / "settings.toml").write_text(
        'environment = "four-rooms"\nseed = 3\nscale = 0.5\n[model]\nname = "gp"\nbeta = 2.0\n'
        "[planner]\nname = 'mirror'\npoints = 5\n"
    )
    (place / "sweep.toml").write_text(
        'environment = "four-rooms"\n[grid]\nseed = [0, 1]\nmodel.beta = [1.0, 2.0]\n'
        "[random]\ndraws = 3\nscale = {low = 0.1, high = 0.5, log = true}\n"
    )
    write_record(place, {"run-0123456789": {"seed": 1, "model.beta": 2.0}})
    return place


@pytest.fixture(scope="module")
def loaders(small, asked):
    """How each of them is read; what comes back can be compared."""

    def policy(path):
        return read_info(path), [np.asarray(a).tolist() for a in leaves(load_policy(path))]

    def exported(path):
        read = DeployedPolicy.load(path)
        return read.document, {n: a.tolist() for n, a in read.arrays.items()}

    def settings(path):
        return parse_config(read_settings(path), str(path)).document()

    def result(path):
        store = JobStore(path.parent / "store")
        place = store.begin(JOB) / RESULT
        place.unlink(missing_ok=True)
        if path.is_file():
            shutil.copy(path, place)
        elif path.exists():
            place.symlink_to(path)
        found = store.find(JOB)
        return None if found is None else (found.figures["value"], found.figures["curve"].tolist())

    def record(path):
        results = Results(path.parent / "store", QUICK)
        results._made("made").parent.mkdir(parents=True, exist_ok=True)
        results._made("made").unlink(missing_ok=True)
        results._made("made").symlink_to(path)
        return results.numbers("made") or None

    readers = {
        "episode": lambda path: files.digest("", observed_arrays(read_episode(path, asked))),
        "log": lambda path: files.digest("", logged_arrays(read_log(path, small.problem).data)),
        "mass": lambda path: read_mass(path, small.problem).tolist(),
        "settings": settings,
    }
    return {
        "network.policy": policy,
        "moves.policy": policy,
        "exported.safetensors": exported,
        "result.safetensors": result,
        "made.safetensors": record,
        "checkpoint.safetensors": _train,
        "positions.csv": lambda path: read_positions(path, small.problem)[0].tolist(),
        "trips.csv": lambda path: read_trips(path).pickup.tolist(),
        **{f"{name}.{end}": readers[name] for name in ("episode", "log", "mass") for end in TABLES},
        **{f"settings.{end}": settings for end in ("toml", "json")},
        "sweep.toml": lambda path: [each.values for each in read_trials(path)],
        "sweep.json": lambda path: [each.values for each in read_sweep(path.parent).runs],
    }


TABLES = ("csv", "parquet")
SEALED = ("network.policy", "moves.policy", "exported.safetensors", "result.safetensors")
SEALED += ("made.safetensors", "checkpoint.safetensors")
NAMES = (*SEALED, "episode.csv", "episode.parquet", "mass.csv", "mass.parquet")
NAMES += ("log.csv", "log.parquet", "settings.toml", "settings.json", "positions.csv", "trips.csv")
NAMES += ("sweep.toml", "sweep.json")


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_file_is_read(name, loaders, originals):
    assert refused(loaders[name], originals / name) is not None


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_was_cut_short_is_refused(name, loaders, originals, tmp_path):
    path, whole = tmp_path / name, (originals / name).read_bytes()
    text = name.endswith(("csv", "toml", "json"))
    for data in truncations(whole):
        path.write_bytes(data)
        found = refused(loaders[name], path)
        # Text may end anywhere and still say something.
        assert found is None or (text and len(data) > 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_found_or_changes_nothing(name, loaders, originals, tmp_path):
    path, whole = tmp_path / name, (originals / name).read_bytes()
    sound, count = loaders[name](originals / name), 0
    for data in flips(whole, 150):
        path.write_bytes(data)
        found = refused(loaders[name], path)
        count += found is None
        if name in SEALED:
            assert found in (None, sound)
    assert count > 10


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_file_is_refused_and_never_run(name, loaders, originals, tmp_path):
    path, sentinel = tmp_path / name, tmp_path / "executed"
    others = {other: (originals / other).read_bytes() for other in NAMES if other != name}
    # An episode may be told as a log, too, and has positions.
    alike = [{"network.policy", "moves.policy"}, *({f"episode.{e}", f"log.{e}"} for e in TABLES)]
    alike += [{"positions.csv", "episode.csv"}, {"positions.csv", "log.csv"}]
    others = {o: data for o, data in others.items() if {o, name} not in alike}
    for what, data in (foreign(sentinel) | others).items():
        path.write_bytes(data)
        assert refused(loaders[name], path) is None, f"{name} was read from {what}"
        assert not sentinel.exists(), f"{name} ran {what}"
    path.unlink()
    for what in put_nothing(path):
        assert refused(loaders[name], path) is None, f"{name} was read from {what}"


def test_the_bomb_goes_off_where_pickles_are_read(tmp_path):
    pickle.loads(foreign(tmp_path / "executed")["a pickle"])
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", SEALED)
def test_a_policy_with_a_forged_checksum_is_refused_or_read(name, originals, tmp_path):
    load = DeployedPolicy.load if name.startswith("exported") else load_policy
    path = tmp_path / name
    with safe_open(originals / name, framework="np") as file:
        entry = json.loads(file.metadata()["mufield"])
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    for changed in forgeries(entry["document"].encode()):
        text = changed.decode("utf-8", "replace")
        seal = files.digest(f"{entry['kind']}\n{text}", arrays)
        forged = entry | {"document": text, "sha256": seal}
        path.write_bytes(to_safetensors(arrays, metadata={"mufield": json.dumps(forged)}))
        refused(load, path)


def forgeries(text):
    """Descriptions with a bit flipped, or with a value of another kind in some place."""
    yield from flips(text, 80, seed=3)
    document = json.loads(text)
    for name, value in document.items():
        for other in (None, -1, 10**12, 1.5, "x", [], [[]], {}, {"a": 1}, True, [None], 10**400):
            yield json.dumps(document | {name: other}).encode()
            if isinstance(value, dict):
                for key in value:
                    yield json.dumps(document | {name: value | {key: other}}).encode()
        yield json.dumps({k: v for k, v in document.items() if k != name}).encode()


MUTATIONS = int(os.environ.get("MUFIELD_FUZZ", "25"))
"""Mutations of each file, in `test_files_that_were_changed_at_random...`: 10,000 in all take
``MUFIELD_FUZZ=600 pytest tests/test_fuzz_loaders.py``."""

MOST_MEGABYTES = 2000
"""What reading any file may take beyond what the tests need."""


def mutations(data, count, others):
    """The file changed at random: bytes, parts cut out, doubled or of another file, numbers."""
    rng = random.Random(7)
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


@pytest.mark.parametrize("name", NAMES)
def test_files_that_were_changed_at_random_are_refused_or_read(name, loaders, originals, tmp_path):
    path, whole = tmp_path / name, (originals / name).read_bytes()
    others = [(originals / other).read_bytes() for other in NAMES if other != name]
    sound, before = loaders[name](originals / name), peak_megabytes()
    for data in mutations(whole, MUTATIONS, others):
        path.write_bytes(data)
        found = refused(loaders[name], path)
        if name in SEALED:
            assert found in (None, sound)
    assert peak_megabytes() - before < MOST_MEGABYTES


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


READERS = {"read_sealed", "_read_sealed", "read_json", "read_lines", "read_table", "safe_open"}
READERS |= {"read_text", "ParquetFile", "read_settings"}
"""What functions read files with; whoever calls one of these is a loader."""

LOADERS = {
    "baselines/training.py:_begin": "checkpoint.safetensors",
    "deploy/reader.py:DeployedPolicy.load": "exported.safetensors",
    "jobs/compute.py:_learn": "timings.jsonl",
    "jobs/job.py:read_result": "result.safetensors",
    "jobs/job.py:JobStore.value": "metrics.jsonl",
    "jobs/job.py:JobStore.why_anew": "result.safetensors",
    "environments/manhattan.py:trip_table": None,
    "observed/coordinates.py:read_plane": "episode.csv",
    "observed/episode.py:read_mass": "mass.csv",
    "observed/log.py:_from_file": "mass.csv",
    "observed/records.py:read_trips": "trips.csv",
    "observed/tables.py:_read_parquet": "episode.parquet",
    "paper/results.py:Results._record": "made.safetensors",
    "policies/files.py:_read": "network.policy",
    "runs/config.py:read_settings": "settings.toml",
    "runs/config.py:read_config": "config.json",
    "runs/layout.py:RunFiles._read_logs": "logs/0001.safetensors",
    "runs/layout.py:RunFiles.read_plan_file": "plans/0001.safetensors",
    "runs/layout.py:RunFiles.replans": "replans/0002-0001.safetensors",
    "runs/layout.py:read_record": "episodes/0001.safetensors",
    "runs/layout.py:read_seconds": "timings.jsonl",
    "runs/layout.py:read_versions": "versions.json",
    "runs/overview.py:summarise": "timings.jsonl",
    "runs/sweep.py:read_trials": "sweep.toml",
    "runs/sweep.py:_entries": "sweep.json",
    # From the command line, which names the file, or files of the package itself.
    "cli/settings.py:Configured.run_config": "settings.toml",
    "cli/settings.py:defaults": "settings.toml",
    "report/page.py:_asset": None,
    # From the system, and what the command itself has just written.
    "jobs/pool.py:_has_quota": None,
    "jobs/cluster.py:_is_shared": None,
    # The readers themselves.
    "_files.py:read_sealed": "network.policy",
    "_files.py:locked": "lock",
}
"""Every function that reads a file, and the file that is damaged above or below to try it."""


def test_every_loader_is_tried():
    """A new function that reads files fails here until its file is among those that are fuzzed."""
    found, package = set(), Path(mf.__file__).parent
    for path in sorted(package.rglob("*.py")):
        found |= {f"{path.relative_to(package)}:{name}" for name in _readers_in(path)}
    assert found == LOADERS.keys()
    assert set(LOADERS.values()) <= {None, *NAMES, *WHOLE, *DERIVED, *PLAIN}


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


# A run's directory.

WHOLE = ("episodes/0001.safetensors", "plans/0001.safetensors", "plans/0002.safetensors")
WHOLE += ("policies/0001.policy", "policies/0002.policy", "logs/0001.safetensors")
WHOLE += ("replans/0002-0001.safetensors", "replans/0002-0001.policy")
DERIVED = ("metrics.jsonl", "metrics.parquet", "luckiest.policy", "last.policy", "timings.jsonl")
DERIVED += ("lock",)
PLAIN = ("config.json", "versions.json")


THOROUGH = ("episodes/0001.safetensors", "policies/0001.policy", "config.json", "timings.jsonl")
FEW = ("an empty file", "a pickle", "random bytes", "deep lists that end", "a deep description")


@pytest.fixture(scope="module")
def open_run(small, run):
    template = Session(RunStore(run), small)._memory

    def load(directory):
        """All that is read of a run, by whoever goes on with it and by whoever lists it."""
        summarise(directory)
        with RunStore.writing(directory) as store:
            plans = [store.read_plan(number, template) for number in (1, 2)]
            plans += [store.read_replan(each, plans[1]) for each in store.replans(2)]
            store.note_seconds(1, fuzz=0.0)
            changes_since(read_versions(directory))
            arrays = [np.asarray(a).tolist() for plan in plans for a in leaves(plan)]
            return store.rows, arrays

    return load


@pytest.fixture
def copied(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


@pytest.mark.parametrize("name", [*WHOLE, *DERIVED, *PLAIN])
def test_a_damaged_run_is_refused_by_name_or_mended(name, open_run, copied, tmp_path):
    path, sentinel = copied / name, tmp_path / "executed"
    sound, whole = open_run(copied), path.read_bytes()
    damaged = {f"cut to {len(data)}": data for data in truncations(whole)[::6]}
    damaged |= {f"flip {i}": data for i, data in enumerate(flips(whole or b"\0", 10))}
    others = foreign(sentinel)
    # Files of one format share their reader, so one of each format meets all foreign files.
    damaged |= others if name in THOROUGH else {what: others[what] for what in FEW}
    if name in WHOLE:  # a sound file, but in the wrong place
        damaged["another part"] = (copied / WHOLE[WHOLE.index(name) - 1]).read_bytes()
    for what, data in damaged.items():
        path.write_bytes(data)
        found = refused(open_run, copied, name=copied)
        assert not sentinel.exists(), f"{name} ran {what}"
        if name in DERIVED:
            assert found == sound, f"{name} was not mended after {what}"
        elif name in WHOLE:
            assert found in (None, sound), f"{name} was read after {what}"
            assert found is None or what.startswith("flip")
        path.write_bytes(whole)
    path.unlink()
    for what in put_nothing(path):
        found = refused(open_run, copied, name=copied)
        assert found is None or (name not in WHOLE and name != "config.json"), f"{name}: {what}"


def leaves(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array | np.ndarray)]
