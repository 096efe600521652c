"""Damages every kind of file that mufield reads, 10,000 times, and reads it again.

The files and their loaders are those of tests/loaders.py, which a test keeps complete. A changed
file may be refused, in words that name it, or be read: as if nothing had happened where a checksum
seals it or it follows from other files, and as what it says now where it is a text of the user's.
Anything else is a fault: another error than those that the command line prints in one line, more
than ten seconds, more than 2 GB, or another result without a word.

Ways to damage: random changes (bytes, parts cut out, doubled or of another file, numbers);
descriptions that were changed and sealed again with a right checksum, which may say anything but
must not crash; a directory, a link to nowhere or a pipe in the file's place; and a file of 20 GB
that takes no room.

    python benchmarks/fuzz.py             # all of it: several minutes
    python benchmarks/fuzz.py --quick     # 320 random changes
"""

import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("MUFIELD_FSYNC", "0")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import jax
import loaders as zoo
from _report import Report, parse_quick
from loaders import DERIVED, NAMES, PLAIN, SEALED, WHOLE

from mufield import enable_compilation_cache
from mufield._progress import progress_bar

MUTATIONS, QUICK = 10_000, 320
FORGERIES, FEW_FORGERIES = 200, 10
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


def main() -> None:
    quick = parse_quick(__doc__)
    jax.config.update("jax_enable_x64", True)
    # A loader that takes all there is must not take it from others.
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    enable_compilation_cache()
    report, outcomes, faults = Report("fuzz"), Counter[tuple[str, str]](), Counter[str]()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as place:
        originals = zoo.Originals(Path(place) / "sound")
        damaged = Path(place) / "damaged"
        damaged.mkdir()
        files = cases(originals, damaged)
        each = -(-(QUICK if quick else MUTATIONS) // len(files))
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
        grown = zoo.peak_megabytes() - before
    for (kind, found), count in sorted(outcomes.items()):
        report.row(f"{kind}: {found}", f"{count:,}")
    for fault, count in faults.most_common(20):
        report.row(f"fault: {fault}", f"{count:,}")
    mutated = sum(count for (kind, _), count in outcomes.items() if kind == "mutation")
    report.row("files", f"{len(files)}")
    report.claim("random mutations", mutated, QUICK if quick else MUTATIONS, side="at least")
    for name, words in {
        "tracebacks": ("traceback", "nameless"),
        "hangs": ("hang",),
        "silent changes": ("silent change",),
    }.items():
        count = sum(n for (_, found), n in outcomes.items() if found in words)
        report.claim(name, count, 0, side="at most")
    report.claim("seconds of the slowest", slowest, MOST_SECONDS, side="at most")
    report.claim("MB beyond what sound files take", grown, MOST_MEGABYTES, side="at most")
    report.show()


if __name__ == "__main__":
    main()
