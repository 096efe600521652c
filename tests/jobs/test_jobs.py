"""Jobs: when a result counts, and what becomes of jobs that fail or are interrupted."""

import contextlib
import json
import os
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from helpers import closed_while_it_works

from mufield.errors import UserError
from mufield.io.atomic import locked
from mufield.jobs import compute
from mufield.jobs import job as job_module
from mufield.jobs import pool as pool_module
from mufield.jobs.job import Job, JobStore, learning_job, system_job, write_result
from mufield.jobs.pool import SameProcess, compute_missing
from mufield.jobs.processes import LocalProcesses, make_pool
from mufield.runs.config import RunConfig, parse_config
from mufield.runs.learn import learn_run, new_run

pytestmark = pytest.mark.slow

ROOMS = {"horizon": 3, "drawing": "...\n.#.\n..."}
RANDOM = {"environment": "four-rooms", "options": ROOMS, "precision": "float64"}


@pytest.fixture(scope="module")
def job():
    return system_job("random", "random", **RANDOM)


def test_defaults_are_written_out_so_that_a_changed_one_is_another_job(job):
    assert job.settings["options"]["noise_std"] == 0.25
    explicit = system_job("random", "random", **RANDOM | {"options": ROOMS | {"noise_std": 0.25}})
    assert explicit.folder == job.folder
    run = learning_job("run", RunConfig("four-rooms"))
    assert run.settings["model_options"]["inducing"] > 1
    assert run.settings["planner_options"]["sweeps"] > 1


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "mirror"},
        {"settings": {"precision": "float32"}},
        {"versions": {"jax": "0.0"}},
        {"versions": {"code": "0"}},
    ],
)
def test_what_a_result_depends_on_is_its_identity(job, change):
    assert replace(job, **change).identity != job.identity


def test_code_that_may_change_a_result_changes_the_identity_of_jobs(tmp_path, monkeypatch):
    package = tmp_path / "mufield"
    for name in ("jobs/job.py", "flow/phi.py", "viz/curves.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x = 1\n")
    monkeypatch.setattr(job_module, "__file__", str(package / "jobs" / "job.py"))
    digest = job_module.code_digest.__wrapped__
    first = digest()
    (package / "viz" / "curves.py").write_text("x = 2\n")  # pictures change no figure
    assert digest() == first
    (package / "flow" / "phi.py").write_text("x = 2\n")
    assert digest() != first
    assert job_module.versions_that_matter()["code"] == job_module.code_digest()


def test_what_others_print_meanwhile_stays_out_of_the_log(job, tmp_path, monkeypatch, capsys):
    """A progress bar has a thread of its own, which prints while a job is computed."""

    def slow(settings, directory):
        thread = threading.Thread(target=sys.stderr.write, args=("half done\n",))
        thread.start()
        thread.join()
        raise FloatingPointError("too much")

    monkeypatch.setitem(compute.KINDS, "random", slow)
    store = JobStore(tmp_path)
    (ended,) = compute_missing([job], store, SameProcess(), progress=False)
    log = (store.path(job) / "log.txt").read_text()
    assert ended.problem.startswith("random failed: FloatingPointError: too much")
    assert "Traceback" in log
    assert "half done" not in log
    assert capsys.readouterr().err == "half done\n"


def test_a_job_is_done_exactly_if_its_own_result_is_there_and_whole(job, tmp_path):
    store, other = JobStore(tmp_path), replace(job, versions={"jax": "0.0"})
    directory = store.begin(job)
    assert store.find(job) is None
    write_result(directory, job, {"value": 1.5, "rewards": np.arange(3.0)}, 2.0)
    assert store.find(other) is None
    found = store.find(job)
    assert (found.figures["value"], found.seconds) == (1.5, 2.0)
    np.testing.assert_array_equal(found.figures["rewards"], np.arange(3.0))
    assert json.loads((directory / "job.json").read_text()) == job.document()
    (directory / "result.safetensors").write_bytes(b"torn")
    assert store.find(job) is None
    with pytest.raises(UserError, match="compute it first"):
        store.figures(job)


def test_a_job_is_computed_once_however_often_it_is_named(job, tmp_path):
    store = JobStore(tmp_path)
    ended = list(compute_missing([job, job], store, SameProcess(), progress=False))
    assert [(one.job, one.problem) for one in ended] == [(job, "")]
    assert store.figures(job)["value"] > 0
    assert list(compute_missing([job], store, SameProcess(), progress=False)) == []


