"""N agents: how fast they are simulated, in how much memory, and how they approach the limit.

- ``speed``: the four rooms (H = 20, float32) under a randomised per-cell policy over 81 moves that
  mirror ascent found. One agent and step of `FiniteSystem.evaluate` against NumPy for all agents at
  once: actions by `searchsorted` in one table of cumulative weights, the wall rule on the agents
  that are still on their way, in blocks that fit the caches. Ours moves blocks of agents in a
  thread for each core, NumPy uses one core; pin the process to one core (``taskset -c 0``) to
  compare on equal terms. NumPy's wall rule is checked against `space.move.move` before it is timed.
- ``memory``: the most that `evaluate` adds to the process, for each of the agents. Programs are
  compiled before.
- ``gap``: the root mean squared difference, over episodes, of J of N agents and J of the mean
  field, for the swarm under its closed-form policy, whose cells are small beside the noise, with
  N = 100 to 1,000,000 agents in continuous space: a slope of -1/2 in logarithms.
- ``limit``: the flow, whose agents stand at the centres of cells, against 10,000 and 100,000 agents
  who stand anywhere in them: the four rooms, the swarm, and a city whose noise is 0.3 and 1 cell,
  under policies that differ: at rest, at random, a whirl that differs within cells, a deterministic
  table that was planned with the flow, and so exploits its error where that helps, and mirror
  ascent's randomised plan. The error is J of the flow minus the mean J of N agents, in percent of
  J's range over these policies; it is the grid's, and has no bar.

Run ``python benchmarks/population.py [section ...]``; ``--quick`` takes fewer agents, policies and
places.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import suite  # noqa: F401 (registers its systems)
from _report import Report, options_of, run_sections, time_side_by_side
from scipy.stats import linregress

import mufield
from mufield import Grid, MirrorAscent, MoveFlow, Profile, SimulatedSystem, Table, as_profile
from mufield.environments.swarm import closed_form_policy
from mufield.finite.system import BLOCK, FiniteSystem
from mufield.planning import BPTT
from mufield.space.move import move

FASTER_THAN_NUMPY = 4.0
BYTES_PER_AGENT = 200.0
STEEPEST, FLATTEST = -0.6, -0.4
MOVES_PER_AXIS = 9
NUMPY_BLOCK = 1 << 18
SAME_PLACE = 1e-4
STEPS = 100
"""Steps of the table's ascent: enough to exploit the flow's error."""

EPISODES = {10_000: 4, 100_000: 1}
"""Episodes by number of agents."""

PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "four rooms": ("four-rooms", {}),
    "swarm": ("swarm", {}),
    "city, noise 0.12": ("city", {"noise_std": 0.3}),
    "city, noise 0.4": ("city", {"noise_std": 1.0}),
}


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

    def run(self, agents: int) -> float:
        """J of one episode from the lower left corner."""
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
                states = [self.walk(state, *self.aims(step, state)) for state in states]
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
    """Exits if the NumPy version does not bring agents to where `space.move.move` does."""
    key, other = jax.random.split(jax.random.key(0))
    start = mufield.sample(grid, mufield.uniform(grid), key, 20_000)
    aim = start + 1.2 * jax.random.normal(other, start.shape)
    moved = jax.jit(jax.vmap(lambda s, a: move(grid, s, a)))(start, aim)
    here = Agents(*np.asarray(start).T, np.asarray(grid.index_of(start)))
    there = rooms.walk(here, *np.array(aim).T.copy())
    # By rounding, a line may pass a corner on another side.
    off = np.abs(np.stack(there[:2], axis=1) - np.asarray(moved.position)).max(axis=1)
    wrong = (off > SAME_PLACE) | (there.index != np.asarray(moved.index))
    if wrong.mean() > 1e-3:
        sys.exit(f"NumPy's agents and space.move.move differ in {wrong.mean():.2%} of the moves")


def speed(report: Report, options: argparse.Namespace) -> None:
    """Times an episode of ours and of NumPy's."""
    system = mufield.make("four-rooms")
    grid, horizon = system.problem.grid, system.problem.horizon
    policy, actions, weights = plan(system, 20 if options.quick else 100)
    rooms = NumpyRooms(grid, actions, weights, system.problem.noise.std[0])
    check_walls(rooms, grid)
    agents = 2 * BLOCK if options.quick else 1_000_000
    finite = FiniteSystem.of(system, agents)
    values: dict[str, list[float]] = {"ours": [], "NumPy": []}

    def ours() -> None:
        values["ours"].append(float(finite.evaluate(policy, jax.random.key(0)).values[0]))

    def numpy() -> None:
        values["NumPy"].append(rooms.run(agents))

    rounds = 2 if options.quick else 7
    times = time_side_by_side({"ours": ours, "NumPy": numpy}, rounds=rounds)
    for name, timing in times.items():
        each = timing.best / (horizon * agents) * 1e9
        text = f"{timing}, {each:.0f} ns for an agent and step, J = {np.mean(values[name]):.3f}"
        report.row(f"{name}: {agents:,} agents, {horizon} steps", text)
    if abs(np.mean(values["ours"]) - np.mean(values["NumPy"])) > 0.1:
        sys.exit("ours and NumPy's agents earn different amounts")
    ratio = times["NumPy"].best / times["ours"].best
    report.claim("times faster than NumPy", ratio, FASTER_THAN_NUMPY, side="at least")


