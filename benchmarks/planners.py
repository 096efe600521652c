"""Which planner for a known motion that depends on mu: J and time of each, in the same run.

Where the motion does not depend on mu, mirror ascent is global and comes with a proof. Where it
does, nothing proves anything, and the planners differ. Each system is planned by mirror ascent over
randomised policies (nine moves on an axis, or 25 where there is only one), by gradient ascent for a
table that starts from mirror ascent's mean actions (the default of `mf.plan`), and for a table with
scattered actions. Shares are of the best J that any of them found, measured from what a random
policy earns. Times are processor time of one call, compilation included, as a user waits for it; a
table's contains the mirror ascent that it starts from.

    python benchmarks/planners.py [--quick]
"""

import time
from collections.abc import Callable
from typing import Any

import jax
from _report import Report, duration, parse_quick

import mufield as mf

SWEEPS, STEPS = 100, 200
NEAR = 0.97
"""What mirror ascent must reach, as a share of the way from random to the best that was found."""

SYSTEMS: dict[str, dict[str, Any]] = {
    "rooms-crowded": {},
    "swarm-congested": {"horizon": 50, "cells": 50, "duration": 0.25},
}
SMALL: dict[str, dict[str, Any]] = {
    "rooms-crowded": {"horizon": 6},
    "swarm-congested": {"horizon": 10, "cells": 20, "duration": 0.05},
}


def planners(system: mf.SimulatedSystem) -> dict[str, Callable[[int, int], mf.Profile]]:
    flow, motion = system.reveal()
    axes = system.problem.actions.dim
    moves = mf.MoveFlow(flow, motion, system.problem.actions.points(25 if axes == 1 else 9))

    def mirror(sweeps: int, steps: int) -> mf.Profile:
        return mf.MirrorAscent(sweeps=sweeps).solve(moves).profile

    def table(scatter: int, steps: int) -> mf.Profile:
        kind = mf.Table(scatter=scatter)
        ascent = mf.planning.BPTT(steps=steps, learning_rate=kind.learning_rate)
        return mf.plan(flow, motion, kind, ascent=ascent).profile

    return {
        "mirror ascent": mirror,
        "table": lambda sweeps, steps: table(1, steps),
        "scattered table": lambda sweeps, steps: table(3 if axes == 1 else 5, steps),
    }


def main() -> None:
    quick = parse_quick(__doc__)
    mf.enable_compilation_cache()
    report, chosen = Report("planners"), SMALL if quick else SYSTEMS
    effort = (20, 30) if quick else (SWEEPS, STEPS)
    for name, options in chosen.items():
        system = mf.make(name, **options)
        chance = float(system.evaluate(mf.random_policy(system.problem)).value)
        values, seconds = {}, {}
        for planner, plan in planners(system).items():
            began = time.process_time()
            profile = jax.block_until_ready(plan(*effort))
            seconds[planner] = time.process_time() - began
            values[planner] = float(system.evaluate(profile).value)
            took = duration(seconds[planner])
            print(f"{name}, {planner}: J {values[planner]:.3f}, {took}", flush=True)
        best = max(values.values())
        for planner, value in values.items():
            share = (value - chance) / (best - chance)
            figures = f"J {value:.3f}, {share:.1%} of the way, {duration(seconds[planner])}"
            report.row(f"{name}: {planner}", figures)
        report.row(f"{name}: random policy", f"J {chance:.3f}")
        share = (values["mirror ascent"] - chance) / (best - chance)
        report.claim(f"{name}: mirror ascent's share", share, NEAR, side="at least")
    report.show()


if __name__ == "__main__":
    main()
