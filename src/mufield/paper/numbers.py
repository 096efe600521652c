"""The rows of the table: every number of the paper, and where ours comes from."""

import math
from collections.abc import Iterator
from statistics import median
from typing import Any

from ..jobs.job import Job
from . import workload
from .budget import Budget
from .catalogue import (
    BEST_EPISODE,
    EARLY,
    FULL_ENTROPY_AT,
    KNOWN,
    LEARNED,
    NEAR_KNOWN,
    TABLE_SIZES,
)
from .table import Entry, Number

Figures = dict[str, Any]

OPEN = "the paper prints no noise, so its J is of another world than ours; compare percent"
MOST_ENTROPY = math.log(104)
NEAR_MAXIMUM = 0.02
"""The greatest entropy counts as reached this many nats below it."""

STALL = range(3, 8)
"""Steps at which the crowd may be waiting at the doors."""

CLASSES = {
    "network": ("networks", f"the paper's class of policies, our planner; {OPEN}"),
    "mirror": (
        "randomised policies",
        "policies that draw their actions spread a crowd faster than the paper's deterministic "
        f"ones can; {OPEN}",
    ),
}
"""Names, and why their J differs from the paper's; first what the paper has as well."""

LOST = (
    "the paper does not say which noise its discrete rooms have; without any, a population that "
    "starts in one cell and takes single moves stays in one cell, and Standard earns 0"
)
MEMORY = (
    "what the algorithm itself sees, with its own estimate of the distribution, which forgets all "
    "but the last two or three episodes at the paper's rate; so it pays at most 0.81 a step"
)
CLOSED_FORM = math.log(sum(1.0 / math.factorial(k) ** 2 for k in range(20)))
"""log I0(2), what the closed form earns for each step in continuous time."""

STEPS = (
    "time goes in 200 steps, which spread the population wider than the closed form, where "
    "positions pay much less"
)


def entries(budget: Budget) -> Iterator[Entry]:
    """All rows of the table."""
    for planner in CLASSES:
        yield from _shares_of_known(budget, planner)
    for planner in CLASSES:
        yield from _learned_rooms(budget, planner)
    yield from _known_rooms(budget)
    yield from _entropies(budget)
    yield from _bounds(budget)
    yield from _q_learning(budget)
    yield from _swarm_rates(budget)
    yield from _swarm_values(budget)
    yield from _swarm_distances(budget)


def _shares_of_known(budget: Budget, planner: str) -> Iterator[Entry]:
    """What can be compared: percent of the plan with known motion in the same class."""
    network = planner == "network"
    known = workload.known_rooms(budget, "network") if network else workload.rooms_bracket(budget)
    runs, name = workload.rooms_runs(budget, planner), CLASSES[planner][0]
    count = runs[0].settings["episodes"]

    def entry(quantity: str, given: Number, ours: Any, because: str) -> Entry:
        full = f"four rooms, {name}: {quantity}"
        jobs = (known, *runs)
        return Entry(full, "learning-curve", jobs, given, ours, because, relative=False)

    yield entry(
        f"percent of the plan with known motion in the same class, after {count} episodes, median",
        100 * LEARNED / KNOWN if network else "no such policies",
        lambda plan, *found: 100 * _median_end(*found) / _value(plan),
        "both below their own plans with known motion",
    )
    yield entry(
        f"first episode whose median earns {NEAR_KNOWN}% of that plan",
        "only a figure" if network else "no such policies",
        lambda plan, *found: _first_above(NEAR_KNOWN / 100 * _value(plan), found),
        "the paper has no numbers by episode",
    )


def _learned_rooms(budget: Budget, planner: str) -> Iterator[Entry]:
    jobs, (name, why) = workload.rooms_runs(budget, planner), CLASSES[planner]
    count = jobs[0].settings["episodes"]

    def entry(quantity: str, given: Number, ours: Any, because: str) -> Entry:
        full = f"four rooms, {name}: {quantity}"
        return Entry(full, "learning-curve", jobs, given, ours, because)

    def all_seeds(*runs: Figures) -> str:
        lasts = [run["values"][-1] for run in runs]
        return f"{min(lasts):.2f} to {max(lasts):.2f}"

    given: Number = LEARNED if planner == "network" else "no such policies"
    yield entry(f"J after {count} episodes, median", given, _median_end, why)
    yield entry(f"J after {count} episodes, all seeds", "a band in the figure", all_seeds, why)
    yield entry(
        "best episode of the run shown (seed 0)",
        BEST_EPISODE,
        lambda *runs: int(runs[0]["best_episode"]),
        "seeds differ in it",
    )


