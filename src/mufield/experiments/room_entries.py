"""The four rooms' part of the table."""

import math
from collections.abc import Callable, Iterator
from statistics import median

from . import paper, tasks
from .entries import Entry, Number
from .jobs import Job
from .results import Results

OPEN = (
    "the paper prints no noise; with ours, 0.25, plans with known motion earn about what it reports"
)
NEAR_MAXIMUM = 0.02
"""Nats below the greatest entropy that count as reached."""

NAMES = {"mirror": "randomised policies", "network": "networks"}
WHYS = {
    "mirror": "policies that draw their actions spread a crowd faster than the paper's "
    f"deterministic ones can; {OPEN}",
    "network": f"the paper's class of policies, our planner; {OPEN}",
}
STALL = range(3, 8)
"""Steps among which the crowd waits at the doors."""


def room_entries(results: Results) -> Iterator[Entry]:
    """Learning and known motion in the four rooms."""
    for planner in tasks.PLANNERS:
        yield from _learned(results, planner)
    yield from _known(results)
    yield from _bounds(results)


def _learned(results: Results, planner: str) -> Iterator[Entry]:
    jobs, name, why = tasks.rooms_runs(results.budget, planner), NAMES[planner], WHYS[planner]
    count = jobs[0].settings["episodes"]

    def lasts() -> list[float]:
        return [results.figures_of(job)["values"][-1] for job in jobs]

    def entry(quantity: str, given: Number, ours: Callable[[], Number], because: str) -> Entry:
        full = f"four rooms, {name}: {quantity}"
        return Entry(full, "learning-curve", jobs, given, ours, because)

    def spread() -> str:
        return f"{min(lasts()):.2f} to {max(lasts()):.2f}"

    def best() -> int:
        return int(results.figures_of(jobs[0])["best_episode"])

    yield entry(f"J after {count} episodes, median", paper.LEARNED, lambda: median(lasts()), why)
    yield entry(f"J after {count} episodes, all seeds", "a band in the figure", spread, why)
    passes = "our median, the paper's value after 30 episodes"
    yield entry(
        f"first episode whose median passes {paper.LEARNED}",
        30,
        lambda: _first_above(results, jobs, paper.LEARNED),
        passes,
    )
    yield entry(
        f"first episode whose median passes {paper.KNOWN}",
        "none of 30",
        lambda: _first_above(results, jobs, paper.KNOWN),
        why,
    )
    yield entry(
        "best episode of the run shown (seed 0)", paper.BEST_EPISODE, best, "seeds differ in it"
    )


def _first_above(results: Results, jobs: tuple[Job, ...], bar: float) -> Number:
    curves = [results.figures_of(job)["values"] for job in jobs]
    medians = [median(values) for values in zip(*curves, strict=True)]
    above = [episode for episode, value in enumerate(medians, start=1) if value >= bar]
    return above[0] if above else f"none of {len(medians)}"


def _known(results: Results) -> Iterator[Entry]:
    budget = results.budget
    network, table = (tasks.known_rooms(budget, kind) for kind in ("network", "table"))
    learned = tasks.rooms_runs(budget, "network")

    def value(job: Job) -> Callable[[], float]:
        return lambda: float(results.figures_of(job)["value"])

    def gap() -> float:
        last = float(median(results.figures_of(job)["values"][-1] for job in learned))
        return 100 * (1 - last / value(network)())

    seeds = network.settings["seeds"]
    yield Entry(
        f"four rooms, known motion: J of networks, best of {seeds}",
        "numbers",
        (network,),
        paper.KNOWN,
        value(network),
        f"{OPEN}; networks are fitted to a table first, which started from mirror ascent",
    )
    yield Entry(
        "four rooms, known motion: J of a table of actions",
        "numbers",
        (table,),
        paper.KNOWN,
        value(table),
        f"one action for each cell and step, freer than networks; {OPEN}",
    )
    yield Entry(
        "four rooms, networks: learned below known motion, percent",
        "learning-curve",
        (network, *learned),
        100 * (1 - paper.LEARNED / paper.KNOWN),
        gap,
        "median of the last episodes, below the best of our plans",
        relative=False,
    )
    yield from _entropy(results, network)


def _entropy(results: Results, job: Job) -> Iterator[Entry]:
    random = tasks.random_rooms(results.budget)

    def rewards(of: Job) -> list[float]:
        return [float(reward) for reward in results.figures_of(of)["rewards"]]

    def reached() -> Number:
        far = [h for h, one in enumerate(rewards(job)) if one < math.log(104) - NEAR_MAXIMUM]
        first = far[-1] + 1 if far else 0
        return first if first < len(rewards(job)) else "not reached"

    def stall() -> int:
        entropies = rewards(job)
        steps = [h for h in STALL if h + 1 < len(entropies)]
        return min(steps, key=lambda h: entropies[h + 1] - entropies[h], default=0)

    yield Entry(
        "four rooms: greatest entropy, log 104",
        "convergence",
        (job,),
        math.log(104),
        lambda: max(rewards(job)),
        "the best entropy along our plan with known motion",
        digits=3,
    )
    yield Entry(
        "four rooms, known motion: step h from which the entropy is greatest",
        "convergence",
        (job,),
        paper.FULL_ENTROPY_AT,
        reached,
        f"within {NEAR_MAXIMUM} nats from there on; the paper does not say how near",
    )
    yield Entry(
        "four rooms, known motion: step h at which the entropy stagnates",
        "convergence",
        (job,),
        4,
        stall,
        "least gain from one step to the next between h = 3 and h = 8",
    )
    yield Entry(
        "four rooms, random policy: entropy at the end",
        "start",
        (random,),
        "below log 104 = 4.644",
        lambda: rewards(random)[-1],
        "as in the paper, a random policy does not reach the even distribution",
        digits=3,
    )


def _bounds(results: Results) -> Iterator[Entry]:
    box, printed = tasks.rooms_bracket(results.budget), tasks.printed_box(results.budget)
    yield Entry(
        "four rooms: certified optimum over randomised policies",
        "numbers",
        (box,),
        "no such bound",
        lambda: bracket_text(results, box, 2),
        f"{tasks.POINTS} x {tasks.POINTS} moves; above the paper's plan, which is deterministic",
    )
    yield Entry(
        "four rooms, printed action box [0, 1]^2: best entropy at the end",
        "numbers",
        (printed,),
        math.log(104),
        lambda: float(results.figures_of(printed)["rewards"][-1]),
        "with the printed box the even distribution is out of reach, so the paper must have used "
        "[-1, 1]^2, as we do",
        digits=3,
    )


def bracket_text(results: Results, job: Job, digits: int) -> str:
    """The interval that holds the optimum."""
    figures = results.figures_of(job)
    upper = figures["upper"]
    high = "no bound" if upper is None else f"{upper:.{digits}f}"
    return f"{figures['value']:.{digits}f} to {high}"
