"""Whether files and processes can be trusted: damaged files, and commands that are killed.

- ``damage``: every kind of file that mufield reads is damaged, 10,000 times, and read again. The
  files and their loaders are those of tests/loaders.py, which a test keeps complete. A changed file
  may be refused, in words that name it, or be read: as if nothing had happened where a checksum
  seals it or it follows from other files, and as what it says now where it is a text of the user's.
  Anything else is a fault: another error than those that the command line prints in one line, more
  than ten seconds, more than 2 GB, or another result without a word. Ways to damage: random changes
  (bytes, parts cut out, doubled or of another file, numbers); descriptions that were changed and
  sealed again with a right checksum, which may say anything but must not crash; a directory, a link
  to nowhere or a pipe in the file's place; and a file of 20 GB that takes no room.
- ``kills``: `new`, `train`, `tell`, `replan` (`ask --step`), `export`, and `compare` and
  `reproduce`, which compute jobs, run in a process of their own, on a tiny problem, and are killed
  (SIGKILL) somewhere between shortly before their first file and their end. Then they are run
  again, or gone on with as their documentation says, to the end. What comes out must be what comes
  out without a kill: the same files, the same bits in all that does not measure time. No temporary
  file may be left, neither beside the results nor in the directory for temporary files, and no
  process. What follows the kills is run by one further process, which traces programs once.

    python benchmarks/trust.py                        # all of it: 20 kills of each command
    python benchmarks/trust.py --quick                # 160 random changes, one kill of `train`
    python benchmarks/trust.py kills --only tell,export --kills 5
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import jax
import loaders as zoo
from _report import Report, duration, names_of, options_of, run_sections
from loaders import DERIVED, NAMES, PLAIN, SEALED, WHOLE

from mufield._progress import progress_bar
from mufield.io.sealed import read_sealed

# Damaged files.

MUTATIONS, FEW_MUTATIONS = 10_000, 160
FORGERIES, FEW_FORGERIES = 200, 5
"""Forged descriptions of each sealed file."""

MOST_SECONDS, MOST_MEGABYTES = zoo.SECONDS, 2000
SPARSE, ADDRESSES = 20 << 30, 16 << 30
"""Size of the files that take no room, and bytes of addresses that this process may have."""


@dataclass(frozen=True)
class Case:
    """A file to damage.

    Attributes:
        name: Its name.
        path: The copy that is damaged.
        load: Reads it; what comes back can be compared.
        told: What an error must name.
        sealed: Whether a change must be refused, or change nothing.
    """

    name: str
    path: Path
    load: Callable[[], Any]
    told: Path
    sealed: bool


def cases(originals: zoo.Originals, place: Path) -> list[Case]:
    """All files: those that are read by themselves, and those of a run."""
    found = []
    for name in NAMES:
        path = place / name
        shutil.copy(originals.place / name, path)
        load = originals.loaders[name]
        found.append(
            Case(name, path, lambda load=load, path=path: load(path), path, name in SEALED)
        )
    run = Path(shutil.copytree(originals.run, place / "run"))
    for name in (*WHOLE, *DERIVED, *PLAIN):
        found.append(Case(name, run / name, partial(originals.open_run, run), run, True))
    return found


def damages(
    case: Case, whole: bytes, others: list[bytes], quick: bool, count: int
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Ways to damage a file, each with what does it."""
    for data in zoo.mutations(whole or b"\0", count, others):
        yield "mutation", lambda data=data: case.path.write_bytes(data)
    if case.name in (*SEALED, *WHOLE) and whole:
        case.path.write_bytes(whole)
        forged = list(zoo.forged(case.path, zoo.forgeries))
        most = FEW_FORGERIES if quick else FORGERIES
        for data in forged[:: max(1, len(forged) // most)]:
            yield "forgery", lambda data=data: case.path.write_bytes(data)
    yield "directory", case.path.mkdir
    yield "link", lambda: case.path.symlink_to("nowhere")
    yield "pipe", lambda: os.mkfifo(case.path)
    yield "sparse", lambda: sparse(case.path)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SPARSE)


def judge(case: Case, kind: str, sound: Any) -> tuple[str, float]:
    """What comes of reading a damaged file, in a word, and the seconds that it took."""
    began = time.perf_counter()
    try:
        found = zoo.refused(lambda _: case.load(), case.path, name=case.told)
    except AssertionError as error:  # in place of `refused`: it waited, or named nothing
        return "hang" if "took more than" in str(error) else "nameless", time.perf_counter() - began
    except Exception as error:
        return f"traceback: {type(error).__name__}", time.perf_counter() - began
    seconds = time.perf_counter() - began
    if found is None:
        return "refused", seconds
    if found == sound:
        return "as before", seconds
    return ("silent change" if case.sealed and kind != "forgery" else "as it says"), seconds


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def damage_files(report: Report, options: argparse.Namespace) -> None:
    """Damages every file in every way, and counts what comes of it."""
    quick, limits = options.quick, resource.getrlimit(resource.RLIMIT_AS)
    wanted = FEW_MUTATIONS if quick else MUTATIONS
    os.environ.setdefault("MUFIELD_FSYNC", "0")
    jax.config.update("jax_enable_x64", True)
    # A loader that takes all there is must not take it from others.
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, limits[1]))
    outcomes, faults = Counter[tuple[str, str]](), Counter[str]()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as place:
        originals = zoo.Originals(Path(place) / "sound")
        damaged = Path(place) / "damaged"
        damaged.mkdir()
        files = cases(originals, damaged)
        each = -(-(wanted) // len(files))
        whole = {case.name: case.path.read_bytes() for case in files}
        sound = {case.name: case.load() for case in files}
        before = zoo.peak_megabytes()
        with progress_bar("files", len(files), shown=True) as bar:
            for number, case in enumerate(files):
                others = [data for name, data in whole.items() if name != case.name and data]
                for kind, damage in damages(case, whole[case.name], others, quick, each):
                    remove(case.path)
                    damage()
                    found, seconds = judge(case, kind, sound[case.name])
                    outcomes[kind, found.partition(":")[0]] += 1
                    slowest = max(slowest, seconds)
                    if found not in ("refused", "as before", "as it says"):
                        faults[f"{case.name}, {kind}: {found}"] += 1
                    remove(case.path)
                    case.path.write_bytes(whole[case.name])
                bar(number + 1, tried=outcomes.total())
        resource.setrlimit(resource.RLIMIT_AS, limits)
        grown = zoo.peak_megabytes() - before
    for (kind, found), count in sorted(outcomes.items()):
        report.row(f"{kind}: {found}", f"{count:,}")
    for fault, count in faults.most_common(20):
        report.row(f"fault: {fault}", f"{count:,}")
    mutated = sum(count for (kind, _), count in outcomes.items() if kind == "mutation")
    report.row("files", f"{len(files)}")
    report.row("random mutations", f"{mutated:,}")
    if not quick:
        report.claim("random mutations", mutated, MUTATIONS, side="at least")
    for name, words in {
        "tracebacks": ("traceback", "nameless"),
        "hangs": ("hang",),
        "silent changes": ("silent change",),
    }.items():
        count = sum(n for (_, found), n in outcomes.items() if found in words)
        report.claim(name, count, 0, side="at most")
    report.claim("seconds of the slowest", slowest, MOST_SECONDS, side="at most")
    report.claim("MB beyond what sound files take", grown, MOST_MEGABYTES, side="at most")


# Killed commands.

KILLS = 20
TINY = ["--precision", "float64", "--model", "ensemble", "--no-judge"]
TINY += ["--options", 'horizon=3,drawing="...\\n.#.\\n..."']
TINY += ["--model-options", "members=2,width=4,steps=3", "--planner-options", "points=3,sweeps=2"]
WITH_WORKERS = ("compare", "reproduce")
"""Commands that may leave their work to other processes."""

ENDED = "[ended with]"
TIMES = ("seconds", "computed_with")
"""Entries of documents that differ from run to run."""

MEASURED = ("timings.jsonl", "log.txt", "lock", ".pdf", ".png", ".csv", "table.md", "table.json")
"""Ends of names of files that tell times, or are drawn or made from files that are compared."""


@dataclass(frozen=True)
class Subject:
    """A command to kill.

    Attributes:
        prepare: Makes what the command needs in a new directory.
        command: The command for that directory, and how many workers compute for it, if it has any.
        go_on: All that is called afterwards, in turn.
        first: The first thing that the command writes, as a pattern.
    """

    prepare: Callable[["Server", Path], None]
    command: Callable[[Path, int], list[str]]
    go_on: Callable[[Path], Iterable[list[str]]]
    first: str


def mufield(*words: Any) -> list[str]:
    return ["mufield", *map(str, words)]


def train(place: Path, workers: int = 0) -> list[str]:
    return mufield("train", "four-rooms", *TINY, "--episodes", 3, "--out", place / "run")


def resume(place: Path) -> Iterable[list[str]]:
    begun = (place / "run" / "config.json").exists()
    yield mufield("train", "--out", place / "run") if begun else train(place)


def ask_first(server: "Server", place: Path) -> None:
    """A run whose first policy was asked for, and an episode that was observed."""
    import fleet
    import jax

    import mufield as mf

    tiny = ["--label", "killed", "--out", place / "run"]
    server.done(mufield("new", "four-rooms", *TINY, *tiny), place)
    server.done(mufield("ask", place / "run"), place)
    jax.config.update("jax_enable_x64", True)
    rooms = mf.make("four-rooms", horizon=3, drawing="...\n.#.\n...")
    episode = rooms.run(mf.random_policy(rooms.problem), jax.random.key(0), agents=4)
    fleet.write(place / "episode.csv", fleet.rows_of(episode))


def tell(place: Path, workers: int = 0) -> list[str]:
    return mufield("tell", place / "run", place / "episode.csv")


def tell_and_ask(place: Path) -> Iterable[list[str]]:
    if not (place / "run" / "episodes" / "0001.safetensors").exists():
        yield tell(place)
    yield mufield("ask", place / "run")


def new(place: Path, workers: int = 0) -> list[str]:
    return mufield("new", "four-rooms", *TINY, "--label", "killed", "--out", place / "run")


def begin_once(place: Path) -> Iterable[list[str]]:
    if not (place / "run" / "config.json").exists():
        yield new(place)
    yield mufield("ask", place / "run")


def replan(place: Path, workers: int = 0) -> list[str]:
    return mufield("ask", place / "run", "--start", place / "episode.csv", "--step", 1)


def export(place: Path, workers: int = 0) -> list[str]:
    return mufield("export", place / "run", "--episode", "last", "--out", place / "robot")


def compare(place: Path, workers: int = 0) -> list[str]:
    words = ["four-rooms", "--contenders", "random,m3ucrl", "--seeds", "0", "--episodes", 2]
    words += ["--options", 'horizon=3,drawing="...\\n.#.\\n..."', "--planner-options"]
    words += ["points=3,sweeps=2", "--model", "ensemble", "--model-options"]
    words += ["members=2,width=4,steps=3", "--workers", workers]
    return mufield("compare", *words, "--out", place / "comparison")


def reproduce(place: Path, workers: int = 0) -> list[str]:
    return ["reproduce", str(place / "results"), str(workers)]


def reproduce_here(out: Path, workers: int) -> int:
    """A few items of the paper with a tiny budget, which the command line does not have."""
    from mufield import enable_compilation_cache
    from mufield.jobs.processes import make_pool
    from reproduction.paper import Budget
    from reproduction.reproduce import reproduce as computed

    enable_compilation_cache()
    budget = Budget(
        name="tiny",
        rooms_seeds=1,
        rooms_episodes=2,
        rooms_options={"points": 3, "sweeps": 2},
        network_seeds=1,
        network_episodes=1,
        network_options={"steps": 2, "table_steps": 2, "fit_steps": 2, "sweeps": 2, "points": 3},
        model="ensemble",
        model_options={"members": 2, "width": 4, "steps": 3},
        precision="float64",
        rooms={"horizon": 3, "drawing": "...\n.#.\n..."},
    )
    items = ("start", "final-distribution")
    problems = computed(items, out, budget, make_pool(workers=workers), progress=False)
    print(*problems, sep="\n", file=sys.stderr)
    return len(problems)


def nothing(server: "Server", place: Path) -> None:
    pass


def trained(server: "Server", place: Path) -> None:
    server.done(train(place), place)


SUBJECTS = {
    "train": Subject(nothing, train, resume, "run/config.json"),
    "new": Subject(nothing, new, begin_once, "run/lock"),
    "replan": Subject(ask_first, replan, lambda place: [replan(place)], "run/policies/0001-*"),
    "tell": Subject(ask_first, tell, tell_and_ask, "run/episodes/0001.safetensors"),
    "export": Subject(trained, export, lambda place: [export(place)], "robot/*"),
    "compare": Subject(nothing, compare, lambda place: [compare(place)], "comparison/lock"),
    "reproduce": Subject(nothing, reproduce, lambda place: [reproduce(place)], "results/lock"),
}


def run(command: list[str]) -> int:
    """Runs a command in this process."""
    name, *words = command
    if name == "reproduce":
        return reproduce_here(Path(words[0]), int(words[1]))
    from mufield.cli import main as program

    return program(words)


def serve() -> None:
    """Runs commands that standard input names, and says how each ended."""
    for line in sys.stdin:
        command, scratch = json.loads(line)
        os.environ["TMPDIR"], tempfile.tempdir = scratch, None
        print(ENDED, run(command), flush=True)


def scratch_for(place: Path) -> str:
    """A directory of its own for temporary files."""
    scratch = place.parent / f"{place.name}-temporary"
    scratch.mkdir(exist_ok=True)
    return str(scratch)


def start(command: list[str], place: Path) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own."""
    name, *rest = command
    words = ["-m", "mufield", *rest] if name == "mufield" else [__file__, "--run", json.dumps(rest)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    environment = os.environ | {"TMPDIR": scratch_for(place)}
    return subprocess.Popen(
        [sys.executable, *words], env=environment, start_new_session=True, **quiet
    )


class Server:
    """A process that runs one command after the other, and is never killed."""

    def __init__(self, log: Path):
        self.log = log
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"], text=True, stderr=log.open("w"), **pipes
        )

    def done(self, command: list[str], place: Path) -> None:
        """Runs a command to its end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([command, scratch_for(place)]), file=self.process.stdin, flush=True)
        answer = ""
        while not answer.startswith(ENDED):  # the command's own lines come before
            answer = self.process.stdout.readline()
            if not answer:
                raise SystemExit(f"{' '.join(command)} ended its process:\n{self.log.read_text()}")
        if int(answer.removeprefix(ENDED)):
            raise SystemExit(f"{' '.join(command)} failed:\n{self.log.read_text()}")

    def close(self) -> None:
        """Lets it end."""
        self.process.communicate()


