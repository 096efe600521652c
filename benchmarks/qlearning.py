"""How fast U2-MF-QL-FH learns here, and what it learns in the discrete four rooms.

The claims, in the order of the table, all with the paper's rates (omega_Q = 0.7, omega_nu = 0.05,
epsilon = 0.15):

1. Ten million episodes take at most two minutes on one core, for Standard (five moves) and for
   Extended (nine options).
2. Episodes are at least 200 times faster than the same algorithm written down plainly in NumPy.
   Beside it stands a second loop in Python, tuned by hand: the tables are lists, only the update
   of nu is NumPy's, and an episode's random numbers are drawn at once. Both say the same as the
   compiled one, number for number. The ratio to the second has a bar of its own, 40.
3. At the end Extended's greedy policy earns more than Standard's, and neither more than the upper
   bound of the best randomised policy, which mirror ascent brackets.

Standard earns exactly nothing: without noise, a population that starts in one cell and takes
single moves stays in one cell.

Run ``python benchmarks/qlearning.py``, or with ``--quick`` for less than a minute. ``--out DIR``
writes the curves there as JSON.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import math
import sys
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from _report import Report, options_of, run_sections, time_side_by_side

import mufield
from mufield import MirrorAscent, MoveFlow
from reproduction.q_learning import QLearning, QState
from reproduction.q_learning import compiled_loop as numba_loop
from reproduction.q_training import QResult, train

FORMULATIONS = {"standard": "discrete-rooms", "extended": "discrete-rooms-extended"}
TEN_MILLION, MINUTES = 10_000_000, 2.0
FASTER_THAN_NUMPY, FASTER_THAN_LISTS = 200.0, 40.0
EXTENDED_GAIN = 1.0
SAME_VALUE = 1e-9


@dataclass(frozen=True)
class Sizes:
    """What a run takes upon itself."""

    episodes: int = TEN_MILLION
    entries: int = 10
    rounds: int = 10
    bracket: float = 0.002


QUICK = Sizes(episodes=200_000, rounds=3, bracket=0.05)


# The same algorithm in Python.


def plain_numpy(learner: QLearning, state: QState, episodes: int) -> QState:
    """Written down as in print, with NumPy's arrays and functions."""
    tables, rates = learner.tables, learner.rates
    horizon, _, options = tables.shape
    q, visits, nu = state.q.copy(), state.visits.copy(), state.nu
    rng = np.random.default_rng(0)
    for k in range(state.episodes + 1, state.episodes + episodes + 1):
        rho_nu = (1 + k) ** -rates.omega_nu
        x = np.searchsorted(tables.starts, rng.random(), side="right")
        for h in range(horizon):
            nu[h] *= 1 - rho_nu
            nu[h, x] += rho_nu
            reward = -np.log(nu[h, x])
            chance = rng.random()
            if chance < rates.epsilon:
                o = int(chance / rates.epsilon * options)
            else:
                o = np.argmax(q[h, x])
            branch = np.searchsorted(tables.chances[x, o], rng.random(), side="right")
            y = tables.ends[x, o, branch]
            if h + 1 < horizon:
                ahead = np.max(q[h + 1, y])
            else:
                nu[horizon] *= 1 - rho_nu
                nu[horizon, y] += rho_nu
                ahead = -np.log(nu[horizon, y])
            rho_q = (1 + visits[h, x, o]) ** -rates.omega_q
            q[h, x, o] += rho_q * (reward + ahead - q[h, x, o])
            visits[h, x, o] += 1
            x = y
    return as_state(state, q, visits, nu, episodes)


def tuned_lists(learner: QLearning, state: QState, episodes: int) -> QState:
    """As fast as Python gets: lists, local names, NumPy only where it pays."""
    tables, rates = learner.tables, learner.rates
    horizon, _, options = tables.shape
    starts, chances, ends = tables.starts.tolist(), tables.chances.tolist(), tables.ends.tolist()
    q, visits, nu = state.q.tolist(), state.visits.tolist(), list(state.nu)
    epsilon, omega_q, log = rates.epsilon, rates.omega_q, math.log
    rng, draws = np.random.default_rng(0), 1 + 2 * horizon
    for k in range(state.episodes + 1, state.episodes + episodes + 1):
        rho_nu = (1 + k) ** -rates.omega_nu
        keep = 1 - rho_nu
        draw = iter(rng.random(draws).tolist()).__next__
        x = bisect_right(starts, draw())
        values = q[0][x]
        for h in range(horizon):
            row = nu[h]
            row *= keep
            row[x] += rho_nu
            reward = -log(row[x])
            chance = draw()
            o = int(chance / epsilon * options) if chance < epsilon else values.index(max(values))
            y = ends[x][o][bisect_right(chances[x][o], draw())]
            if h + 1 < horizon:
                following = q[h + 1][y]
                ahead = max(following)
            else:
                row = nu[horizon]
                row *= keep
                row[y] += rho_nu
                ahead = -log(row[y])
            counts = visits[h][x]
            values[o] += (1 + counts[o]) ** -omega_q * (reward + ahead - values[o])
            counts[o] += 1
            x, values = y, following
    return as_state(state, np.array(q), np.array(visits), np.array(nu), episodes)


def as_state(
    start: QState, q: np.ndarray, visits: np.ndarray, nu: np.ndarray, episodes: int
) -> QState:
    done = start.episodes + episodes
    return QState(q, visits, nu, 1.0, done, start.earned, start.generator)


