"""How fast the mean-field flow and its gradient are, up to millions of cells.

All about value-and-gradient of J with respect to a table of actions, one for every cell and step.

- ``plain``: in the four rooms (H = 20, float32) the flow is at least 20 times faster than the plain
  way to write the same formula: for every source cell the mass of every target cell, product of the
  axes' differences of cumulative distribution functions, added up where it lands by
  ``zeros(n).at[landing].add(mass)``. The values are equal. The reference follows its own lines
  through the walls with `mufield.space.walls.trace`, so it also checks the flow's tables. It is
  written down three times:

  - *dense*: whole cells as targets, against the flow with ``subcells=1``. Each pair of source
    and target has a row of possible landings and their shares, zero for most.
  - *fine*: the target cells cut into 8 x 8 subcells, against the flow as it is by default.
  - *lean*: as *dense*, but second and further landings are a short list of their own. That is no
    longer plain; its ratio is shown, not claimed.

  The claim's value is the smaller of the ratios to *dense* and *fine*, of work on one core. With
  ``PJRT_NPROC=2`` the scatter computes on both of two cores, the flow of so small a map does
  not, and the ratio is about 14.
- ``growth``: the cost is linear in the number of cells: the time for each cell on a map of
  352 x 352 cells is at most twice that on a map of 44 x 44 cells.
- ``stencil``: four rooms of 1,000 x 1,000 cells, ten steps; open cells by a stencil, against tables
  for all cells (``WindowSettings(stencil=False)``). At least 4 times faster, at most half the peak
  memory, built at least 5 times faster, the same J. Each side is a process of its own, which is
  told to compute in turn.
- ``largest``: a map of 4,000 x 2,500 cells: five steps within 20 GB.

Run ``python benchmarks/flow.py [section ...]``; ``--quick`` has fewer rounds and 250 x 250 cells
for the stencil.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("PJRT_NPROC", "1")  # JAX's threads

import argparse
import itertools
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Report, Timing, duration, options_of, run_sections, time_side_by_side

import mufield
from mufield import Flow, Grid, Problem, Profile, TablePolicy
from mufield.environments.four_rooms import avoid_crowds, walk
from mufield.flow import WindowSettings
from mufield.space.walls import trace

FASTER_THAN_DENSE = 20.0
COST_GROWTH = 2.0
SAME_VALUE = 1e-5
SAME_GRADIENT = 1e-4
NOISE_STD = 0.25
LINES_PER_AXIS = 2  # Of a target; the flow's tables are sampled as finely.
FAR = 1e6
SMALL, LARGE = 44, 352
STENCIL_FASTER, LESS_MEMORY, BUILT_FASTER = 4.0, 0.5, 5.0
MOST_GIGABYTES = 20.0
LARGE_MAP_HORIZON = 5

Objective = Callable[[jax.Array], tuple[jax.Array, jax.Array]]
"""Value and gradient with respect to the table of actions before their squashing."""


def our_objective(flow: Flow) -> Objective:
    """Value and gradient by the package."""

    def value(raw: jax.Array) -> jax.Array:
        policy = TablePolicy.deterministic(jnp.tanh(raw), flow.problem.grid)
        return flow.value(Profile.stacked(policy, flow.problem.horizon), walk)

    return jax.jit(jax.value_and_grad(value))


# The plain version of the same formula.


class Landings(NamedTuple):
    """Where mass lands that leaves a source cell towards a target.

    Attributes:
        cell: Possible landing cells of each pair of a source and a target.
        share: Their shares of the pair's mass; zeros fill up.
        edges: Edges of the targets on each axis, in units of cells.
    """

    cell: np.ndarray
    share: np.ndarray
    edges: np.ndarray


def follow_lines(grid: Grid, reach: int, subcells: int) -> Landings:
    """Follows lines from every free cell to every target of the box and a margin around it."""
    width = grid.shape[0]
    ticks = np.arange(-reach * subcells, (width + reach) * subcells + 1) / subcells
    lower = np.stack(np.meshgrid(ticks[:-1], ticks[:-1], indexing="ij"), axis=-1).reshape(-1, 2)
    spread = (np.arange(LINES_PER_AXIS) + 0.5) / (LINES_PER_AXIS * subcells)
    points = np.array(list(itertools.product(spread, spread)))
    aims = jnp.asarray((lower[:, None] + points).reshape(-1, 2))
    index = jnp.asarray(grid.index_table)

    # A line through a corner counts half for each order of crossing, like any other two lines.
    orders = jnp.asarray(list(itertools.permutations(range(2))), dtype=jnp.int32)

    @jax.jit
    def ends(start: jax.Array) -> jax.Array:
        def end(aim: jax.Array, order: jax.Array) -> jax.Array:
            return index[tuple(trace(grid, start, aim, order).cell)]

        for_orders = jax.vmap(end, in_axes=(None, 0))
        return jax.vmap(for_orders, in_axes=(0, None))(aims, orders).reshape(len(lower), -1)

    landed = np.stack([np.asarray(ends(jnp.asarray(c + 0.5))) for c in grid.free_cells])
    cells, shares = [], []
    left = np.ones(landed.shape, dtype=bool)
    while left.any():
        first = np.take_along_axis(landed, left.argmax(axis=-1)[..., None], axis=-1)
        same = (landed == first) & left
        cells.append(first[..., 0])
        shares.append(same.mean(axis=-1))
        left &= ~same
    ticks[0], ticks[-1] = -FAR, FAR  # The outermost targets catch the tails.
    return Landings(np.stack(cells, axis=-1), np.stack(shares, axis=-1), ticks)


def add_up_dense(landings: Landings, n: int) -> Callable[[jax.Array], jax.Array]:
    """Adds all pairs' shares up, also those that are zero."""
    cell = jnp.asarray(landings.cell, dtype=jnp.int32)
    share = jnp.asarray(landings.share, dtype=jnp.float32)
    return lambda mass: jnp.zeros(n).at[cell].add(mass[..., None] * share)