def outcome(place: Path) -> dict[str, Any]:
    """The files of a directory, with all contents that must not depend on interruptions."""
    found: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        if path.is_file():
            measured = path.name.endswith(MEASURED)
            found[str(path.relative_to(place))] = None if measured else _contents(path)
    return found


def _contents(path: Path) -> Any:
    if path.name == "result.safetensors":
        document, arrays = read_sealed(path, "job result")
        return _timeless(document), {name: array.tobytes() for name, array in arrays.items()}
    if path.name == "comparison.json":
        return _timeless(json.loads(path.read_bytes()))
    return path.read_bytes()


def _timeless(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: _timeless(each) for name, each in document.items() if name not in TIMES}
    return [_timeless(each) for each in document] if isinstance(document, list) else document


def scratch_of(place: Path) -> set[str]:
    """What is in the directory for temporary files; some libraries leave files there, always."""
    return {path.name for path in Path(f"{place}-temporary").iterdir()}


def session_members(leader: int) -> list[int]:
    """The processes of a session that are still there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@dataclass
class Count:
    kills: int = 0
    same: int = 0
    left: int = 0
    processes: int = 0


def try_subject(name: str, kills: int, place: Path, draw: random.Random) -> Count:
    server = Server(place / "server.txt")
    try:
        return try_with(server, name, kills, place, draw)
    finally:
        server.close()


def try_with(server: Server, name: str, kills: int, place: Path, draw: random.Random) -> Count:
    subject, count = SUBJECTS[name], Count()
    ready = place / "ready"
    ready.mkdir()
    subject.prepare(server, ready)
    took: dict[int, tuple[float, float]] = {}
    # How long it takes with compiled programs at hand, with and without a worker.
    for workers in (0, 0, 1) if name in WITH_WORKERS else (0, 0):
        whole = place / "whole"
        shutil.rmtree(whole, ignore_errors=True)
        shutil.copytree(ready, whole)
        before = time.perf_counter()
        process = start(subject.command(whole, workers), whole)
        while process.poll() is None and not list(whole.glob(subject.first)):
            time.sleep(0.01)
        first = time.perf_counter() - before
        _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"{name} failed:\n{errors.decode()}")
        took[workers] = first, time.perf_counter() - before
    if name in ("new", "tell"):
        server.done(mufield("ask", whole / "run"), whole)
    expected, usual = outcome(whole), scratch_of(whole)
    for workers, (first, seconds) in took.items():
        text = f"{duration(seconds)}, first file after {duration(first)}"
        print(f"{name}, {workers} workers: {text}", flush=True)
    while count.kills < kills:
        here = place / f"trial-{count.kills}"
        shutil.copytree(ready, here)
        workers = count.kills // 2 % len(took)
        first, seconds = took[workers]
        process = start(subject.command(here, workers), here)
        # Starts differ in speed while other programs run, so half of the kills wait for the file.
        if count.kills % 2:
            while process.poll() is None and not list(here.glob(subject.first)):
                time.sleep(0.002)
            time.sleep(draw.uniform(0.0, max(seconds - first, 0.2)))
        else:
            time.sleep(draw.uniform(0.7 * first, seconds))
        late = process.poll() is not None
        process.kill()
        process.communicate()
        if late:  # it had ended; that is no trial
            shutil.rmtree(here)
            continue
        deadline = time.perf_counter() + 20
        while session_members(process.pid) and time.perf_counter() < deadline:
            time.sleep(0.1)
        left = session_members(process.pid)
        for each in left:
            os.kill(each, signal.SIGKILL)
        for command in subject.go_on(here):
            server.done(command, here)
        found = outcome(here)
        temporary = scratch_of(here) - usual
        count.kills += 1
        count.same += found == expected
        count.left += bool(temporary) or found.keys() != expected.keys()
        count.processes += bool(left)
        if found != expected or temporary:
            differs = {key for key in found if found[key] != expected.get(key, b"")}
            odd = sorted(differs | (expected.keys() - found.keys()))
            print(f"{name}, kill {count.kills}: {odd} {sorted(temporary)}", flush=True)
        shutil.rmtree(here)
        print(f"{name}: {count.kills} of {kills}", flush=True)
    return count


def kill_commands(report: Report, options: argparse.Namespace) -> None:
    """Kills every command at random moments."""
    kills = 1 if options.quick else options.kills
    for name in ("train",) if options.quick else options.only or SUBJECTS:
        with tempfile.TemporaryDirectory() as place:
            count = try_subject(name, kills, Path(place), random.Random(f"{options.seed} {name}"))
        report.claim(f"{name}: same bits after a kill", count.same, kills, side="at least")
        report.claim(f"{name}: kills that left files", count.left, 0, side="at most")
        report.claim(f"{name}: kills that left processes", count.processes, 0, side="at most")


def main() -> None:
    """Runs the sections, or is one of their processes."""
    parser = options_of(__doc__)
    add = parser.add_argument
    add("--kills", type=int, default=KILLS, help="kills of each command")
    add("--only", type=names_of(SUBJECTS), help=f"commands, with commas; of {', '.join(SUBJECTS)}")
    add("--seed", type=int, default=0)
    add("--run", help=argparse.SUPPRESS)
    add("--serve", action="store_true", help=argparse.SUPPRESS)
    given, _ = parser.parse_known_args()
    if given.run:
        out, workers = json.loads(given.run)
        sys.exit(reproduce_here(Path(out), int(workers)))
    if given.serve:
        sys.exit(serve())
    run_sections("trust", parser, {"kills": kill_commands, "damage": damage_files})


if __name__ == "__main__":
    main()