def compiled_loop(learner: QLearning, state: QState, episodes: int) -> QState:
    """The package's loop, with the plain ones' random numbers."""
    q, visits, weights = state.q.copy(), state.visits.copy(), state.weights.copy()
    arrays = (q, visits, weights, np.random.default_rng(0))
    scale, _ = numba_loop()(
        learner.tables, learner.rates, *arrays, state.episodes, episodes, state.scale, 0.0
    )
    return as_state(state, q, visits, scale * weights, episodes)


Side = Callable[[QLearning, QState, int], QState]
SIDES: dict[str, tuple[Side, int]] = {
    "compiled": (compiled_loop, 50_000),
    "plain NumPy": (plain_numpy, 100),
    "lists, tuned": (tuned_lists, 500),
}
"""The sides with the episodes of a turn."""


def compare_with_python(report: Report, results: dict[str, QResult], rounds: int) -> None:
    """Times the loops side by side from the trained state, after a check that they agree."""
    ratios: dict[str, list[float]] = {"plain NumPy": [], "lists, tuned": []}
    for name, result in results.items():
        learner = QLearning(mufield.make(FORMULATIONS[name]))
        check_equal(learner, learner.init(0))
        check_equal(learner, result.state)

        def turn(side: Side, count: int, learner=learner, state=result.state):
            return lambda: side(learner, state, count)

        times = time_side_by_side(
            {label: turn(side, count) for label, (side, count) in SIDES.items()}, rounds=rounds
        )
        each = {label: times[label].best / count for label, (_, count) in SIDES.items()}
        report.row(
            f"{name}: episodes a second",
            ", ".join(f"{label} {1 / seconds:,.0f}" for label, seconds in each.items()),
        )
        for label in ratios:
            ratios[label].append(each[label] / each["compiled"])
    bars = {"plain NumPy": FASTER_THAN_NUMPY, "lists, tuned": FASTER_THAN_LISTS}
    for label, bar in bars.items():
        report.claim(
            f"times faster than Python ({label}), the smaller of both formulations",
            min(ratios[label]),
            bar,
            side="at least",
        )


def check_equal(learner: QLearning, state: QState) -> None:
    """Exits if the loops disagree by more than rounding."""
    ours = compiled_loop(learner, state, 100)
    for name, (side, _) in SIDES.items():
        other = side(learner, state, 100)
        same = np.array_equal(ours.visits, other.visits)
        gap = max(float(np.abs(ours.q - other.q).max()), float(np.abs(ours.nu - other.nu).max()))
        if not (same and gap < SAME_VALUE):
            sys.exit(f"the compiled loop and {name} disagree: same choices {same}, {gap:.2g}")


# Training.


def train_both(report: Report, sizes: Sizes, save: Path | None) -> dict[str, QResult]:
    """Trains one after the other, so that each has a core for itself."""
    results = {}
    every = sizes.episodes // sizes.entries
    for name, system in FORMULATIONS.items():
        results[name] = train(
            mufield.make(system),
            episodes=sizes.episodes,
            evaluate_every=every,
        )
        curve = results[name].curve
        show_curve(report, name, results[name])
        done = min(sizes.episodes, TEN_MILLION)
        seconds = float(np.interp(done, curve.episodes, curve.seconds))
        scaled = "" if done == TEN_MILLION else f", scaled up from {done:,}"
        report.claim(
            f"{name}: minutes for ten million episodes{scaled}",
            seconds / 60 * TEN_MILLION / done,
            MINUTES,
            side="at most",
        )
        if save is not None:
            columns = {key: values.tolist() for key, values in vars(curve).items()}
            (save / f"{name}.json").write_text(json.dumps(columns, indent=2) + "\n")
    return results


def show_curve(report: Report, name: str, result: QResult) -> None:
    curve = result.curve
    report.row(
        f"{name}: {curve.episodes[-1]:,} episodes, an evaluation every {curve.episodes[0]:,}",
        f"{curve.seconds[-1]:.1f} s",
    )
    for column in ("training", "evaluation"):
        values = getattr(curve, column)[-10:]
        report.row(f"  {column} reward", ", ".join(f"{value:.2f}" for value in values))


def bound_both(report: Report, results: dict[str, QResult], bracket: float) -> None:
    """The final policies, between each other and below the optimum."""
    with jax.enable_x64(True):
        flow, motion = mufield.make("discrete-rooms").reveal()
        moves = MoveFlow(flow, motion, flow.problem.actions.moves)
        best = MirrorAscent(sweeps=4000, gap=bracket).solve(moves)
        lower, upper = float(best.value), float(best.upper)
    report.row("best randomised policy", f"{lower:.4f} <= J* <= {upper:.4f}")
    value = {name: float(result.curve.evaluation[-1]) for name, result in results.items()}
    report.claim(
        "evaluation reward at the end, extended above standard",
        value["extended"] - value["standard"],
        EXTENDED_GAIN,
        side="at least",
    )
    for name in results:
        report.claim(f"evaluation reward at the end, {name}", value[name], upper, side="at most")


def learn(report: Report, options: argparse.Namespace) -> None:
    """Trains, compares with Python, and bounds what was learned."""
    sizes = QUICK if options.quick else Sizes()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    results = train_both(report, sizes, options.out)
    compare_with_python(report, results, sizes.rounds)
    bound_both(report, results, sizes.bracket)


def main() -> None:
    run_sections("qlearning", options_of(__doc__), {"learn": learn})


if __name__ == "__main__":
    main()
