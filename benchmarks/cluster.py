"""The paper's learning curve on a Ray cluster that loses a node half-way, against this machine.

Two nodes of one core each compute the jobs of ``mufield reproduce learning-curve --quick`` (seeds of
both classes of policies, the plan with known motion, the certified optimum). Once half of the work
is done, the second node is killed. The claims: its jobs go on elsewhere from their last
checkpoint, so no episode is computed twice; every file is what ``--on local`` writes, byte for byte,
but for seconds (files of timings and locks are left out, and seconds inside of others); and the same
where machines share no directory and hand their files back instead.

The nodes are processes of one machine, so times say nothing about speed on several. They are shown
to say what a worker for each job costs.

Run ``python benchmarks/cluster.py``; ``--quick`` takes a budget that is as small as it gets.
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
        name="smallest",
        rooms_seeds=2,
        rooms_episodes=4,
        rooms_options={"points": 3, "sweeps": 2},
        network_seeds=1,
        network_episodes=2,
        network_options={"steps": 2, "table_steps": 2, "fit_steps": 2, "sweeps": 2, "points": 3},
        ensemble_options={"members": 2, "width": 4, "steps": 3},
        known_steps=2,
        sweeps=2,
        rooms={"horizon": 3, "drawing": "...\n.#.\n..."},
        effort=0.01,
    )


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[str, Any]]:
    """A cluster of two nodes with a core each; yields its address, and what kills the second."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
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


def reproduce_with(pool: Any, out: Path, budget: Any) -> float:
    """Reproduces the figure; returns the seconds."""
    from mufield.paper.reproduce import reproduce

    began = time.perf_counter()
    outcome = reproduce([ITEM], out, budget, pool=pool)
    assert not outcome.problems, outcome.problems
    return time.perf_counter() - began


def losing_pool(address: str, lose: Any, budget: Any, out: Path) -> Any:
    """Workers on the cluster, which loses a node once half of the work is done."""
    from mufield.jobs.cluster import RayWorkers
    from mufield.jobs.pool import Working
    from mufield.paper.catalogue import choose
    from mufield.paper.results import Results

    results = Results(out, budget)
    jobs = {job.folder: job for item in choose([ITEM]) for job in item.jobs(budget)}.values()
    total = sum(job.seconds for job in jobs)

    class Losing(RayWorkers):
        hired = 0
        lost: tuple[float, int] | None = None

        def _hire(self) -> Any:
            worker = super()._hire()
            self.hired += worker is not None
            return worker

        def run(self, tasks: Any) -> Any:
            for news in super().run(tasks):
                done = sum(results.progress(job) * job.seconds for job in jobs) / total
                busy = isinstance(news, Working) and len(news.jobs) == 2
                learning = busy and any(0 < results.progress(job) < 1 for job in news.jobs)
                late = done >= HALF or all(job.kind == "learn" for job in news.jobs if busy)
                if self.lost is None and learning and late:
                    self.lost = done, len(news.jobs)
                    lose()
                yield news

    return Losing(address)


def contents(out: Path) -> dict[str, Any]:
    """What every file says, without seconds."""
    from mufield._files import read_sealed
    from mufield.jobs.job import RESULT, RESULT_KIND

    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_dir() or path.name in ("lock", "log.txt", "timings.jsonl"):
            continue
        if path.name == RESULT:
            document, arrays = read_sealed(path, RESULT_KIND)
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
    from mufield._files import read_lines

    again = 0
    for path in out.glob("jobs/*/run/timings.jsonl"):
        planned = [row["episode"] for row in read_lines(path) if "plan" in row]
        again += len(planned) - len(set(planned))
    return again


def main() -> None:
    quick = parse_quick(__doc__)
    from mufield.jobs import cluster
    from mufield.jobs.pool import LocalProcesses
    from mufield.paper.budget import QUICK
    from mufield.runs.surroundings import set_precision

    budget = smallest() if quick else QUICK
    set_precision(budget.precision)
    report = Report("cluster")
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        local = reproduce_with(LocalProcesses(2), out / "local", budget)
        wanted = contents(out / "local")
        report.row("two processes of this machine", duration(local))
        token = cluster.TOKEN
        ways = {"shared directory": token, "files handed back": ".mufield-elsewhere.tmp"}
        for name, here in list(ways.items())[: 1 if quick else 2]:
            cluster.TOKEN = here  # under another name no worker finds it, as on another machine
            place = out / name
            with two_nodes() as (address, lose):
                pool = losing_pool(address, lose, budget, place)
                seconds = reproduce_with(pool, place, budget)
            cluster.TOKEN = token
            found = contents(place)
            names = wanted.keys() | found.keys()
            differing = [each for each in names if wanted.get(each) != found.get(each)]
            jobs = len(list(place.glob("jobs/*")))
            share, _ = pool.lost or (float("nan"), 0)
            report.row(
                f"{name}: two nodes, one killed when {share:.0%} was done", duration(seconds)
            )
            report.row(f"{name}: workers for {jobs} jobs, files", f"{pool.hired}, {len(names)}")
            for each in differing[:5]:
                report.row(f"{name}: differs", each)
            report.claim(f"{name}: files that differ", len(differing), 0, side="at most")
            report.claim(
                f"{name}: jobs that went on elsewhere", pool.hired - jobs, 1, side="at least"
            )
            again = repeated_plans(place)
            report.claim(f"{name}: episodes planned twice", again, 0, side="at most")
    report.show()


if __name__ == "__main__":
    main()