def _median_end(*runs: Figures) -> float:
    return float(median(run["values"][-1] for run in runs))


def _first_above(bar: float, runs: tuple[Figures, ...]) -> Number:
    medians = [median(values) for values in zip(*(run["values"] for run in runs), strict=True)]
    above = [episode for episode, value in enumerate(medians, start=1) if value >= bar]
    return above[0] if above else f"none of {len(medians)}"


def _known_rooms(budget: Budget) -> Iterator[Entry]:
    network, table = (workload.known_rooms(budget, policy) for policy in ("network", "table"))
    yield Entry(
        f"four rooms, known motion: J of networks, best of {network.settings['starts']}",
        "numbers",
        (network,),
        KNOWN,
        _value,
        f"{OPEN}; networks are fitted to a table first, which started from mirror ascent",
    )
    yield Entry(
        "four rooms, known motion: J of a table of actions",
        "numbers",
        (table,),
        KNOWN,
        _value,
        f"one action for each cell and step, freer than networks; {OPEN}",
    )


def _value(figures: Figures) -> float:
    return float(figures["value"])


def _entropies(budget: Budget) -> Iterator[Entry]:
    known = (workload.known_rooms(budget, "network"),)
    yield Entry(
        "four rooms: greatest entropy, log 104",
        "convergence",
        known,
        MOST_ENTROPY,
        lambda plan: float(max(plan["rewards"])),
        "the best entropy along our plan with known motion",
        digits=3,
    )
    yield Entry(
        "four rooms, known motion: step h from which the entropy is greatest",
        "convergence",
        known,
        FULL_ENTROPY_AT,
        _reached,
        f"within {NEAR_MAXIMUM} nats from there on; the paper does not say how near",
    )
    yield Entry(
        "four rooms, known motion: step h at which the entropy stagnates",
        "convergence",
        known,
        4,
        _stall,
        "least gain from one step to the next between h = 3 and h = 8",
    )
    yield Entry(
        "four rooms, random policy: entropy at the end",
        "start",
        (workload.random_rooms(budget),),
        "below log 104 = 4.644",
        lambda random: float(random["rewards"][-1]),
        "as in the paper, a random policy does not reach the even distribution",
        digits=3,
    )


def _reached(plan: Figures) -> Number:
    far = [h for h, reward in enumerate(plan["rewards"]) if reward < MOST_ENTROPY - NEAR_MAXIMUM]
    first = far[-1] + 1 if far else 0
    return first if first < len(plan["rewards"]) else "not reached"


def _stall(plan: Figures) -> int:
    entropies = plan["rewards"]
    steps = [h for h in STALL if h + 1 < len(entropies)]
    return min(steps, key=lambda h: float(entropies[h + 1] - entropies[h]), default=0)


def _bounds(budget: Budget) -> Iterator[Entry]:
    points = workload.POINTS
    yield Entry(
        "four rooms: certified optimum over randomised policies",
        "numbers",
        (workload.rooms_bracket(budget),),
        "no such bound",
        lambda bracket: _interval(bracket, 2),
        f"{points} x {points} moves; above the paper's plan, which is deterministic",
    )
    yield Entry(
        "four rooms, printed action box [0, 1]^2: best entropy at the end",
        "numbers",
        (workload.rooms_bracket(budget, printed=True),),
        MOST_ENTROPY,
        lambda printed: float(printed["rewards"][-1]),
        "with the printed box the even distribution is out of reach, so the paper must have used "
        "[-1, 1]^2, as we do",
        digits=3,
    )


def _interval(bracket: Figures, digits: int) -> str:
    upper = bracket["upper"]
    high = "no bound" if upper is None else f"{upper:.{digits}f}"
    return f"{bracket['value']:.{digits}f} to {high}"


