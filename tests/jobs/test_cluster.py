"""Jobs on a Ray cluster of two nodes: the same results, bit for bit, whatever happens to a node."""

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'mufield[ray]'")

from helpers import closed_while_it_works  # noqa: E402 (after the skip)

from mufield.errors import UserError  # noqa: E402
from mufield.io.sealed import read_sealed  # noqa: E402
from mufield.jobs import cluster  # noqa: E402
from mufield.jobs.job import Job, JobResult, JobStore, system_job  # noqa: E402
from mufield.jobs.pool import AbstractPool, Task, Working, compute_missing  # noqa: E402
from mufield.jobs.processes import LocalProcesses, make_pool  # noqa: E402
from mufield.runs.config import parse_config, read_settings  # noqa: E402
from reproduction.paper import Budget  # noqa: E402
from reproduction.workload import rooms_runs  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    # Ray leaves sockets and files to the end of the process, and warns of its own changes.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROOMS = {"horizon": 3, "drawing": "...\n.#.\n..."}
TINY = Budget(
    rooms_seeds=2,
    rooms_episodes=12,
    rooms_options={"points": 3, "sweeps": 2},
    model="ensemble",
    model_options={"members": 2, "width": 4, "steps": 3},
    precision="float64",
    rooms=ROOMS,
)
CLIENT_PORT = 23511
SMALL = {"object_store_memory": 100 << 20}


@pytest.fixture(scope="module")
def nodes():
    """A cluster whose head computes nothing, with two nodes of one core."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else other tests would starve them
    head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": CLIENT_PORT}
    found = Cluster(initialize_head=True, head_node_args=head | SMALL)
    found.add_node(num_cpus=1, **SMALL)
    yield found
    found.shutdown()


@pytest.fixture
def random_job():
    return system_job("random", "random", "four-rooms", ROOMS, precision="float64")


def contents(store, job):
    """All that a job left, without what differs from time to time."""
    found = {}
    for path in store.path(job).rglob("*"):
        if path.is_file() and path.name not in ("lock", "log.txt", "timings.jsonl", JobResult.file):
            found[path.relative_to(store.path(job)).as_posix()] = path.read_bytes()
    document, arrays = read_sealed(store.path(job) / JobResult.file, JobResult.kind)
    del document["seconds"]
    return found, document, {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.nightly
def test_a_node_that_is_lost_changes_no_bit(nodes, tmp_path, monkeypatch):
    """What the learning curve's seeds leave behind; the lost one goes on from its last episode."""
    jobs = rooms_runs(TINY, "mirror")
    local, store = JobStore(tmp_path / "local"), JobStore(tmp_path / "ray")
    with local.writing():
        assert not any(e.problem for e in compute_missing(jobs, local, LocalProcesses(1)))
    lost = nodes.add_node(num_cpus=1, **SMALL)
    monkeypatch.setattr(AbstractPool, "look", 0.05)  # on a fast machine these jobs take a second
    pool = cluster.RayWorkers(nodes.address)
    begun, left, problems = [], {}, []
    begin = pool._begin

    def count(task):
        future = begin(task)
        begun.extend([future] if future else [])
        return future

    pool._begin = count
    with store.writing():
        for news in pool.run([Task(job, store.begin(job)) for job in jobs]):
            if not isinstance(news, Working):
                problems.append(news.problem)
            elif not left and len(news.jobs) == len(jobs) and any(map(store.progress, jobs)):
                left = {
                    path: path.stat().st_mtime_ns for path in store.out.rglob("00*.safetensors")
                }
                nodes.remove_node(lost, allow_graceful=False)
    assert problems == ["", ""]
    assert len(begun) > len(jobs), "no worker was lost: the test tested nothing"
    assert {path: path.stat().st_mtime_ns for path in left} == left
    for job in jobs:
        assert contents(store, job) == contents(local, job)
    assert not list(compute_missing(jobs, store, pool, progress=False))


