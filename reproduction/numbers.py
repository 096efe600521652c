"""The rows of the table: every number of the paper, and where ours comes from."""

from collections.abc import Iterator
from statistics import median
from typing import Any

from . import workload
from .paper import Budget, Cases, Paper
from .swarm_numbers import swarm_entries
from .table import Entry, Figures, Number, value_of


def _without_noise(why: str) -> str:
    return f"{why}; the paper prints no noise, so its J cannot be compared with ours, percent can"


def _class_of(planner: str) -> tuple[str, str]:
    """The policies of a planner, and why their J differs from the paper's."""
    if planner == "network":
        return "networks", _without_noise("the paper's class of policies, our planner")
    why = (
        "policies that draw their actions spread a crowd faster than the paper's deterministic "
        "ones can"
    )
    return "randomised policies", _without_noise(why)


def entries(budget: Budget) -> Iterator[Entry]:
    """All rows of the table."""
    for planner in ("network", "mirror"):
        yield from _shares_of_known(budget, planner)
    for planner in ("network", "mirror"):
        yield from _learned_rooms(budget, planner)
    yield from _known_rooms(budget)
    yield from _entropies(budget)
    yield from _bounds(budget)
    yield from _q_learning(budget)
    yield from swarm_entries(budget)


def _shares_of_known(budget: Budget, planner: str) -> Iterator[Entry]:
    """What can be compared: percent of the plan with known motion in the same class."""
    network = planner == "network"
    known = workload.known_rooms(budget, "network") if network else workload.rooms_bracket(budget)
    runs, name = workload.rooms_runs(budget, planner), _class_of(planner)[0]
    count = runs[0].settings["episodes"]

    def entry(quantity: str, given: Number, ours: Any, because: str) -> Entry:
        full = f"four rooms, {name}: {quantity}"
        jobs = (known, *runs)
        return Entry(full, "learning-curve", jobs, given, ours, because, relative=False)

    yield entry(
        f"percent of the plan with known motion in the same class, after {count} episodes, median",
        100 * Paper.learned / Paper.known if network else "no such policies",
        lambda plan, *found: 100 * _median_end(*found) / value_of(plan),
        "both below their own plans with known motion",
    )
    yield entry(
        f"first episode whose median earns {Paper.near_known}% of that plan",
        "only a figure" if network else "no such policies",
        lambda plan, *found: _first_above(Paper.near_known / 100 * value_of(plan), found),
        "the paper has no numbers by episode",
    )


def _learned_rooms(budget: Budget, planner: str) -> Iterator[Entry]:
    jobs, (name, why) = workload.rooms_runs(budget, planner), _class_of(planner)
    count = jobs[0].settings["episodes"]

    def entry(quantity: str, given: Number, ours: Any, because: str) -> Entry:
        full = f"four rooms, {name}: {quantity}"
        return Entry(full, "learning-curve", jobs, given, ours, because)

    def all_seeds(*runs: Figures) -> str:
        lasts = [run["values"][-1] for run in runs]
        return f"{min(lasts):.2f} to {max(lasts):.2f}"

    given: Number = Paper.learned if planner == "network" else "no such policies"
    yield entry(f"J after {count} episodes, median", given, _median_end, why)
    yield entry(f"J after {count} episodes, all seeds", "a band in the figure", all_seeds, why)
    yield entry(
        "best episode of the run shown (seed 0)",
        Paper.best_episode,
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
        Paper.known,
        value_of,
        _without_noise("networks are fitted to a table that started from mirror ascent"),
    )
    yield Entry(
        "four rooms, known motion: J of a table of actions",
        "numbers",
        (table,),
        Paper.known,
        value_of,
        _without_noise("one action for each cell and step, freer than networks"),
    )


def _entropies(budget: Budget) -> Iterator[Entry]:
    known = (workload.known_rooms(budget, "network"),)
    yield Entry(
        "four rooms: greatest entropy, log 104",
        "convergence",
        known,
        Paper.most_entropy,
        lambda plan: float(max(plan["rewards"])),
        "the best entropy along our plan with known motion",
        digits=3,
    )
    yield Entry(
        "four rooms, known motion: step h from which the entropy is greatest",
        "convergence",
        known,
        Paper.full_entropy_at,
        _reached,
        f"within {Paper.near_maximum} nats from there on; the paper does not say how near",
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
    far = [
        h
        for h, reward in enumerate(plan["rewards"])
        if reward < Paper.most_entropy - Paper.near_maximum
    ]
    first = far[-1] + 1 if far else 0
    return first if first < len(plan["rewards"]) else "not reached"


def _stall(plan: Figures) -> int:
    entropies = plan["rewards"]
    # At steps 3 to 7 the population may be waiting at the doors.
    steps = [h for h in range(3, 8) if h + 1 < len(entropies)]
    return min(steps, key=lambda h: float(entropies[h + 1] - entropies[h]), default=0)


def _bounds(budget: Budget) -> Iterator[Entry]:
    points = Cases.points
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
        Paper.most_entropy,
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
    for formulation in Cases.formulations:
        yield Entry(
            f"U2-MF-QL-FH, {formulation.capitalize()}: entries of the Q-table",
            "qlearning",
            (workload.train_q(budget, formulation, 0.0),),
            Paper.table_sizes[formulation],
            lambda training: int(training["entries"]),
            "the footnote lists ten options, the size says nine; we take nine",
        )
    lost = (
        "the paper does not say which noise its discrete rooms have; without any, a population "
        "that starts in one cell and takes single moves stays in one cell, and Standard earns 0"
    )
    memory = (
        "what the algorithm itself sees, with its own estimate of the distribution, which forgets "
        "all but the last two or three episodes at the paper's rate; so it pays at most 0.81 a step"
    )
    for noise in Cases.noises:
        named = "no noise" if noise == 0 else f"noise intensity {noise:g}"
        jobs = tuple(workload.train_q(budget, each, noise) for each in Cases.formulations)
        for column, why in (("evaluation", lost), ("training", memory)):
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
