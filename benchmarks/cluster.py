"""The paper's learning curve on a Ray cluster that loses a node half-way, against this machine.

Two nodes of one core each compute the jobs of ``python -m reproduction learning-curve --quick``:
seeds of both classes of policies, the plan with known motion, the certified optimum. Once half of
the work is done, the second node is killed. The claims: its job goes on elsewhere from its last
checkpoint, so at most the episode that was under way is planned twice; every file is what ``--on
local`` writes, byte for byte, but for seconds (timings, logs and locks are left out, and seconds
inside of other files); and the same files where machines share no directory and hand them back at
the end, so that the lost job begins anew.

The nodes are processes of one machine, so times say nothing about speed on several. They are shown
to say what a worker for each job costs.

Run ``python benchmarks/cluster.py``; ``--quick`` takes the seeds of one class, in a tiny world, and
draws nothing.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from _report import Report, duration, options_of, run_sections

ITEM = "learning-curve"
HALF = 0.5


def smallest() -> Any:
    from reproduction.paper import QUICK

    return replace(
        QUICK,
        rooms_seeds=2,
        rooms_episodes=24,
        rooms_options={"points": 3, "sweeps": 2},
        model="ensemble",
        model_options={"members": 2, "width": 4, "steps": 3},
        rooms={"horizon": 3, "drawing": "...\n.#.\n..."},
    )


def jobs_of(budget: Any, quick: bool) -> list[Any]:
    from reproduction.items import choose
    from reproduction.workload import rooms_runs

    if quick:
        return list(rooms_runs(budget, "mirror"))
    return list({job.folder: job for item in choose([ITEM]) for job in item.jobs(budget)}.values())


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[str, Any]]:
    """A cluster of two nodes with a core each; yields its address, and what kills the second."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # as processes of this machine have it
    from ray.cluster_utils import Cluster

    small: dict[str, Any] = {"object_store_memory": 100 << 20}
    head = {"num_cpus": 0, "include_dashboard": False, **small}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=1, **small)
        second = cluster.add_node(num_cpus=1, **small)
        yield cluster.address, lambda: cluster.remove_node(second, allow_graceful=False)
    finally:
        cluster.shutdown()


def compute_with(pool: Any, out: Path, budget: Any, quick: bool) -> float:
    """Computes the jobs, and draws the figure unless it is to be quick; returns the seconds."""
    from mufield.jobs.job import JobStore
    from mufield.jobs.pool import compute_missing
    from reproduction.reproduce import reproduce

    began, store = time.perf_counter(), JobStore(out)
    if quick:
        with store.writing():
            ended = list(compute_missing(jobs_of(budget, quick), store, pool))
        problems = tuple(each.problem for each in ended if each.problem)
    else:
        problems = tuple(reproduce([ITEM], out, budget, pool))
    assert not problems, problems
    return time.perf_counter() - began


def losing_pool(address: str, lose: Any, jobs: list[Any], out: Path, *, shared: bool) -> Any:
    """Workers on the cluster, which loses a node while it learns, once half of the work is done."""
    from mufield.jobs.cluster import RayWorkers
    from mufield.jobs.job import JobStore
    from mufield.jobs.pool import Working

    store = JobStore(out)

    class Losing(RayWorkers):
        hired = 0
        lost: float | None = None

        def _begin(self, task: Any) -> Any:
            future = super()._begin(task)
            self.hired += future is not None
            return future

        def run(self, tasks: Any) -> Any:
            for news in super().run(tasks):
                done = sum(store.progress(job) for job in jobs) / len(jobs)
                if self.lost is None and isinstance(news, Working) and len(news.jobs) >= 2:
                    # Each node has a job, so the second loses one; without a shared directory
                    # nobody sees how far it is.
                    shares = [store.progress(job) for job in news.jobs]
                    if done >= HALF and (not shared or any(0 < share < 1 for share in shares)):
                        self.lost = done
                        lose()
                yield news

    pool = Losing(address)
    if not shared:
        pool.token_file = ".mufield-elsewhere.tmp"  # no worker finds it, as on another machine
    return pool


def contents(out: Path) -> dict[str, Any]:
    """What every file says, without seconds."""
    from mufield.io.sealed import read_sealed
    from mufield.jobs.job import JobResult

    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_dir() or path.name in ("lock", "log.txt", "timings.jsonl"):
            continue
        if path.name == JobResult.file:
            document, arrays = read_sealed(path, JobResult.kind)
            del document["seconds"]
            found[name] = document, {key: array.tobytes() for key, array in arrays.items()}
        elif path.name.startswith("table."):
            rows = json.loads((out / "table.json").read_text())["rows"]
            found["table"] = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
        else:
            found[name] = path.read_bytes()
    return found


def repeated_plans(out: Path) -> int:
    """Episodes that were planned more than once; the ones that a death interrupted may be."""
    from mufield.io.sealed import read_lines

    again = 0
    for path in out.glob("jobs/*/run/timings.jsonl"):
        planned = [row["episode"] for row in read_lines(path) if "plan" in row]
        again += len(planned) - len(set(planned))
    return again


def node_lost(report: Report, options: argparse.Namespace) -> None:
    """Both ways to hand files over, each with a node that is killed."""
    quick = options.quick
    from mufield.jobs.processes import LocalProcesses
    from mufield.runs.surroundings import set_precision
    from reproduction.paper import QUICK

    budget = smallest() if quick else QUICK
    set_precision(budget.precision)
    jobs = jobs_of(budget, quick)
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        seconds = compute_with(LocalProcesses(2), out / "local", budget, quick)
        wanted = contents(out / "local")
        report.row("two processes of this machine", duration(seconds))
        for way in ("shared directory", "files handed back")[: 1 if quick else 2]:
            shared = way == "shared directory"
            with two_nodes() as (address, lose):
                pool = losing_pool(address, lose, jobs, out / way, shared=shared)
                seconds = compute_with(pool, out / way, budget, quick)
            found = contents(out / way)
            names = wanted.keys() | found.keys()
            differing = [each for each in names if wanted.get(each) != found.get(each)]
            when = "never" if pool.lost is None else f"when {pool.lost:.0%} was done"
            report.row(f"{way}: two nodes, one killed {when}", duration(seconds))
            report.row(f"{way}: jobs, workers, files", f"{len(jobs)}, {pool.hired}, {len(names)}")
            for each in differing[:5]:
                report.row(f"{way}: differs", each)
            report.claim(f"{way}: files that differ", len(differing), 0, side="at most")
            moved, again = pool.hired - len(jobs), repeated_plans(out / way)
            report.claim(f"{way}: jobs that went on elsewhere", moved, 1, side="at least")
            if shared:
                report.claim(f"{way}: episodes planned twice", again, 1, side="at most")


def main() -> None:
    run_sections("cluster", options_of(__doc__), {"node": node_lost})


if __name__ == "__main__":
    main()
