"""What can be reproduced, and when something counts as done."""

import json
from pathlib import Path

import pytest
from tiny import TINY

from mufield.io.sealed import write_sealed
from mufield.jobs.job import Job
from reproduction.__main__ import main
from reproduction.items import ITEMS, choose
from reproduction.paper import QUICK, Budget
from reproduction.results import Results
from reproduction.table import as_markdown

LABELS = (
    "fig:initial_distribution_random_dist",
    "fig:results_linear_a",
    "fig:results_linear_b",
    "fig:bptt_distributions",
    "fig:bptt_convergence",
    "fig:u2mfqlfh_convergence",
    "fig:first_row",
    "fig:second_row",
    "fig:third_row",
    "fig:swarm_motion2",
    "known_dynamics_animation",
    "m3_ucrl_animation_episode_t",
)
"""Of all figures and films of the paper."""


def all_jobs(budget):
    return [job for item in ITEMS for job in item.jobs(budget)]


@pytest.mark.parametrize("label", LABELS)
def test_every_figure_of_the_paper_is_an_item(label):
    assert sum(label in item.paper for item in ITEMS) == 1


def test_items_have_names_of_their_own():
    assert len({item.name for item in ITEMS}) == len(ITEMS)


def test_the_stored_page_is_what_the_code_makes_of_the_stored_numbers():
    stored = Path(__file__).parents[2] / "results"
    rows = json.loads((stored / "table.json").read_text())["rows"]
    page = as_markdown(rows, "The paper and our results")
    assert (stored / "table.md").read_text() == page


def test_all_means_all_and_the_order_is_the_catalogues():
    assert choose(["all"]) == ITEMS
    assert choose([ITEMS[2].name, ITEMS[0].name]) == (ITEMS[0], ITEMS[2])
    assert choose([]) == ()


def test_the_full_budget_is_the_papers():
    runs = [job for job in all_jobs(Budget()) if job.name.startswith("rooms-")]
    assert {job.settings["seed"] for job in runs} == set(range(10))
    assert {job.settings["episodes"] for job in runs} == {30}
    trainings = [job for job in all_jobs(Budget()) if job.kind == "qlearning"]
    assert {job.settings["episodes"] for job in trainings} == {10_000_000}
    swarms = [job for job in all_jobs(Budget()) if job.name.startswith("swarm-")]
    assert len({job.folder for job in swarms}) == 6
    assert {job.settings["episodes"] for job in swarms} == {20}


@pytest.mark.parametrize("budget", [Budget(), QUICK, TINY])
def test_a_folder_belongs_to_one_job(budget):
    by_folder: dict[str, Job] = {}
    for job in all_jobs(budget):
        assert by_folder.setdefault(job.folder, job) == job


def test_quick_jobs_are_never_taken_for_full_ones():
    full = {job.folder for job in all_jobs(Budget())}
    shared = [job for job in all_jobs(QUICK) if job.folder in full]
    # The random policy has no budget.
    assert {job.name for job in shared} <= {"random-rooms"}


def test_the_command_lists_every_item_with_its_state(tmp_path, capsys):
    assert main(["--quick", "--out", str(tmp_path / "none")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == [item.name for item in ITEMS]
    assert all(line.split()[1] == "missing" for line in lines[:-1])
    assert not (tmp_path / "none-quick").exists()


def test_an_unknown_name_is_refused_in_one_line_that_names_the_others(tmp_path, capsys):
    assert main(["figure-7", "--out", str(tmp_path)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert "figure-7" in complaint
    assert all(item.name in complaint for item in ITEMS)


def test_numbers_of_a_reproduction_are_sealed(tmp_path):
    results = Results(tmp_path, QUICK)
    (tmp_path / "made").mkdir()
    path = tmp_path / "made" / "rooms.safetensors"
    record = {"made_of": {}, "files": ["a.png"], "numbers": {"J": 1.5}}
    write_sealed(path, record, {}, kind=Results.kind)
    assert results.numbers("rooms") == {"J": 1.5}
    path.write_bytes(path.read_bytes().replace(b"1.5", b"9.5"))
    assert results.numbers("rooms") == {}
