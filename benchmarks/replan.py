"""What it gains to plan the rest of a day anew: Manhattan's taxis when something happens at 7:40.

Days on which the morning's plan of two hours does not fit any more after four of its twelve steps:

- ``as planned``: nothing happens; a new plan should not lose anything.
- ``depot``: a third of the fleet changed its drivers at a depot in the south, and is there.
- ``lost``: 70% of the vehicles in the south go home, and the others have more demand each.
- ``concert``: a quarter of the demand moves to one kilometre around a place in the north.
- ``holiday``: demand is that of a weekend (not with ``--quick``).

The rest of each day is earned in four ways: by the morning's plan; by plans that are made anew from
where vehicles are, with the demand that the morning expected, once or at every second step; and by
a plan from where vehicles are with the demand of the day. The motion is known, except in the
section ``learned``, where it is what a learner knows of it after some episodes (not with
``--quick``).

Run ``python benchmarks/replan.py``; ``--quick`` ends within a minute.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from _report import Report, duration, parse_quick

import mufield
from mufield import Flow, MirrorAscent, MoveFlow, Problem, Profile, SimulatedSystem

HAPPENS = 4
SOUTH, GO_HOME = 7.0, 0.7
CONCERT, NEAR, MOVED = (2.75, 11.5), 1.0, 0.25
DEPOT, CHANGING = (3.0, 1.5), 1 / 3
POINTS = 5

Masses = Any
Planner = Callable[[Problem, int, Masses, Profile], Profile]
"""Plans the rest of a day: problem, step, population, and the profile so far."""


def with_demand(problem: Problem, wanted: np.ndarray) -> Problem:
    """The problem with another demand."""
    new = jnp.asarray(wanted, dtype=problem.initial.dtype)
    changed: Problem = eqx.tree_at(
        lambda p: (p.reward.passengers.demand, p.trips.chance.demand), problem, (new, new)
    )
    return changed


def demand_of(problem: Problem) -> np.ndarray:
    assert problem.trips is not None
    return np.asarray(problem.trips.chance.demand, dtype=float)


def days(problem: Problem, mass: np.ndarray, load: float) -> dict[str, tuple[Problem, np.ndarray]]:
    """What happens: the problem as it turns out to be, and where vehicles are then."""
    centres, usual = problem.grid.centres, demand_of(problem)
    south = centres[:, 1] < SOUTH
    left = np.where(south, 1 - GO_HOME, 1.0) * mass
    fewer = usual.copy()
    fewer[HAPPENS:] /= left.sum()
    there = np.linalg.norm(centres - np.asarray(CONCERT), axis=1) < NEAR
    concert = usual.copy()
    crowd = there / there.sum() * usual.sum(axis=1, keepdims=True)
    concert[HAPPENS:] = ((1 - MOVED) * usual + MOVED * crowd)[HAPPENS:]
    depot = np.eye(len(mass))[np.argmin(np.linalg.norm(centres - np.asarray(DEPOT), axis=1))]
    weekend = mufield.make("manhattan", load=load, day="weekend").problem
    return {
        "as planned": (problem, mass),
        "depot": (problem, (1 - CHANGING) * mass + CHANGING * depot),
        f"lost: {1 - left.sum():.0%} of the fleet": (
            with_demand(problem, fewer),
            left / left.sum(),
        ),
        "concert": (with_demand(problem, concert), mass),
        "holiday": (weekend, mass),
    }


_rollout = eqx.filter_jit(Flow.rollout)


def rest(flow: Flow, motion: Any, day: Problem, step: int, mass: Any, profile: Profile) -> Any:
    """The course of a day from a step on."""
    return _rollout(flow.of_problem(day).from_step(step, mass), profile, motion)


def earned(
    system: SimulatedSystem,
    day: Problem,
    mass: np.ndarray,
    profile: Profile,
    steps: list[int],
    replan: Planner,
    expected: Problem,
) -> tuple[float, float]:
    """J of the rest of a day, planned anew at some steps, and the share of demand served."""
    flow, motion = system.reveal()
    horizon, now, value = system.problem.horizon, jnp.asarray(mass), 0.0
    wanted, served = demand_of(day), 0.0
    for first, after in zip([HAPPENS, *steps], [*steps, horizon], strict=True):
        if first in steps:
            profile = replan(expected, first, now, profile)
        if after == first:
            continue
        course = rest(flow, motion, day, first, now, profile)
        value += float(course.rewards[first:after].sum())
        masses = np.asarray(course.mass[first:after], dtype=float)
        served += float(np.minimum(masses, wanted[first:after]).sum())
        now = course.mass[after]
    return value, served / float(wanted[HAPPENS:].sum())


def known_plans(system: SimulatedSystem, sweeps: int) -> tuple[Profile, Planner]:
    """The morning's plan with known motion, and a way to plan anew."""
    flow, motion = system.reveal()
    points, ascent = system.problem.actions.points(POINTS), MirrorAscent(sweeps, bound=False)

    def replan(problem: Problem, step: int, mass: Masses, profile: Profile) -> Profile:
        there = flow.of_problem(problem).from_step(step, mass)
        return ascent.solve(MoveFlow(there, motion, points)).profile

    return ascent.solve(MoveFlow(flow, motion, points)).profile, replan