def test_a_run_that_was_interrupted_goes_on_from_its_last_episode(tmp_path):
    config = RunConfig(
        "four-rooms",
        options=ROOMS,
        episodes=2,
        model="ensemble",
        model_options={"members": 2, "width": 4, "steps": 3},
        planner_options={"points": 3, "sweeps": 2},
        judge=False,
        precision="float64",
    )
    job, store = learning_job("run", config), JobStore(tmp_path)
    run = store.begin(job) / "run"
    config = parse_config(job.settings, "the test")
    learn_run(run, 1, setup=new_run(run, config), progress=False)
    first = (run / "episodes" / "0001.safetensors").stat().st_mtime_ns
    assert store.progress(job) == 0.5

    (ended,) = compute_missing([job], store, SameProcess(), progress=False)

    assert ended.problem == ""
    assert len(store.figures(job)["values"]) == 2
    assert [row["episode"] for row in store.figures(job)["rows"]] == [1, 2]
    assert (run / "episodes" / "0001.safetensors").stat().st_mtime_ns == first
    assert store.progress(job) == 1.0


def test_processes_report_failures_by_name_and_go_on(job, tmp_path):
    """One process fails at a job, dies at the next, and others do the rest."""
    store = JobStore(tmp_path)
    bad = Job("bad", "random", job.settings | {"environment": "nowhere"})
    deadly = tmp_path / "deadly.py"
    told = tmp_path / "told.json"
    deadly.write_text(
        "import json, os, pathlib\n"
        "names = ('OPENBLAS_NUM_THREADS', 'PJRT_NPROC')\n"
        "found = {name: os.environ[name] for name in names}\n"
        f"pathlib.Path({str(told)!r}).write_text(json.dumps(found))\n"
        "os._exit(3)\n"
    )
    dying = Job("dying", "random", job.settings | {"imports": str(deadly)})
    pool = LocalProcesses(1)
    pool.tries = 1
    ended = compute_missing([bad, dying, job], store, pool, progress=False)
    problems = {one.job.name: one.problem for one in ended}
    log = store.path(bad) / "log.txt"
    assert problems["bad"].startswith("bad failed: no system is named 'nowhere'")
    assert problems["bad"].endswith(f"see {log}")
    assert "Traceback" in log.read_text()
    assert problems["dying"].startswith("dying failed: its worker died (")
    assert problems["random"] == ""
    found = json.loads(told.read_text())  # threads are limited before JAX begins
    assert (found["OPENBLAS_NUM_THREADS"], found["PJRT_NPROC"]) == ("1", "1")
    assert [store.find(one) is None for one in (bad, dying, job)] == [True, True, False]


def test_closing_a_pool_ends_its_processes_at_once(job, tmp_path):
    process = closed_while_it_works(LocalProcesses(1), job, tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_another_process_goes_on_where_one_died_until_none_gets_further(job, tmp_path):
    """A worker dies at each checkpoint; only those that leave nothing new count against the job."""
    store, tally = JobStore(tmp_path), tmp_path / "tally"
    mortal = tmp_path / "mortal.py"
    mortal.write_text(
        "import os, pathlib\n"
        f"here = pathlib.Path({str(tally)!r})\n"
        "done = len(here.read_text()) if here.exists() else 0\n"
        "here.write_text('x' * (done + 1))\n"
        f"place = next(pathlib.Path({str(tmp_path)!r}).glob('jobs/*'))\n"
        "if done < 2:\n"
        "    (place / f'{done}.safetensors').write_text('a checkpoint')\n"
        "os._exit(3)\n"
    )
    dying = Job("dying", "random", job.settings | {"imports": str(mortal)})
    pool = LocalProcesses(1)
    pool.tries = 2
    (ended,) = compute_missing([dying], store, pool, progress=False)
    assert ended.problem.startswith("dying failed: its worker died 2 times in a row (")
    assert len(tally.read_text()) == 3  # twice it got further, and then no more


def test_a_job_waits_for_a_worker_that_was_given_up_but_lives(job, tmp_path, monkeypatch):
    store = JobStore(tmp_path)
    directory = store.begin(job)
    monkeypatch.setattr(pool_module.AbstractPool, "patience", 0.0)
    monkeypatch.setattr(pool_module.AbstractPool, "look", 0.01)
    with locked(directory):
        (ended,) = compute_missing([job], store, SameProcess(), progress=False)
    assert "is in use by process" in ended.problem
    assert store.find(job) is None
    monkeypatch.setattr(pool_module.AbstractPool, "patience", 60.0)
    held = contextlib.ExitStack()
    held.enter_context(locked(directory))
    threading.Timer(0.3, held.close).start()
    (ended,) = compute_missing([job], store, SameProcess(), progress=False)
    assert ended.problem == ""


def test_places_and_numbers_of_workers_are_checked():
    assert isinstance(make_pool(workers=0), SameProcess)
    assert make_pool().workers == os.cpu_count()
    assert make_pool(cores=10_000).workers == 1
    with pytest.raises(UserError, match="0 or more workers of at least one core, got -1 of 1"):
        make_pool(workers=-1)
    with pytest.raises(UserError, match="at least one core, got None of 0"):
        make_pool(cores=0)
    with pytest.raises(UserError, match="got 'the moon'"):
        make_pool("the moon")
    with pytest.raises(UserError, match="at least one worker on ray, got 0"):
        make_pool("ray", 0)
