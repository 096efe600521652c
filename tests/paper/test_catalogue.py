"""What can be reproduced, and when something counts as done."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from tiny import TINY

from mufield import cli
from mufield.compare.result import as_csv
from mufield.jobs.job import Job
from mufield.paper.budget import QUICK, Budget
from mufield.paper.catalogue import ITEMS, choose
from mufield.paper.table import as_markdown

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


def test_items_have_names_of_their_own_and_somebody_to_draw_them():
    assert len({item.name for item in ITEMS}) == len(ITEMS)
    for item in ITEMS:
        if item.drawn_by is None:
            continue
        module, _, function = item.drawn_by.partition(":")
        assert callable(getattr(import_module(f"mufield.paper.{module}"), function))


def test_the_stored_page_is_what_the_code_makes_of_the_stored_numbers():
    stored = Path(__file__).parents[2] / "results"
    rows = json.loads((stored / "table.json").read_text())["rows"]
    page = as_markdown(rows, "The paper and our results")
    assert (stored / "table.md").read_text() == page
    assert (stored / "table.csv").read_text() == as_csv(rows)


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
    assert cli.main(["reproduce", "--json", "--out", str(tmp_path / "none")]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [item.name for item in ITEMS]
    assert {row["state"] for row in rows} == {"missing"}
    assert not (tmp_path / "none").exists()


def test_the_list_is_printed_for_people_as_well(tmp_path, capsys):
    assert cli.main(["reproduce", "--quick", "--out", str(tmp_path / "none")]) == 0
    printed = capsys.readouterr().out
    assert all(item.name in printed for item in ITEMS)


def test_an_unknown_name_is_refused_in_one_line_that_names_the_others(capsys):
    assert cli.main(["reproduce", "figure-7"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert "figure-7" in complaint
    assert all(item.name in complaint for item in ITEMS)
