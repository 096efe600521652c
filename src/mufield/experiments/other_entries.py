"""The table's parts on Q-learning and on the swarm."""

import math
from collections.abc import Iterator
from typing import Any

from . import paper, tasks
from .entries import Entry
from .jobs import Job
from .results import Results
from .room_entries import bracket_text

NO_NUMBER = "Extended above Standard (no number in the text)"
LOST = (
    "the paper does not say which noise its discrete rooms have; without any, a population that "
    "starts in one cell and takes single moves stays in one cell, and Standard earns 0"
)
MEMORY = (
    "what the algorithm itself sees, with its own estimate of the distribution, which forgets all "
    "but the last two or three episodes at the paper's rate; so it pays at most 0.81 a step"
)


def q_entries(results: Results) -> Iterator[Entry]:
    """Q-learning in the discrete rooms."""
    budget = results.budget
    for formulation in tasks.FORMULATIONS:
        job = tasks.q_training(budget, formulation, 0.0)
        yield Entry(
            f"U2-MF-QL-FH, {formulation.capitalize()}: entries of the Q-table",
            "qlearning",
            (job,),
            paper.TABLE_SIZES[formulation],
            lambda job=job: int(results.figures_of(job)["entries"]),  # type: ignore[misc]
            "the footnote lists ten options, the size says nine; we take nine",
        )
    for noise in tasks.NOISES:
        yield from _trained(results, noise)


def _trained(results: Results, noise: float) -> Iterator[Entry]:
    budget = results.budget
    named = "no noise" if noise == 0 else f"noise intensity {noise:g}"
    jobs = tuple(tasks.q_training(budget, each, noise) for each in tasks.FORMULATIONS)
    bracket = tasks.discrete_bracket(budget, noise)
    millions = budget.q_episodes / 1e6
    for column, why in (("evaluation", LOST), ("training", MEMORY)):

        def ours(column: str = column) -> str:
            ends = [results.figures_of(job)[column][-1] for job in jobs]
            return f"Standard {ends[0]:.2f}, Extended {ends[1]:.2f}"

        yield Entry(
            f"U2-MF-QL-FH, {named}: {column} reward after {millions:g} million episodes",
            "qlearning",
            jobs,
            NO_NUMBER,
            ours,
            why,
        )
    yield Entry(
        f"discrete four rooms, {named}: certified optimum over randomised policies",
        "qlearning",
        (bracket,),
        "no such bound",
        lambda: bracket_text(results, bracket, 3),
        "five moves, 64 bits",
    )


def swarm_entries(results: Results) -> Iterator[Entry]:
    """The swarm: what it earns, and how near distributions are."""
    yield from _rates(results)
    for motion in tasks.MOTIONS:
        for start in tasks.STARTS:
            yield _learned_and_known(results, motion, start)
    yield from _distances(results)


def _rates(results: Results) -> Iterator[Entry]:
    budget = results.budget
    run, known = (make(budget, "free", "ergodic") for make in (tasks.swarm_run, tasks.known_swarm))
    closed = math.log(float(_bessel()))

    def per_step(job: Job, last: Any) -> float:
        figures = results.figures_of(job)
        return float(last(figures)) / len(figures["rewards"])

    steps = (
        "time goes in 200 steps, which spread the population wider than the closed form, where "
        "positions pay much less"
    )
    for name, key in (("200 steps", "closed_form_rate"), ("3,200 steps", "closed_form_rate_fine")):

        def rate(key: str = key) -> float:
            return float(results.numbers("swarm-distributions")[key])

        yield Entry(
            f"swarm: reward of a step, closed-form policy, {name} (continuous time: log I0(2))",
            "swarm-distributions",
            (run,),
            closed,
            rate,
            steps if key == "closed_form_rate" else "less and less as steps get shorter",
            digits=4,
            drawn=True,
            relative=False,
        )
    yield Entry(
        "swarm: reward of a step, known motion (closed form: log I0(2))",
        "swarm-rewards",
        (known,),
        closed,
        lambda: per_step(known, lambda figures: figures["value"]),
        f"{steps}; the plan makes the best of it and earns more than the closed form there, as "
        "the paper says",
        digits=4,
        relative=False,
    )
    yield Entry(
        "swarm: reward of a step, learned, last episode (closed form: log I0(2))",
        "swarm-rewards",
        (run,),
        closed,
        lambda: per_step(run, lambda figures: figures["values"][-1]),
        steps,
        digits=4,
        relative=False,
    )


def _bessel() -> float:
    """I0(2), by its series; no JAX or SciPy for one number."""
    return sum(1.0 / math.factorial(k) ** 2 for k in range(20))


def _learned_and_known(results: Results, motion: str, start: str) -> Entry:
    budget = results.budget
    run, known = (make(budget, motion, start) for make in (tasks.swarm_run, tasks.known_swarm))
    item = "swarm-rewards" if start == "ergodic" else "swarm-flow"

    def ours() -> str:
        last, best = results.figures_of(run)["values"][-1], results.figures_of(known)["value"]
        return f"{last:.2f}, known {best:.2f} ({last - best:+.2f})"

    return Entry(
        f"swarm, {motion} motion, from {start}: J after {run.settings['episodes']} episodes, "
        "and with known motion",
        item,
        (run, known),
        "almost identical (no number in the text)",
        ours,
        "effort is a^2 / 2, with which the closed form solves the problem; printed is |a| / 2",
    )


def _distances(results: Results) -> Iterator[Entry]:
    budget = results.budget
    for motion in tasks.MOTIONS:
        for start in ("normal", "uniform"):
            jobs = (
                tasks.swarm_run(budget, motion, start),
                tasks.known_swarm(budget, motion, start),
            )

            def ours(case: str = f"{motion}-{start}") -> float:
                return float(results.numbers("swarm-flow")[case]["w1_early"])

            yield Entry(
                f"swarm, {motion} motion, from {start}: W1 between learned and known "
                f"distributions at h = {paper.EARLY}",
                "swarm-flow",
                jobs,
                "nearly matches" if motion == "free" else "not shown",
                ours,
                "the torus has length 1",
                digits=4,
                drawn=True,
            )
        case = (motion, "ergodic")
        jobs = (tasks.swarm_run(budget, *case), tasks.known_swarm(budget, *case))

        def middle(motion: str = motion) -> str:
            found = results.numbers("swarm-distributions")[motion]
            return f"{found['w1_learned_known']:.4f}, {found['w1_known_closed']:.4f}"

        yield Entry(
            f"swarm, {motion} motion, ergodic state: W1 learned to known, known to closed form",
            "swarm-distributions",
            jobs,
            "almost identical; some deviation" if motion == "free" else "does not apply",
            middle,
            "half-way through the episode",
            drawn=True,
        )
