"""Whether runs and jobs survive any fault of disk, process and power, and whether we would notice.

- ``histories``: histories of runs and jobs on a simulated disk, each drawn from a seed (see
  tests/histories.py): kills, power failures that lose all that was not synced, full disks, errors
  of the disk, too many open files, clocks that jump. Nothing that was acknowledged may be lost,
  nothing that was refused may change anything, and all bits must be as they are without faults.
- ``bugs``: mistakes that a store could have are made on purpose, one at a time, and histories are
  drawn until one shows it.
- ``watch``: `mufield watch` serves a page while 500 connections send their requests a byte at a
  time; a new episode must be noticed soon, by a browser that was there and by one that comes.

    python benchmarks/faults.py                          # a minute of histories
    python benchmarks/faults.py histories --seconds 3600
    python benchmarks/faults.py histories --seed 4711    # one history again
"""

import argparse
import contextlib
import http.client
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "report"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import jax
from _report import Report, duration, options_of, run_sections
from histories import History, Violation, surroundings, world
from histories import draw_histories as histories_for
from simulated_disk import SimulatedDisk

from mufield.io import atomic, disk
from mufield.runs import layout, store

SECONDS, FEW_SECONDS = 60.0, 15.0
SLOW, NOTICED = 500, 2.0
"""Slow connections, and seconds within which a new episode must be noticed."""


class OtherDisk:
    """The disk as one module sees it, with some functions of its own."""

    def __init__(self, **functions: Any):
        self.functions = functions

    def __getattr__(self, name: str) -> Any:
        return self.functions.get(name) or getattr(disk, name)


def names_or_none(directory: Path) -> list[str]:
    try:
        return disk.names(directory)
    except OSError:
        return []


def unsynced(path: Path) -> None:
    pass


def bugs() -> dict[str, AbstractContextManager[Any]]:
    """Mistakes by name, each as a patch of the store."""
    write, patch = SimulatedDisk.write_new, mock.patch.object
    return {
        "no sync of the directory": patch(atomic, "disk", OtherDisk(sync_directory=unsynced)),
        "rename before the data's sync": patch(
            SimulatedDisk, "write_new", lambda self, path, data: write(self, path, data, False)
        ),
        "a lock that is not taken": patch(
            store, "locked", lambda directory: contextlib.nullcontext()
        ),
        "no sync of a new directory's name": patch(
            store, "make_directory", lambda path: disk.make_directory(path)
        ),
        "no sync when a run is opened": patch(store, "disk", OtherDisk(sync_directory=unsynced)),
        "lists that hide errors": patch(layout, "disk", OtherDisk(names=names_or_none)),
    }


def prepare() -> None:
    jax.config.update("jax_enable_x64", True)
    world()


def draw_histories(report: Report, options: argparse.Namespace) -> None:
    """Draws histories for as long as there is time."""
    prepare()
    if options.seed is not None:
        with surroundings():
            print(History(options.seed).run())
        return
    limit = FEW_SECONDS if options.quick else options.seconds
    faults, broken, count = Counter[str](), [], 0
    for seed, found in histories_for(0, limit):
        count += 1
        if isinstance(found, Violation):
            broken.append(seed)
            print(found, file=sys.stderr)
        else:
            faults += found
    report.row("histories", f"{count:,} in {duration(limit)}")
    for kind, count in sorted(faults.items()):
        report.row(f"faults: {kind}", f"{count:,}")
    report.row("seeds of violations", ", ".join(map(str, broken[:10])) or "none")
    report.claim("violations", len(broken), 0, side="at most")


def find_bugs(report: Report, options: argparse.Namespace) -> None:
    """Makes each mistake, and draws histories until one shows it; counts processor seconds."""
    prepare()
    for name, bug in list(bugs().items())[: 5 if options.quick else None]:
        began = time.process_time()
        with bug:
            tried = (each for each in histories_for(0, SECONDS) if isinstance(each[1], Violation))
            shown = next(tried, None)
        seconds = time.process_time() - began
        found = f"seed {shown[0]}: {shown[1]}".splitlines()[0][:90] if shown else "not found"
        report.row(name, found)
        report.claim(f"seconds to find: {name}", seconds if shown else 1e9, SECONDS, side="at most")


def slow_requests(server: Any, stop: threading.Event) -> None:
    """Keeps `SLOW` connections that send a byte a second, and opens those anew that are ended."""
    slow: list[socket.socket] = []
    while not stop.wait(1.0):
        while len(slow) < SLOW and not stop.is_set():
            slow.append(socket.create_connection(server.server_address, 5))
            slow[-1].setblocking(False)
        for each in list(slow):
            try:
                each.send(b"G")
            except OSError:
                each.close()
                slow.remove(each)
    for each in slow:
        each.close()


def watch_slowly(report: Report, options: argparse.Namespace) -> None:
    """Serves a page under slow connections, and takes the time until news arrive."""
    from report_runs import SMALL, add_episode, begin, serving

    import mufield as mf

    jax.config.update("jax_enable_x64", True)
    problem = mf.make(SMALL.environment, **SMALL.options).problem
    delays, answers, refused, stop = [], [], 0, threading.Event()
    with tempfile.TemporaryDirectory() as place:
        run = begin(Path(place) / "run", SMALL)
        add_episode(run, problem, 1)
        with serving(run) as server:
            page = http.client.HTTPConnection(*server.server_address, timeout=30)
            page.request("GET", "/events")
            stream = page.getresponse()
            attack = threading.Thread(target=slow_requests, args=(server, stop))
            attack.start()
            end = time.monotonic() + (10.0 if options.quick else 60.0)
            number = 1
            while time.monotonic() < end:
                time.sleep(2.0)
                number += 1
                add_episode(run, problem, number)
                began = time.perf_counter()
                while episodes_in(stream) < number:
                    pass
                delays.append(time.perf_counter() - began)
                began = time.perf_counter()
                try:
                    fresh = http.client.HTTPConnection(*server.server_address, timeout=10)
                    fresh.request("GET", "/")
                    fresh.getresponse().read()
                    answers.append(time.perf_counter() - began)
                except OSError:
                    refused += 1
            stop.set()
            attack.join()
            page.close()
    report.row("episodes under slow connections", f"{len(delays)}")
    report.row("new browsers: slowest answer", duration(max(answers, default=0.0)))
    report.claim("seconds until a new episode is noticed", max(delays), NOTICED, side="at most")
    report.claim("new browsers that were refused", refused, 0, side="at most")


def episodes_in(stream: Any) -> int:
    """The number of episodes in the next message of a stream."""
    while not (line := stream.readline()).startswith(b"data: "):
        pass
    return len(json.loads(line[6:])["runs"][0]["rows"])


def main() -> None:
    """Runs the sections."""
    parser = options_of(__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of histories")
    parser.add_argument("--seed", type=int, help="replay one history")
    sections = {"histories": draw_histories, "bugs": find_bugs, "watch": watch_slowly}
    run_sections("faults", parser, sections)


if __name__ == "__main__":
    main()
