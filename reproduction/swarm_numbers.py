"""The rows of the table about the swarm."""

import math
from collections.abc import Iterator
from typing import Any

from mufield.jobs.job import Job

from . import workload
from .paper import Budget, Cases, Paper
from .table import Entry, Figures, value_of


def swarm_entries(budget: Budget) -> Iterator[Entry]:
    """All rows about the swarm."""
    yield from _swarm_rates(budget)
    yield from _swarm_values(budget)
    yield from _swarm_distances(budget)


def _swarm_rates(budget: Budget) -> Iterator[Entry]:
    run, known = workload.swarm_jobs(budget, "free", "ergodic")

    # log I0(2), what the closed form earns for each step in continuous time.
    closed_form = math.log(sum(1.0 / math.factorial(k) ** 2 for k in range(20)))

    def rate(name: str, job: Job, ours: Any, why: str, drawn: bool = False) -> Entry:
        quantity = f"swarm: reward of a step, {name}"
        item = "swarm-distributions" if drawn else "swarm-rewards"
        return Entry(quantity, item, (job,), closed_form, ours, why, 4, drawn, relative=False)

    steps = (
        "time goes in 200 steps, which spread the population wider than the closed form, where "
        "positions pay much less"
    )
    yield rate(
        "closed-form policy, 200 steps (continuous time: log I0(2))",
        run,
        lambda numbers: float(numbers["closed_form_rate"]),
        steps,
        drawn=True,
    )
    yield rate(
        "closed-form policy, 3,200 steps (continuous time: log I0(2))",
        run,
        lambda numbers: float(numbers["closed_form_rate_fine"]),
        "less and less as steps get shorter",
        drawn=True,
    )
    yield rate(
        "known motion (closed form: log I0(2))",
        known,
        lambda plan: value_of(plan) / len(plan["rewards"]),
        f"{steps}; the plan makes the best of it and earns more than the closed form there, "
        "as the paper says",
    )
    yield rate(
        "learned, last episode (closed form: log I0(2))",
        run,
        lambda learned: float(learned["values"][-1]) / len(learned["rewards"]),
        steps,
    )


def _swarm_values(budget: Budget) -> Iterator[Entry]:
    def ours(learned: Figures, known: Figures) -> str:
        last, best = float(learned["values"][-1]), value_of(known)
        return f"{last:.2f}, known {best:.2f} ({last - best:+.2f})"

    for motion in Cases.motions:
        for start in Cases.starts:
            yield Entry(
                f"swarm, {motion} motion, from {start}: J after {budget.swarm_episodes} episodes, "
                "and with known motion",
                "swarm-rewards" if start == "ergodic" else "swarm-flow",
                workload.swarm_jobs(budget, motion, start),
                "almost identical (no number in the text)",
                ours,
                "effort is a^2 / 2, with which the closed form solves the problem; printed is "
                "|a| / 2",
            )


def _swarm_distances(budget: Budget) -> Iterator[Entry]:
    for motion in Cases.motions:
        for start in ("normal", "uniform"):
            yield Entry(
                f"swarm, {motion} motion, from {start}: W1 between learned and known "
                f"distributions at h = {Paper.early}",
                "swarm-flow",
                workload.swarm_jobs(budget, motion, start),
                "nearly matches" if motion == "free" else "not shown",
                lambda numbers, case=f"{motion}-{start}": float(numbers[case]["w1_early"]),
                "the torus has length 1",
                digits=4,
                drawn=True,
            )
        yield Entry(
            f"swarm, {motion} motion, ergodic state: W1 learned to known, known to closed form",
            "swarm-distributions",
            workload.swarm_jobs(budget, motion, "ergodic"),
            "almost identical; some deviation" if motion == "free" else "does not apply",
            lambda numbers, motion=motion: (
                f"{numbers[motion]['w1_learned_known']:.4f}, "
                f"{numbers[motion]['w1_known_closed']:.4f}"
            ),
            "half-way through the episode",
            drawn=True,
        )