def _q_learning(budget: Budget) -> Iterator[Entry]:
    for formulation in workload.FORMULATIONS:
        yield Entry(
            f"U2-MF-QL-FH, {formulation.capitalize()}: entries of the Q-table",
            "qlearning",
            (workload.q_training(budget, formulation, 0.0),),
            TABLE_SIZES[formulation],
            lambda training: int(training["entries"]),
            "the footnote lists ten options, the size says nine; we take nine",
        )
    for noise in workload.NOISES:
        named = "no noise" if noise == 0 else f"noise intensity {noise:g}"
        jobs = tuple(workload.q_training(budget, each, noise) for each in workload.FORMULATIONS)
        for column, why in (("evaluation", LOST), ("training", MEMORY)):
            yield Entry(
                f"U2-MF-QL-FH, {named}: {column} reward after {budget.q_episodes / 1e6:g} million "
                "episodes",
                "qlearning",
                jobs,
                "Extended above Standard (no number in the text)",
                lambda *trainings, column=column: _both_ends(column, *trainings),
                why,
            )
        yield Entry(
            f"discrete four rooms, {named}: certified optimum over randomised policies",
            "qlearning",
            (workload.discrete_bracket(budget, noise),),
            "no such bound",
            lambda bracket: _interval(bracket, 3),
            "five moves, 64 bits",
        )


def _both_ends(column: str, standard: Figures, extended: Figures) -> str:
    return f"Standard {standard[column][-1]:.2f}, Extended {extended[column][-1]:.2f}"


def _swarm_rates(budget: Budget) -> Iterator[Entry]:
    run, known = (make(budget, "free", "ergodic") for make in _SWARM)

    def rate(name: str, job: Job, ours: Any, why: str, drawn: bool = False) -> Entry:
        quantity = f"swarm: reward of a step, {name}"
        item = "swarm-distributions" if drawn else "swarm-rewards"
        return Entry(quantity, item, (job,), CLOSED_FORM, ours, why, 4, drawn, relative=False)

    yield rate(
        "closed-form policy, 200 steps (continuous time: log I0(2))",
        run,
        lambda numbers: float(numbers["closed_form_rate"]),
        STEPS,
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
        lambda plan: _value(plan) / len(plan["rewards"]),
        f"{STEPS}; the plan makes the best of it and earns more than the closed form there, "
        "as the paper says",
    )
    yield rate(
        "learned, last episode (closed form: log I0(2))",
        run,
        lambda learned: float(learned["values"][-1]) / len(learned["rewards"]),
        STEPS,
    )


_SWARM = (workload.swarm_run, workload.known_swarm)


def _swarm_values(budget: Budget) -> Iterator[Entry]:
    def ours(learned: Figures, known: Figures) -> str:
        last, best = float(learned["values"][-1]), _value(known)
        return f"{last:.2f}, known {best:.2f} ({last - best:+.2f})"

    for motion in workload.MOTIONS:
        for start in workload.STARTS:
            yield Entry(
                f"swarm, {motion} motion, from {start}: J after {budget.swarm_episodes} episodes, "
                "and with known motion",
                "swarm-rewards" if start == "ergodic" else "swarm-flow",
                tuple(make(budget, motion, start) for make in _SWARM),
                "almost identical (no number in the text)",
                ours,
                "effort is a^2 / 2, with which the closed form solves the problem; printed is "
                "|a| / 2",
            )


def _swarm_distances(budget: Budget) -> Iterator[Entry]:
    for motion in workload.MOTIONS:
        for start in ("normal", "uniform"):
            yield Entry(
                f"swarm, {motion} motion, from {start}: W1 between learned and known "
                f"distributions at h = {EARLY}",
                "swarm-flow",
                tuple(make(budget, motion, start) for make in _SWARM),
                "nearly matches" if motion == "free" else "not shown",
                lambda numbers, case=f"{motion}-{start}": float(numbers[case]["w1_early"]),
                "the torus has length 1",
                digits=4,
                drawn=True,
            )
        yield Entry(
            f"swarm, {motion} motion, ergodic state: W1 learned to known, known to closed form",
            "swarm-distributions",
            tuple(make(budget, motion, "ergodic") for make in _SWARM),
            "almost identical; some deviation" if motion == "free" else "does not apply",
            lambda numbers, motion=motion: (
                f"{numbers[motion]['w1_learned_known']:.4f}, "
                f"{numbers[motion]['w1_known_closed']:.4f}"
            ),
            "half-way through the episode",
            drawn=True,
        )