@pytest.mark.nightly  # by day: processes of one machine, in test_jobs.py
def test_a_client_whose_directory_nobody_shares_gets_everything_handed_back(
    nodes, tmp_path, random_job
):
    """And failures are told by name, with a log, and take no other job along."""
    store = JobStore(tmp_path)
    bad = Job("bad", "random", random_job.settings | {"environment": "nowhere"})
    old = replace(random_job, name="old", versions=random_job.versions | {"jax": "0.0"})
    pool = make_pool(f"ray://127.0.0.1:{CLIENT_PORT}", 2)
    pool.token_file = ".mufield-elsewhere.tmp"  # no worker finds it, as on another machine
    ended = compute_missing([bad, old, random_job], store, pool, progress=False)
    problems = {one.job.name: one.problem for one in ended}
    log = store.path(bad) / "log.txt"
    assert problems["bad"].startswith("bad failed: no system is named 'nowhere'")
    assert problems["bad"].endswith(f"see {log}")
    assert "Traceback" in log.read_text()
    assert "and 0.0 where the command was given; install the same on all" in problems["old"]
    assert problems["random"] == ""
    assert store.figures(random_job)["value"] > 0
    assert not list(tmp_path.rglob("*.tmp"))


def test_closing_the_pool_ends_its_workers_and_leaves_ray_alone(nodes, tmp_path, random_job):
    process = closed_while_it_works(make_pool(nodes.address), random_job, tmp_path)
    until, there = time.monotonic() + 30, Path("/proc", str(process))
    while there.exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not there.exists()
    assert not ray.is_initialized()


@pytest.mark.parametrize("name", ["../result.safetensors", "/etc/passwd", "run/../../x", ""])
def test_no_worker_writes_outside_of_its_job(tmp_path, name):
    job = tmp_path / "job"
    job.mkdir()
    with pytest.raises(UserError, match="inside of a job"):
        cluster.write_files(job, {name: b"x"})
    assert [path.name for path in tmp_path.rglob("*")] == ["job"]


def test_a_cluster_that_is_not_there_is_named(tmp_path, random_job, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("nobody answers\nat length")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(UserError, match=r"cannot use the Ray cluster ray://10\.0\.0\.1:1: nobody"):
        next(make_pool("ray://10.0.0.1:1").run([Task(random_job, tmp_path)]))


def test_no_file_names_a_cluster(tmp_path):
    """An address that somebody sends is code that runs here: Ray unpickles what a server says."""
    path = tmp_path / "mine.toml"
    path.write_text('environment = "four-rooms"\non = "ray://10.0.0.1:1"\n')
    with pytest.raises(UserError, match="there is no setting on; there are environment"):
        parse_config(read_settings(path), str(path))


@pytest.mark.nightly  # Ray gives up after half a minute
def test_a_server_that_is_no_cluster_is_told_nothing(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        address = "ray://{}:{}".format(*server.getsockname())
        with pytest.warns(UserWarning, match="timed out"), pytest.raises(UserError, match=address):
            cluster._connect(address)
        connection, _ = server.accept()
        with connection:
            said = connection.recv(1 << 16)
    assert said.startswith(b"PRI * HTTP/2.0")  # that it speaks HTTP/2, and nothing of us
    assert len(said) < 200


def test_a_cluster_that_refuses_at_first_is_asked_again(monkeypatch):
    asked = []

    def refuse_twice(*_, **__):
        asked.append(1)
        if len(asked) < 3:
            raise ConnectionAbortedError("Starting Ray client server failed.")

    monkeypatch.setattr(ray, "init", refuse_twice)
    monkeypatch.setattr(cluster.RayWorkers, "pauses", (0.0, 0.0))
    cluster._connect("ray://10.0.0.1:1")
    assert len(asked) == 3
    asked.clear()
    monkeypatch.setattr(cluster.RayWorkers, "pauses", ())
    with pytest.raises(UserError, match="Starting Ray client server failed"):
        cluster._connect("ray://10.0.0.1:1")