def memory(report: Report, options: argparse.Namespace) -> None:
    """Has a process of its own measure what an evaluation takes."""
    agents = (1 << 19) if options.quick else 1_000_000
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


# The gap to the limit.


def gap(report: Report, options: argparse.Namespace) -> None:
    """How fast the gap of the swarm to the limit closes."""
    last, episodes = (100_000, 16) if options.quick else (1_000_000, 32)
    sizes = np.geomspace(100, last, 4 if options.quick else 9).round().astype(int)
    swarm = mufield.make("swarm", horizon=20, duration=0.1)
    flow, figures = swarm.evaluate(closed_form_policy), []
    for size, key in zip(sizes, jax.random.split(jax.random.key(0), len(sizes)), strict=True):
        crowd = FiniteSystem.of(swarm, int(size))
        seen = crowd.evaluate(closed_form_policy, key, episodes=episodes)
        off = np.asarray(seen.values, dtype=float) - float(flow.value)
        apart = np.abs(np.asarray(seen.mass, dtype=float) - np.asarray(flow.mass, dtype=float))
        figures.append((np.sqrt(np.mean(off**2)), off.std(ddof=1), apart[:, 1:].sum(-1).mean() / 2))
        shown = ", ".join(f"{figure:.4f}" for figure in (off.mean(), *figures[-1]))
        report.row(f"swarm, N = {size:,}: mean J - J, gap, std, distance", shown)
    slopes = [linregress(np.log(sizes), np.log(each)) for each in zip(*figures, strict=True)]
    shown = ", ".join(f"{line.slope:.3f} ± {line.stderr:.3f}" for line in slopes)
    report.row("swarm: slopes of gap, std, total variation distance", shown)
    name = f"slope of the swarm's gap, {sizes[0]:,} to {sizes[-1]:,} agents"
    report.claim(name, slopes[0].slope, STEEPEST, side="at least")
    report.claim(name, slopes[0].slope, FLATTEST, side="at most")


# Agents anywhere in their cells.


def policies(system: SimulatedSystem, quick: bool) -> dict[str, Any]:
    """Policies that earn very different amounts."""
    flow, motion = system.reveal()
    problem = system.problem
    box, centres = problem.actions, jnp.asarray(problem.grid.centres)
    low, extent = jnp.min(centres, axis=0), jnp.ptp(centres, axis=0)
    rates = jnp.pi * jnp.arange(3, 3 + box.dim)

    def whirl(state: Any, mu: Any, step: Any) -> Any:
        along = jnp.flip((state - low) / extent)
        return jnp.asarray(box.upper) * jnp.sin(rates * along + step)

    moves = box.points(5 if problem.grid.dim == 2 else 15)
    found = {
        "rest": lambda state, mu, step: jnp.asarray(box.rest),
        "random": mufield.random_policy(problem),
        "whirl": whirl,
        "mirror": MirrorAscent(sweeps=20 if quick else 100)
        .solve(MoveFlow(flow, motion, moves))
        .profile,
    }
    if not quick:
        ascent = BPTT(steps=STEPS, learning_rate=Table().learning_rate)
        found["table"] = mufield.plan(flow, motion, Table(), ascent=ascent).profile
    return {name: as_profile(policy, problem.horizon) for name, policy in found.items()}


def compare(report: Report, place: str, quick: bool) -> None:
    """J of policies in the flow and with N agents, and the flow's error."""
    name, options = PLACES[place]
    system = mufield.make(name, **options)
    chosen = policies(system, quick)
    sizes = list(EPISODES)[:1] if quick else list(EPISODES)
    means: dict[int, dict[str, float]] = {size: {} for size in sizes}
    for size in sizes:
        crowd = FiniteSystem.of(system, size)
        for policy, profile in chosen.items():
            played = crowd.evaluate(profile, jax.random.key(1), episodes=EPISODES[size])
            means[size][policy] = float(jnp.mean(played.values))
        print(f"{place}: {size:,} agents played", flush=True)
    extent = max(means[10_000].values()) - min(means[10_000].values())
    for policy, profile in chosen.items():
        value = float(system.evaluate(profile).value)
        agents = ", ".join(f"{means[size][policy]:.2f} ({size:,} agents)" for size in sizes)
        off = 100 * (value - means[sizes[-1]][policy]) / extent
        report.row(f"{place}, {policy}: J", f"{value:.2f} flow, {agents}, error {off:.2f}%")


def limit(report: Report, options: argparse.Namespace) -> None:
    """The flow against agents who stand anywhere in their cells."""
    for place in list(PLACES)[: 1 if options.quick else None]:
        compare(report, place, options.quick)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--measure-memory", type=int, metavar="N", help=argparse.SUPPRESS)
    given, _ = parser.parse_known_args()
    if given.measure_memory:
        measure_memory(given.measure_memory)
        return
    sections = {"speed": speed, "memory": memory, "gap": gap, "limit": limit}
    run_sections("population", parser, sections)


if __name__ == "__main__":
    main()