def learned_plans(system: SimulatedSystem, episodes: int) -> tuple[Profile, Planner]:
    """A learner's plan of the day after some episodes with 50 tracked vehicles."""
    planner = mufield.MirrorPlanner(points=POINTS, sweeps=60)
    family = mufield.GaussianProcess(mu=mufield.policies.Here())
    learner = mufield.M3UCRL(system.problem, family, planner)
    state = mufield.learn(system, learner, episodes=episodes, agents=50).state
    plan = learner.ask(state)

    def replan(problem: Problem, step: int, mass: Masses, profile: Profile) -> Profile:
        so_far = eqx.tree_at(lambda p: p.profile, plan, profile)
        return learner.replan(state, so_far, mass, step, problem=problem).profile

    return plan.profile, replan


def section(
    report: Report, name: str, load: float, plans: tuple[Profile, Planner], *, quick: bool
) -> None:
    system = mufield.make("manhattan", load=load)
    assert isinstance(system, SimulatedSystem)
    profile, replan = plans
    whole = system.evaluate(profile)
    noon = np.asarray(whole.mass[HAPPENS], dtype=float)
    often = list(range(HAPPENS, system.problem.horizon, 2))
    found: dict[str, dict[str, tuple[float, float]]] = {}
    spent: list[float] = []
    for what, (day, mass) in days(system.problem, noon, load).items():
        ways: dict[str, tuple[list[int], Problem]] = {
            "keep": ([], system.problem),
            "positions": ([HAPPENS], system.problem),
            "positions, often": (often, system.problem),
            "positions and demand": ([HAPPENS], day),
        }
        if quick:
            del ways["positions, often"]
        if what in ("as planned", "depot"):  # the demand is the expected one
            del ways["positions and demand"]
        if quick and what == "holiday":
            continue
        results = found.setdefault(what.partition(":")[0], {})
        for way, (steps, expected) in ways.items():
            began = time.perf_counter()
            results[way] = earned(system, day, mass, profile, steps, replan, expected)
            if len(steps) == 1:
                spent.append(time.perf_counter() - began)
        report.row(
            f"{name}, {what}: J of the rest (served) " + " | ".join(ways),
            " | ".join(f"{value:.3f} ({share:.1%})" for value, share in results.values()),
        )
    for what, results in found.items():
        kept = results["keep"][0]
        gains = {way: value / kept - 1 for way, (value, _) in results.items()}
        way = list(results)[-1] if what not in ("as planned", "depot") else "positions"
        bar = {"as planned": -0.01, "depot": 0.02, "lost": 0.02, "concert": 0.03, "holiday": 0.05}
        report.claim(f"{name}, {what}: gain by {way}", gains[way], bar[what], side="at least")
    report.row(f"{name}: seconds of a new plan, the fastest", duration(min(spent)))
    report.claim(f"{name}: seconds of a new plan", min(spent), 20.0, side="at most")


def main() -> None:
    quick = parse_quick(__doc__)
    report = Report("replan")
    for load in (0.6,) if quick else (0.6, 0.9):
        system = mufield.make("manhattan", load=load)
        assert isinstance(system, SimulatedSystem)
        plans = known_plans(system, 20 if quick else 100)
        section(report, f"known, load {load}", load, plans, quick=quick)
    if not quick:
        section(
            report,
            "learned, load 0.6",
            0.6,
            learned_plans(mufield.make("manhattan"), 5),
            quick=True,
        )
    report.show()


if __name__ == "__main__":
    main()
