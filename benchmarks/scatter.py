"""What it pays to scatter agents: plans with scattered actions in the four rooms.

All plans know the motion. *Table* and *network* are deterministic, the paper's class; *scattered
table* and *scattered network* let each agent draw from 5 x 5 actions around a mean. The
certified optimum is mirror ascent's upper bound over randomised policies on 9 x 9 moves; the full
form also has that on 17 x 17 moves, because scattered actions lie between the moves of the coarser
set.

Claims: the scattered plans earn more than the best deterministic one, and are within 0.3% of the
certified optimum.

Run ``python benchmarks/scatter.py``; ``--quick`` leaves out the scattered network, further seeds
and the finer moves.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time

import jax
from _report import Report

import mufield
from mufield import MirrorAscent, MoveFlow, Network, Table
from mufield.planning.starts import PolicyKind

NEAR_OPTIMUM = 0.997
BRACKET = 0.03


def main() -> None:
    """Plans, and compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    quick = parser.parse_args().quick
    report = Report("scatter")
    system = mufield.make("four-rooms")
    flow, motion = system.reveal()
    box = flow.problem.actions

    def upper(points: int) -> float:
        actions = box.points(points)
        moves = MoveFlow(flow, motion, actions)
        found = MirrorAscent(sweeps=2000, bracket=BRACKET).solve(moves)
        report.row(
            f"optimum over randomised policies, {points} x {points} moves",
            f"{float(found.value):.3f} <= J* <= {float(found.upper):.3f}",
        )
        return float(found.upper)

    def planned(name: str, policy: PolicyKind, seeds: int) -> list[float]:
        values = []
        for seed in range(seeds):
            began = time.perf_counter()
            result = mufield.plan(flow, motion, policy, key=jax.random.key(seed))
            # What the system pays, not what the planner says.
            values.append(float(system.evaluate(result.profile).value))
            seconds = time.perf_counter() - began
            report.row(f"{name}, seed {seed}", f"J = {values[-1]:.3f}, {seconds:.0f} s")
        return values

    certified = max(upper(points) for points in ((9,) if quick else (9, 17)))
    seeds = 1 if quick else 3
    deterministic = max(
        *planned("table", Table(), 1),
        *(() if quick else planned("network", Network(), seeds)),
        float("-inf"),
    )
    scattered = {"scattered table": planned("scattered table", Table(scatter=5), 1)}
    if not quick:
        scattered["scattered network"] = planned("scattered network", Network(scatter=5), seeds)
    for name, values in scattered.items():
        report.claim(
            f"worst {name} above the best deterministic plan",
            min(values) - deterministic,
            0.0,
            side="at least",
        )
        report.claim(
            f"worst {name} as a share of the certified optimum",
            min(values) / certified,
            NEAR_OPTIMUM,
            side="at least",
        )
    report.show()


if __name__ == "__main__":
    main()
