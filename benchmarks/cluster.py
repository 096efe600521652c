"""The paper's learning curve on a Ray cluster that loses a node half-way, against this machine.

Two nodes of one core each compute the jobs of ``mufield reproduce learning-curve --quick``: seeds
of both classes of policies, the plan with known motion, the certified optimum. Once half of the
work is done, the second node is killed. The claims: its job goes on elsewhere from its last
checkpoint, so at most the episode that was under way is planned twice; every file is what ``--on
local`` writes, byte for byte, but for seconds (timings, logs and locks are left out, and seconds
inside of other files); and the same where machines share no directory and hand their files back.

The nodes are processes of one machine, so times say nothing about speed on several. They are shown
to say what a worker for each job costs.

Run ``python benchmarks/cluster.py``; ``--quick`` takes the seeds of one class, in a tiny world, and
draws nothing.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from _report import Report, duration, parse_quick

ITEM = "learning-curve"
HALF = 0.5


def smallest() -> Any:
    from mufield.paper.budget import QUICK

    return replace(
        QUICK,
        rooms_seeds=2,
        rooms_episodes=24,
        rooms_options={"points": 3, "sweeps": 2},
        model="ensemble",
        model_options={"members": 2, "width": 4, "steps": 3},
        rooms={"horizon": 3, "drawing": "...\n.#.\n..."},
        effort=0.01,
    )


def jobs_of(budget: Any, quick: bool) -> list[Any]:
    from mufield.paper.catalogue import choose
    from mufield.paper.workload import rooms_runs

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
    from mufield.paper.reproduce import reproduce

    began, store = time.perf_counter(), JobStore(out)
    if quick:
        with store.writing():
            ended = list(compute_missing(jobs_of(budget, quick), store, pool))
        problems = tuple(each.problem for each in ended if each.problem)
    else:
        problems = reproduce([ITEM], out, budget, pool=pool).problems
    assert not problems, problems
    return time.perf_counter() - began


def losing_pool(address: str, lose: Any, jobs: list[Any], out: Path) -> Any:
    """Workers on the cluster, which loses a node while it learns, once half of the work is done."""
    from mufield.jobs.cluster import RayWorkers
    from mufield.jobs.job import JobStore
    from mufield.jobs.pool import Working

    store, total = JobStore(out), sum(job.seconds for job in jobs)

    class Losing(RayWorkers):
        hired = 0
        lost: float | None = None

        def _hire(self) -> Any:
            worker = super()._hire()
            self.hired += worker is not None
            return worker

        def run(self, tasks: Any) -> Any:
            for news in super().run(tasks):
                done = sum(store.progress(job) * job.seconds for job in jobs) / total
                if self.lost is None and isinstance(news, Working) and len(news.jobs) == 2:
                    # Each node has a job, so the second loses one.
                    shares = [store.progress(job) for job in news.jobs]
                    if done >= HALF and any(0 < share < 1 for share in shares):
                        self.lost = done
                        lose()
                yield news

    return Losing(address)


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


def main() -> None:
    quick = parse_quick(__doc__)
    from mufield import enable_compilation_cache
    from mufield.jobs import cluster
    from mufield.jobs.processes import LocalProcesses
    from mufield.paper.budget import QUICK
    from mufield.runs.surroundings import set_precision

    enable_compilation_cache()
    budget = smallest() if quick else QUICK
    set_precision(budget.precision)
    report, jobs = Report("cluster"), jobs_of(budget, quick)
    with tempfile.TemporaryDirectory() as directory:
        out, token = Path(directory), cluster.Desk.token_file
        seconds = compute_with(LocalProcesses(2), out / "local", budget, quick)
        wanted = contents(out / "local")
        report.row("two processes of this machine", duration(seconds))
        ways = {"shared directory": token, "files handed back": ".mufield-elsewhere.tmp"}
        for way, name in list(ways.items())[: 1 if quick else 2]:
            # Under another name no worker finds it, as on another machine.
            cluster.Desk.token_file = name
            with two_nodes() as (address, lose):
                pool = losing_pool(address, lose, jobs, out / way)
                seconds = compute_with(pool, out / way, budget, quick)
            cluster.Desk.token_file = token
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
            report.claim(f"{way}: episodes planned twice", again, 1, side="at most")
    report.show()


if __name__ == "__main__":
    main()