def add_up_lean(landings: Landings, n: int) -> Callable[[jax.Array], jax.Array]:
    """Adds up the first landings of all pairs, then a short list of further ones."""
    cell = jnp.asarray(landings.cell[..., 0], dtype=jnp.int32)
    share = jnp.asarray(landings.share[..., 0], dtype=jnp.float32)
    further = np.nonzero(landings.share[..., 1:])
    source, target = jnp.asarray(further[0]), jnp.asarray(further[1])
    more_cell = jnp.asarray(landings.cell[..., 1:][further], dtype=jnp.int32)
    more_share = jnp.asarray(landings.share[..., 1:][further], dtype=jnp.float32)

    def add_up(mass: jax.Array) -> jax.Array:
        landed = jnp.zeros(n).at[cell].add(mass * share)
        return landed.at[more_cell].add(mass[source, target] * more_share)

    return add_up


def plain_objective(
    problem: Problem, landings: Landings, add_up: Callable[[jax.Array], jax.Array]
) -> Objective:
    """Value and gradient by all pairs of cells and a scatter-add."""
    n = problem.grid.n_cells
    centres = jnp.asarray(problem.grid.centres, dtype=jnp.float32)
    edges = jnp.asarray(landings.edges, dtype=jnp.float32)

    def slabs(aim: jax.Array) -> jax.Array:
        distance = (edges - aim[:, None]) / (NOISE_STD * math.sqrt(2.0))
        return jnp.diff(0.5 * (1.0 + jax.lax.erf(distance)), axis=1)

    def entropy(mu: jax.Array) -> jax.Array:
        return -jnp.sum(mu * jnp.log(jnp.maximum(mu, 1e-25)))

    def step(mu: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
        aim = centres + actions
        mass = mu[:, None, None] * slabs(aim[:, 0])[:, :, None] * slabs(aim[:, 1])[:, None, :]
        return add_up(mass.reshape(n, -1)), entropy(mu)

    def value(raw: jax.Array) -> jax.Array:
        end, rewards = jax.lax.scan(step, problem.initial, jnp.tanh(raw))
        return jnp.sum(rewards) + entropy(end)

    return jax.jit(jax.value_and_grad(value))


# Against the plain version.


def plain(report: Report, options: argparse.Namespace) -> None:
    """Times the flow against the plain version, after a check that both say the same."""
    problem = mufield.make("four-rooms").problem
    n = problem.grid.n_cells
    raw = jax.random.normal(jax.random.key(0), (problem.horizon, n, 2))
    coarse, fine = Flow(problem, settings=WindowSettings(subcells=1)), Flow(problem)
    ours_coarse, ours_fine = our_objective(coarse), our_objective(fine)
    ratios = []

    reach = coarse.windows.landing.reach[0]
    cells = follow_lines(problem.grid, reach, 1)
    rounds = 20 if options.quick else 60
    references = {
        "dense": plain_objective(problem, cells, add_up_dense(cells, n)),
        "lean": plain_objective(problem, cells, add_up_lean(cells, n)),
    }
    sides = {"flow": ours_coarse, **references, "default": ours_fine}
    times = time_objectives(sides, raw, rounds)
    report.row("flow, subcells=1", str(times["flow"]))
    for name, objective in references.items():
        ratio = times[name].best / times["flow"].best
        if name == "dense":
            ratios.append(ratio)
        report.row(f"plain, whole cells, {name}", f"{times[name]}, {ratio:.1f} x")
        check_equal(report, name, ours_coarse, objective, raw)

    cut = fine.windows.landing.split_shares.shape[-1]
    subcells = follow_lines(problem.grid, reach, cut)
    reference = plain_objective(problem, subcells, add_up_lean(subcells, n))
    sides = {"flow": ours_fine, "fine": reference}
    pair = time_objectives(sides, raw, 3 if options.quick else 10)
    ratios.append(pair["fine"].best / pair["flow"].best)
    report.row(f"flow, default (subcells={cut})", str(pair["flow"]))
    report.row("plain, subcells, fine", f"{pair['fine']}, {ratios[-1]:.1f} x")
    check_equal(report, "fine", ours_fine, reference, raw)
    # No claim: the default says more about walls' ends than whole cells can.
    report.row(
        "default flow against plain whole cells (lean; other values)",
        f"{times['lean'].best / times['default'].best:.1f} x",
    )
    report.claim(
        "four rooms, one core: value-and-gradient, times faster than the plain dense scatter-add",
        min(ratios),
        FASTER_THAN_DENSE,
        side="at least",
    )


def time_objectives(sides: dict[str, Objective], raw: jax.Array, rounds: int) -> dict[str, Timing]:
    """Times value and gradient, side by side."""

    def wait(objective: Objective) -> Callable[[], object]:
        return lambda: jax.block_until_ready(objective(raw))

    return time_side_by_side({name: wait(side) for name, side in sides.items()}, rounds=rounds)


def check_equal(
    report: Report, name: str, ours: Objective, reference: Objective, raw: jax.Array
) -> None:
    """Reports how far values and gradients are apart; exits if that is more than rounding."""
    (value, gradient), (expected, slope) = ours(raw), reference(raw)
    value_gap = abs(float(value) / float(expected) - 1.0)
    gradient_gap = float(jnp.linalg.norm(gradient - slope) / jnp.linalg.norm(slope))
    report.row(
        f"  {name}: relative difference of value, of gradient",
        f"{value_gap:.1e}, {gradient_gap:.1e}",
    )
    if not (value_gap < SAME_VALUE and gradient_gap < SAME_GRADIENT):
        sys.exit(f"the flow and its plain version ({name}) disagree: {value_gap}, {gradient_gap}")


# Larger maps.


def scaled_rooms(shape: tuple[int, int], horizon: int) -> Problem:
    """Four rooms of unit cells, doors a tenth of the walls wide."""
    walls = np.zeros(shape, dtype=bool)
    middle = [n // 2 for n in shape]
    walls[middle[0], :] = walls[:, middle[1]] = True
    for part in (1, 3):
        across, along = (slice(part * n // 4, part * n // 4 + max(1, n // 10)) for n in shape)
        walls[middle[0], along] = walls[across, middle[1]] = False
    grid = Grid.box(0.0, np.array(shape, dtype=float), shape, walls=walls)
    return Problem(
        space=grid,
        actions=mufield.Box(-1.0, 1.0, dim=2),
        reward=avoid_crowds,
        horizon=horizon,
        initial=mufield.uniform(grid),
        noise=NOISE_STD,
        max_move=1.0,
        pay_end=True,
    )


def growth(report: Report, options: argparse.Namespace) -> None:
    """Times one cell's share of value-and-gradient on a small and a large map."""
    sides, count = {}, {}
    for size in (SMALL, LARGE):
        problem = scaled_rooms((size, size), LARGE_MAP_HORIZON)
        count[size] = problem.grid.n_cells
        began = time.perf_counter()
        flow = Flow(problem)
        built = time.perf_counter() - began
        raw = jax.random.normal(jax.random.key(1), (problem.horizon, problem.grid.n_cells, 2))
        objective = our_objective(flow)
        sides[f"{size}"] = lambda o=objective, r=raw: jax.block_until_ready(o(r))
        report.row(f"{size} x {size} map: tables built in", duration(built))
    times = time_side_by_side(sides, rounds=5 if options.quick else 15)
    each = {}
    for size in (SMALL, LARGE):
        timing = times[f"{size}"]
        each[size] = timing.best / (count[size] * LARGE_MAP_HORIZON)
        report.row(
            f"{size} x {size} map: {count[size]} free cells, H = {LARGE_MAP_HORIZON}",
            f"{timing}, {each[size] * 1e9:.0f} ns for each cell and step",
        )
    report.claim(
        f"time for each cell at {LARGE} x {LARGE} over that at {SMALL} x {SMALL}",
        each[LARGE] / each[SMALL],
        COST_GROWTH,
        side="at most",
    )


def work(kind: str, cells: str, horizon: int) -> None:
    """A worker: builds a flow, then computes each time a line comes in; answers in JSON."""
    across, along = (int(n) for n in cells.split("x"))
    problem = scaled_rooms((across, along), horizon)
    began = time.perf_counter()
    flow = Flow(problem, settings=WindowSettings(stencil=kind == "stencil"))
    jax.block_until_ready([x for x in jax.tree.leaves(flow) if isinstance(x, jax.Array)])
    built = time.perf_counter() - began

    def value(raw: jax.Array, flow: Flow) -> jax.Array:
        policy = TablePolicy.deterministic(jnp.tanh(raw))
        return flow.value(Profile.stacked(policy, horizon), walk)

    # The flow is an argument: its tables are too large for constants of a program.
    objective = eqx.filter_jit(jax.value_and_grad(value))
    raw = jax.random.normal(jax.random.key(1), (horizon, problem.grid.n_cells, 2))
    first, _ = jax.block_until_ready(objective(raw, flow))
    tell(built=built, value=float(first))
    for _ in sys.stdin:
        began = time.perf_counter()
        jax.block_until_ready(objective(raw, flow))
        seconds = time.perf_counter() - began
        tell(seconds=seconds, gigabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


def tell(**figures: float) -> None:
    """One line for whoever started this worker."""
    print(json.dumps(figures), flush=True)


class Side:
    """A process that computes the same on demand."""

    def __init__(self, kind: str, cells: str, horizon: int):
        """Starts it, and waits until it is ready.

        Args:
            kind: "tables" or "stencil".
            cells: Shape of the map, as "1000x1000".
            horizon: Number of steps.
        """
        command = [sys.executable, __file__, "--worker", kind, "--map", cells]
        self.process = subprocess.Popen(
            [*command, "--horizon", str(horizon)],
            env=os.environ | {"PJRT_NPROC": str(os.cpu_count())},  # all cores for both sides
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ready = self._answer()
        self.seconds: list[float] = []
        self.gigabytes = 0.0

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a worker ended before it answered; its error stands above")
        found: dict[str, float] = json.loads(line)
        return found

    def run(self) -> None:
        """Computes once."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self._answer()
        self.seconds.append(answer["seconds"])
        self.gigabytes = answer["gigabytes"]

    @property
    def best(self) -> float:
        """Seconds of the fastest round."""
        return min(self.seconds)

    def end(self) -> None:
        """Ends the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def in_turn(sides: list[Side], rounds: int) -> None:
    """Lets sides compute in turns, so that a slow spell of the machine meets all of them."""
    for _ in range(rounds):
        for side in sides:
            side.run()
    for side in sides:
        side.end()


def stencil(report: Report, options: argparse.Namespace) -> None:
    """The stencil against tables for all cells."""
    cells, horizon, rounds = ("250x250", 4, 2) if options.quick else ("1000x1000", 10, 3)
    sides = {kind: Side(kind, cells, horizon) for kind in ("tables", "stencil")}
    in_turn(list(sides.values()), rounds)
    tables, ours = sides["tables"], sides["stencil"]
    count = math.prod(int(n) for n in cells.split("x")) * horizon
    for name, side in sides.items():
        report.row(
            f"{cells} cells, {horizon} steps, by {name}",
            f"built in {duration(side.ready['built'])}, value and gradient {duration(side.best)} "
            f"({side.best / count * 1e9:.0f} ns a cell and step), peak {side.gigabytes:.2f} GB",
        )
    report.claim(
        "value and gradient: times faster than by tables",
        tables.best / ours.best,
        STENCIL_FASTER,
        side="at least",
    )
    memory = ours.gigabytes / tables.gigabytes
    built = tables.ready["built"] / ours.ready["built"]
    if options.quick:  # so small a map takes less memory and time than JAX itself
        report.row("peak memory as a share, built times faster", f"{memory:.2f}, {built:.1f}")
    else:
        name = "peak memory, as a share of that by tables"
        report.claim(name, memory, LESS_MEMORY, side="at most")
        report.claim("built: times faster than tables", built, BUILT_FASTER, side="at least")
    report.claim(
        "relative difference of J",
        abs(ours.ready["value"] / tables.ready["value"] - 1),
        SAME_VALUE,
        side="at most",
    )


def largest(report: Report, options: argparse.Namespace) -> None:
    """Ten million cells."""
    cells, horizon = "4000x2500", 5
    side = Side("stencil", cells, horizon)
    in_turn([side], 1)
    report.row(
        f"{cells} cells, {horizon} steps",
        f"built in {duration(side.ready['built'])}, value and gradient {duration(side.best)}",
    )
    report.claim(
        f"{cells} cells, {horizon} steps: peak memory in GB",
        side.gigabytes,
        MOST_GIGABYTES,
        side="at most",
    )


def main() -> None:
    """Runs the sections, or is a worker."""
    parser = options_of(__doc__)
    for name in ("worker", "map"):
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    parser.add_argument("--horizon", type=int, default=1, help=argparse.SUPPRESS)
    given, _ = parser.parse_known_args()
    if given.worker:
        work(given.worker, given.map, given.horizon)
        return
    sections = {"plain": plain, "growth": growth, "stencil": stencil, "largest": largest}
    run_sections("flow", parser, sections, quick=("plain", "growth", "stencil"))


if __name__ == "__main__":
    main()
