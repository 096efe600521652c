"""How fast N agents are simulated, in how much memory, and how they approach the limit.

1. Speed, in the four rooms (H = 20, float32) under a randomised per-cell policy over 81 moves that
   mirror ascent found. One agent and step of `FiniteSystem.evaluate` against

   - *loop*: NumPy draws all agents' actions and noise at each step; a loop in Python then takes
     each agent through the walls. Timed with fewer agents.
   - *vectorised*: NumPy for all agents at once: actions by `searchsorted` in one table of
     cumulative weights, the wall rule on the agents that are still on their way, in blocks that
     fit the caches.

   Ours moves blocks of agents in a thread for each core, NumPy's versions use one core; pin the
   process to one core (``taskset -c 0``) to compare on equal terms.

   Both follow the rule of `mufield.move`: axes slide along walls, a hit exactly on a corner stops
   both. The benchmark checks that on the same moves before it times anything.
2. Memory: the most that `evaluate` adds to the process, for each of the agents. Programs are
   compiled before.
3. The gap: the root mean squared difference, over episodes, of J of N agents and J of the mean
   field. Claimed for the swarm under its closed-form policy, whose cells are small beside the
   noise, with N = 100 to 1,000,000 agents in continuous space: a slope of -1/2 in logarithms. The
   four rooms show what else there is, not claimed:

   - The entropy of a histogram is biased by about cells / 2N at each step. The bias is more than
     the spread for all but the largest N, so the gap falls nearly like 1 / N; the standard
     deviation of J and the distance of the distributions fall like 1 / sqrt(N).
   - Cells are large beside the noise there. Agents that are not centred have another limit than
     the flow, so that the gap stops falling; measured from their own limit, which the largest
     population estimates, it goes on.

Run ``python benchmarks/population.py``; ``--quick`` takes fewer agents and leaves the rooms' gaps
out; ``--pictures DIR`` draws the gaps.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from _report import Report, duration, time_side_by_side

import mufield
from mufield import Grid, MirrorAscent, MoveFlow, Profile, SimulatedSystem
from mufield.environments.swarm import closed_form_policy
from mufield.finite.gap import PopulationGap, PowerLaw, fit_power, population_gap
from mufield.finite.system import BLOCK, FiniteSystem

FASTER_THAN_LOOP = 30.0
FASTER_THAN_NUMPY = 4.0
BYTES_PER_AGENT = 200.0
STEEPEST, FLATTEST = -0.6, -0.4
MOVES_PER_AXIS = 9
NUMPY_BLOCK = 1 << 18
SAME_PLACE = 1e-4


def plan(system: SimulatedSystem, sweeps: int) -> tuple[Profile, np.ndarray, np.ndarray]:
    """A randomised per-cell policy, with its moves and weights."""
    flow, motion = system.reveal()
    box = system.problem.actions
    actions = box.points(MOVES_PER_AXIS)
    moves = MoveFlow(flow, motion, actions)
    weights = MirrorAscent(sweeps=sweeps).solve(moves).weights
    return moves.profile(weights), np.asarray(actions), np.asarray(weights)


# The four rooms in NumPy.


class Agents(NamedTuple):
    """Where agents are, on both axes and by the number of their free cell."""

    x: np.ndarray
    y: np.ndarray
    index: np.ndarray


class NumpyRooms:
    """Agents on unit cells with walls, in float32, written for NumPy.

    The map has a margin of walls, so that borders need no look of their own, and cells have one
    number, so that a look-up is one gather.
    """

    def __init__(self, grid: Grid, actions: np.ndarray, weights: np.ndarray, std: float):
        self.cells = grid.n_cells
        self.stride = grid.shape[1] + 2
        self.walls = np.pad(grid.walls, 1, constant_values=True).reshape(-1)
        self.index = np.pad(grid.index_table, 1, constant_values=-1).reshape(-1).astype(np.intp)
        # One increasing table for all cells and moves: row k runs from k to k + 1.
        sums = np.cumsum(weights.astype(float), axis=-1)
        rows = sums / sums[..., -1:] + np.arange(self.cells)[:, None]
        self.cumulative = rows.reshape(len(weights), -1)
        self.actions = np.tile(actions.astype(np.float32), (self.cells, 1)).T.copy()
        self.std = np.float32(std)
        # Stopped agents rest a rounding error in front of the wall.
        self.margin = np.float32(8 * max(grid.shape) * np.finfo(np.float32).eps)
        self.rng = np.random.default_rng(0)

    def run(self, agents: int, walk: Callable[..., Agents]) -> float:
        """J of one episode from the lower left corner, with one of the versions of the walls."""
        blocks = [min(NUMPY_BLOCK, agents - i) for i in range(0, agents, NUMPY_BLOCK)]
        states = [
            Agents(*self.rng.random((2, n), dtype=np.float32), np.zeros(n, dtype=np.intp))
            for n in blocks
        ]
        value = 0.0
        for step in range(len(self.cumulative) + 1):
            counts = sum(np.bincount(state.index, minlength=self.cells) for state in states)
            mu = counts / agents
            value -= float(mu @ np.log(np.maximum(mu, 1e-25)))
            if step < len(self.cumulative):
                states = [walk(state, *self.aims(step, state)) for state in states]
        return value

    def aims(self, step: int, state: Agents) -> list[np.ndarray]:
        """Where agents want to go, on both axes."""
        chance = self.rng.random(len(state.x))
        chance += state.index
        choice = np.searchsorted(self.cumulative[step], chance, side="right")
        np.minimum(choice, self.actions.shape[1] - 1, out=choice)
        aims = []
        for place, actions in ((state.x, self.actions[0]), (state.y, self.actions[1])):
            aim = self.rng.standard_normal(len(place), dtype=np.float32)
            aim *= self.std
            aim += place
            aim += actions.take(choice)
            aims.append(aim)
        return aims

    def walk_one_by_one(self, state: Agents, *aims: np.ndarray) -> Agents:
        """The wall rule in a loop over agents."""
        ends = [aim.copy() for aim in aims]
        index = np.empty(len(state.x), dtype=np.intp)
        starts = zip(state.x.tolist(), state.y.tolist(), strict=True)
        for agent, (here, there) in enumerate(
            zip(starts, zip(*(aim.tolist() for aim in aims), strict=True), strict=True)
        ):
            at, goal = [math.floor(x) for x in here], [math.floor(x) for x in there]
            while at != goal:
                times = [
                    math.inf
                    if at[a] == goal[a]
                    else (at[a] + (goal[a] > at[a]) - here[a]) / (there[a] - here[a])
                    for a in (0, 1)
                ]
                now = [a for a in (0, 1) if times[a] == min(times)]
                steps = [(1 if goal[a] > at[a] else -1) if a in now else 0 for a in (0, 1)]
                hit = [a for a in now if self.wall(at, steps[0] * (a == 0), steps[1] * (a == 1))]
                if len(now) == 2 and not hit and self.wall(at, *steps):
                    hit = now
                for a in now:
                    if a in hit:
                        goal[a] = at[a]
                        ends[a][agent] = at[a] + (1 - self.margin if steps[a] > 0 else self.margin)
                    else:
                        at[a] += steps[a]
            index[agent] = self.index[(at[0] + 1) * self.stride + at[1] + 1]
        return Agents(*ends, index)

    def wall(self, at: list[int], right: int, up: int) -> bool:
        """Whether a neighbour is a wall."""
        return bool(self.walls[(at[0] + right + 1) * self.stride + at[1] + up + 1])

    def walk(self, state: Agents, end_x: np.ndarray, end_y: np.ndarray) -> Agents:
        """The wall rule for all agents at once: in each round those on their way cross a line."""
        cx, cy, gx, gy = (
            np.floor(place).astype(np.int32) for place in (state.x, state.y, end_x, end_y)
        )
        cell = ((cx + 1) * self.stride + (cy + 1)).astype(np.intp)
        live = np.flatnonzero((cx != gx) | (cy != gy))
        x, y, ax, ay, cx, cy, gx, gy, c = (
            v.take(live) for v in (state.x, state.y, end_x, end_y, cx, cy, gx, gy, cell)
        )
        sx, sy = np.sign(gx - cx), np.sign(gy - cy)
        with np.errstate(divide="ignore"):
            rx, ry = 1 / (ax - x), 1 / (ay - y)
        while len(live):
            tx = np.where(cx != gx, (cx + (sx > 0) - x) * rx, np.inf)
            ty = np.where(cy != gy, (cy + (sy > 0) - y) * ry, np.inf)
            now_x, now_y = tx <= ty, ty <= tx
            aside = sx * self.stride
            hit_x, hit_y = now_x & self.walls.take(c + aside), now_y & self.walls.take(c + sy)
            both = np.flatnonzero(now_x & now_y)
            both = both[~hit_x[both] & ~hit_y[both]]
            corner = both[self.walls[c[both] + aside[both] + sy[both]]]
            hit_x[corner] = hit_y[corner] = True
            step_x, step_y = sx * (now_x & ~hit_x), sy * (now_y & ~hit_y)
            cx += step_x
            cy += step_y
            c += step_x * self.stride + step_y
            for hit, goal, at, sign, end in (
                (hit_x, gx, cx, sx, end_x),
                (hit_y, gy, cy, sy, end_y),
            ):
                k = np.flatnonzero(hit)
                goal[k] = at[k]
                end[live[k]] = at[k] + np.where(sign[k] > 0, 1 - self.margin, self.margin)
            going = (cx != gx) | (cy != gy)
            done, keep = np.flatnonzero(~going), np.flatnonzero(going)
            cell[live.take(done)] = c.take(done)
            live, x, y, rx, ry, cx, cy, gx, gy, sx, sy, c = (
                v.take(keep) for v in (live, x, y, rx, ry, cx, cy, gx, gy, sx, sy, c)
            )
        return Agents(end_x, end_y, self.index.take(cell))


def check_walls(rooms: NumpyRooms, grid: Grid) -> None:
    """Exits if the NumPy versions do not bring agents to where `mufield.move` does."""
    key, other = jax.random.split(jax.random.key(0))
    start = mufield.sample(grid, mufield.uniform(grid), key, 20_000)
    aim = start + 1.2 * jax.random.normal(other, start.shape)
    moved = jax.jit(jax.vmap(lambda s, a: mufield.move(grid, s, a)))(start, aim)
    for walk in (rooms.walk, rooms.walk_one_by_one):
        here = Agents(*np.asarray(start).T, np.asarray(grid.index_of(start)))
        there = walk(here, *np.array(aim).T.copy())
        # By rounding, a line may pass a corner on another side.
        off = np.abs(np.stack(there[:2], axis=1) - np.asarray(moved.position)).max(axis=1)
        wrong = (off > SAME_PLACE) | (there.index != np.asarray(moved.index))
        if wrong.mean() > 1e-3:
            sys.exit(f"{walk.__name__} and mufield.move differ in {wrong.mean():.2%} of the moves")


# The claims.


def compare_speed(report: Report, quick: bool) -> tuple[SimulatedSystem, Profile]:
    """Times an episode of ours and of both NumPy versions."""
    system = mufield.make("four-rooms")
    grid, horizon = system.problem.grid, system.problem.horizon
    policy, actions, weights = plan(system, 20 if quick else 100)
    rooms = NumpyRooms(grid, actions, weights, system.problem.noise.std[0])
    check_walls(rooms, grid)
    agents, few = (2 * BLOCK, 500) if quick else (1_000_000, 2000)
    finite = FiniteSystem.of(system, agents)
    values: dict[str, list[float]] = {"ours": [], "vectorised": []}

    def ours() -> None:
        values["ours"].append(float(finite.evaluate(policy, jax.random.key(0)).values[0]))

    def vectorised() -> None:
        values["vectorised"].append(rooms.run(agents, rooms.walk))

    def loop() -> None:
        rooms.run(few, rooms.walk_one_by_one)

    times = time_side_by_side({"ours": ours, "vectorised": vectorised}, rounds=2 if quick else 7)
    times |= time_side_by_side({"loop": loop}, rounds=3)
    each = {
        name: timing.best / (horizon * (few if name == "loop" else agents))
        for name, timing in times.items()
    }
    for name, seconds in each.items():
        count = few if name == "loop" else agents
        report.row(f"{name}: {count:,} agents, {horizon} steps", duration(times[name].best))
        report.row(f"{name}: one agent and step", f"{seconds * 1e9:.0f} ns")
    found = {name: np.mean(each_value) for name, each_value in values.items()}
    report.row("J of ours, vectorised", f"{found['ours']:.3f}, {found['vectorised']:.3f}")
    if abs(found["ours"] - found["vectorised"]) > 0.1:
        sys.exit(f"ours and NumPy's agents earn different amounts: {found}")
    report.claim(
        "times faster than a loop over agents",
        each["loop"] / each["ours"],
        FASTER_THAN_LOOP,
        side="at least",
    )
    report.claim(
        "times faster than vectorised NumPy",
        each["vectorised"] / each["ours"],
        FASTER_THAN_NUMPY,
        side="at least",
    )
    return system, policy


def compare_memory(report: Report, agents: int) -> None:
    """Has a process of its own measure what an evaluation takes."""
    command = [sys.executable, __file__, "--measure-memory", str(agents)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    extra = int(found.split()[-1])
    report.row(f"memory that {agents:,} agents add", f"{extra / 2**20:.0f} MiB")
    report.claim("bytes for each agent", extra / agents, BYTES_PER_AGENT, side="at most")


def measure_memory(agents: int) -> None:
    """Prints by how many bytes an evaluation raises the process's memory at most."""
    system = mufield.make("four-rooms")
    policy = mufield.random_policy(system.problem)
    # A full block and a last one of the same size: then all programs are compiled.
    few = min(agents, BLOCK + agents % BLOCK)
    FiniteSystem.of(system, few).evaluate(policy, jax.random.key(0))
    finite = FiniteSystem.of(system, agents)
    before, most, done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.002):
            most = max(most, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    finite.evaluate(policy, jax.random.key(1))
    done.set()
    watcher.join()
    print(most - before)


def resident() -> int:
    """Bytes of the process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def compare_gaps(
    report: Report, system: SimulatedSystem, policy: Profile, quick: bool
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Measures the gap of the swarm and, if there is time, that of the rooms."""
    sizes = decades(100, 100_000 if quick else 1_000_000, 1 if quick else 2)
    swarm = mufield.make("swarm", horizon=20, duration=0.1)
    gap = population_gap(swarm, closed_form_policy, sizes, 16 if quick else 32, jax.random.key(0))
    show_gap(report, "swarm", gap)
    name = f"slope of the swarm's gap, {sizes[0]:,} to {sizes[-1]:,} agents"
    report.claim(name, gap.law.slope, STEEPEST, side="at least")
    report.claim(name, gap.law.slope, FLATTEST, side="at most")
    curves = {"swarm: gap": (gap.sizes, gap.gaps)}
    if quick:
        return curves
    sizes = decades(100, 1_000_000, 1)
    for centred, name in ((True, "rooms, centred"), (False, "rooms")):
        key = jax.random.key(1)
        found = population_gap(system, policy, sizes, 16, key, centred=centred)
        show_gap(report, name, found)
        curves[f"{name}: gap"] = (found.sizes, found.gaps)
        if centred:
            curves[f"{name}: spread of J"] = (found.sizes, found.stds)
        else:
            own = np.abs(found.means - found.means[-1])[:-1]
            law = fit_power(found.sizes[:-1], np.hypot(own, found.stds[:-1]))
            report.row(f"{name}: slope of the gap to their own limit", slope(law))
    return curves


def decades(first: int, last: int, each: int) -> list[int]:
    """Sizes evenly spaced in logarithms, so many in each decade."""
    count = round(each * math.log10(last / first)) + 1
    return [round(size) for size in np.geomspace(first, last, count)]


def show_gap(report: Report, name: str, gap: PopulationGap) -> None:
    report.row(f"{name}: J of the flow", f"{gap.limit:.4f}")
    for size, mean, std, rms, distance in zip(
        gap.sizes, gap.means, gap.stds, gap.gaps, gap.distances, strict=True
    ):
        report.row(
            f"{name}, N = {size:,}: mean J - J, std, gap, distance",
            f"{mean - gap.limit:+.4f}, {std:.4f}, {rms:.4f}, {distance:.4f}",
        )
    for what, figures in (("gap", gap.gaps), ("std", gap.stds), ("distance", gap.distances)):
        report.row(f"{name}: slope of the {what}", slope(fit_power(gap.sizes, figures)))


def slope(law: PowerLaw) -> str:
    return f"{law.slope:.3f} ± {law.slope_error:.3f}"


def draw(curves: dict[str, tuple[np.ndarray, np.ndarray]], directory: Path) -> Path:
    """Draws the gaps with their lines."""
    from matplotlib.figure import Figure

    from mufield._style import STYLE

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for (name, (sizes, figures)), colour, marker in zip(
        curves.items(), STYLE.colours, STYLE.markers, strict=False
    ):
        law = fit_power(sizes, figures)
        label = f"{name}, slope {law.slope:.2f}"
        axes.plot(sizes, figures, marker, color=colour, markersize=5, label=label)
        axes.plot(sizes, law(sizes), color=colour, linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="agents N", ylabel="difference of J (reward)")
    axes.set_title("N agents against the mean field")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "population.png"
    figure.savefig(path, dpi=150)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="where to draw the gaps")
    parser.add_argument("--measure-memory", type=int, metavar="N", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_memory:
        measure_memory(options.measure_memory)
        return
    report = Report("population")
    system, policy = compare_speed(report, options.quick)
    compare_memory(report, (1 << 19) if options.quick else 1_000_000)
    curves = compare_gaps(report, system, policy, options.quick)
    if options.pictures:
        report.row("picture", str(draw(curves, options.pictures)))
    report.show()


if __name__ == "__main__":
    main()
