"""Which noise the paper's four rooms may have had: plans with known motion, for several.

The paper prints no noise. It does report what its networks, planned with known motion, did: they
earned 78.26; their entropy stalled from h = 4 to h = 5, when the crowd meets the doors; and it was
the greatest possible, log 104, from h = 14 on. The table shows the same of our plans: J of networks
from mirror ascent's plan and from random weights (the best of three), of a table of actions, and
of the certified optimum over randomised policies; the gain of entropy from h = 3 to 4, 4 to 5 and
5 to 6; the step from which it stays within 0.02 of log 104.

The claims are about the default: its plan stalls from h = 4 to 5, is at its greatest entropy from
h = 14, give or take one, and the paper's J lies between those of our two plans with networks.

Run ``python benchmarks/noise.py``; ``--quick`` takes the default noise only.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import inspect
import math

import numpy as np
from _report import Report, parse_quick

import mufield
from mufield import MirrorAscent, MoveFlow, Network, plan
from mufield.environments.four_rooms import four_rooms
from mufield.paper.catalogue import PAPER

DEFAULT = float(inspect.signature(four_rooms).parameters["noise_std"].default)
NOISES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.5)
STALL = 4
"""Step from which the paper's entropy does not grow."""

RANDOM_STARTS = 3


def describe(report: Report, noise: float) -> None:
    """Plans with one noise."""
    system = mufield.make("four-rooms", noise_std=noise)
    flow, motion = system.reveal()
    moves = MoveFlow(flow, motion, system.problem.actions.points(9))
    best = MirrorAscent(sweeps=300).solve(moves)
    networks = plan(flow, motion, Network())
    random = plan(flow, motion, Network(), random=True, starts=RANDOM_STARTS)
    table = plan(flow, motion)
    entropy = np.asarray(system.evaluate(networks.profile).rewards)
    gains = np.diff(entropy)[STALL - 1 : STALL + 2]
    full = 1 + int(np.flatnonzero(entropy < PAPER.most_entropy - PAPER.near_maximum)[-1])
    values = [networks.value, random.value, table.value, best.value]
    report.row(
        f"{noise:g}: networks, from random weights, table, optimum",
        " / ".join(f"{float(value):.2f}" for value in values),
    )
    report.row(
        f"{noise:g}: gains of entropy around h = {STALL}, greatest from h",
        f"{', '.join(f'{gain:.2f}' for gain in gains)}; {full if full <= 20 else 'never'}",
    )
    if math.isclose(noise, DEFAULT):
        report.claim(f"{noise:g}: gain of entropy, h = 4 to 5", gains[1], 0.02, side="at most")
        late = abs(full - PAPER.full_entropy_at)
        report.claim(f"{noise:g}: greatest entropy, steps from h = 14", late, 1, side="at most")
        report.claim(f"{noise:g}: networks", float(networks.value), PAPER.known, side="at least")
        report.claim(
            f"{noise:g}: from random weights", float(random.value), PAPER.known, side="at most"
        )


def main() -> None:
    quick = parse_quick(__doc__)
    report = Report("noise")
    for noise in (DEFAULT,) if quick else NOISES:
        describe(report, noise)
    report.show()


if __name__ == "__main__":
    main()
