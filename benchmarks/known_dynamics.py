"""What planning with known motion reaches, how far from the optimum it can be, and how fast it is.

The claims, in the order of the table:

1. Four rooms, one network for each step: the best of five seeds earns at least 78.2, each at least
   77.8; a table of actions for each cell and step at least 78.26, the paper's figure. The entropy
   stalls around h = 4 to 5, when the crowd meets the doors, and is within 0.02 of log 104 from
   h = 15 on.
2. The same rooms, mirror ascent on 9 x 9 moves: the global optimum over randomised policies is
   bracketed to 0.03. The network plan's own certificate stands beside it; it is wide, because a
   deterministic plan leaves cells almost empty where -log mu is steep.
3. Discrete four rooms without noise, five moves, float64: bracketed to 0.002.
4. Swarm, both motions, from both initial distributions: the plan earns at least what the closed
   form earns in the same discrete world. For s + a dh its distribution is within W1 0.02 of the
   closed-form density. The closed form is for an endless episode: towards the end of a finite one
   the best plan saves effort that can no longer pay back, and leaves it. That is the optimum's own
   way, as the plan's certificate shows, and it is gone where the episode goes on for 50 steps more.
5. Time: a gradient of J for the networks' weights takes at most 1.6 times the flow's own gradient,
   which is that for a table. In a new process that compiles everything, the four rooms are planned
   to 77.8 within two minutes, all told, and mirror ascent brackets their optimum to 0.5 within ten
   seconds.
6. Mirror ascent is at least 8 times faster in float32, and 5 times in float64, than the same sweeps
   with a dense transition tensor in NumPy, and says the same.
7. Starts from mirror ascent end above random ones.

Run ``python benchmarks/known_dynamics.py``, or with ``--quick`` for less than a minute;
``--pictures DIR`` also draws the network plan.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Report, Timing, duration, time_side_by_side

import mufield
from mufield import (
    Flow,
    MirrorAscent,
    MoveFlow,
    Network,
    Profile,
    SimulatedSystem,
    Table,
    certify,
    plan,
    wasserstein,
)
from mufield.environments.swarm import closed_form_density, closed_form_policy
from mufield.flow import Rollout
from mufield.planning import BPTT, MirrorResult, StepRule
from mufield.planning.ascent import MirrorState
from mufield.policies import ActionLaw, network_profile
from mufield.problem import Motion

BEST_NETWORK, EVERY_NETWORK, TABLE = 78.2, 77.8, 78.26
STALL, NEAR_MAXIMUM, SATURATED_FROM = (4, 5), 0.02, 15
BRACKET, DISCRETE_BRACKET, FAST_BRACKET = 0.03, 0.002, 0.5
CLOSE_TO_CLOSED_FORM = 0.02
GRADIENT_COST = 1.6
PLAN_SECONDS, BRACKET_SECONDS = 120.0, 10.0
FASTER_THAN_NUMPY, SWEEPS = {"float32": 8.0, "float64": 5.0}, 20
DEFAULT_WIDTH = 32  # of Network
LOG_FLOOR = 1e-25  # of `mufield.log_mass`

SAME_VALUE = {"float32": 1e-2, "float64": 1e-4}
POINTS = 9  # Moves on each axis of the action box.
SWARM_WIDTH = 32
PANELS = (3, 5, 8, 20)


@dataclass(frozen=True)
class Sizes:
    """What a run takes upon itself."""

    seeds: int = 5
    swarms: tuple[tuple[str, str], ...] = (
        ("swarm", "normal"),
        ("swarm", "uniform"),
        ("swarm-congested", "normal"),
        ("swarm-congested", "uniform"),
    )
    swarm_networks: bool = True
    longer_swarms: tuple[str, ...] = ("normal", "uniform")
    swarm_points: int = 561
    widths: tuple[int, ...] = (DEFAULT_WIDTH, 64)
    rounds: int = 40
    fresh: tuple[str, ...] = ("bracket", "plan")
    dtypes: tuple[str, ...] = ("float32", "float64")
    numpy_rounds: int = 10
    random_starts: int = 5


QUICK = Sizes(
    seeds=1,
    swarms=(("swarm", "normal"),),
    swarm_networks=False,
    longer_swarms=(),
    swarm_points=0,
    widths=(DEFAULT_WIDTH,),
    rounds=10,
    fresh=(),
    dtypes=("float32",),
    numpy_rounds=3,
    random_starts=0,
)


# Four rooms: plans.


@dataclass(frozen=True, eq=False)
class Rooms:
    """The four rooms with a plan of networks."""

    system: SimulatedSystem
    flow: Flow
    motion: Motion
    moves: jax.Array
    plan: Profile | None = None
    rollout: Rollout | None = None


def make_rooms() -> Rooms:
    """The four rooms at their defaults, and 9 x 9 moves."""
    system = mufield.make("four-rooms")
    flow, motion = system.reveal()
    box = flow.problem.actions
    return Rooms(system, flow, motion, box.points(POINTS))


def plan_rooms(report: Report, sizes: Sizes) -> Rooms:
    """Plans with networks and with a table; looks at the entropies along the way."""
    rooms = make_rooms()
    results, seconds = [], []
    for seed in range(sizes.seeds):
        began = time.perf_counter()
        results.append(plan(rooms.flow, rooms.motion, Network(), key=jax.random.key(seed)))
        seconds.append(time.perf_counter() - began)
    values = [float(result.value) for result in results]
    report.row(
        f"four rooms, networks: J of {sizes.seeds} seeds", ", ".join(f"{v:.3f}" for v in values)
    )
    report.row("  seconds, the first with compilation", ", ".join(f"{s:.1f}" for s in seconds))
    best = results[int(np.argmax(values))]
    report.row("  bound of the best plan's Lipschitz constant", f"{best.lipschitz:.3g}")
    report.row("  gradient steps skipped", str(sum(int(r.skipped.sum()) for r in results)))
    report.claim("four rooms: best network plan", max(values), BEST_NETWORK, side="at least")
    report.claim("four rooms: worst network plan", min(values), EVERY_NETWORK, side="at least")
    table = plan(rooms.flow, rooms.motion)
    report.claim("four rooms: per-cell table", float(table.value), TABLE, side="at least")

    rollouts = {"networks": [rooms.system.evaluate(r.profile) for r in results]}
    rollouts["table"] = [rooms.system.evaluate(table.profile)]
    for name, flows in rollouts.items():
        describe_entropy(report, name, [np.asarray(flow.rewards) for flow in flows])
    rollout = rollouts["networks"][int(np.argmax(values))]
    return Rooms(rooms.system, rooms.flow, rooms.motion, rooms.moves, best.profile, rollout)


def describe_entropy(report: Report, name: str, entropies: list[np.ndarray]) -> None:
    """Where the entropy stalls, and how near to its maximum it is later."""
    first, last = 3, 8
    gains = [np.diff(entropy)[first:last] for entropy in entropies]
    report.row(
        f"{name}: gain of entropy, h = {first} to {last}",
        ", ".join(f"{gain:.3f}" for gain in gains[0]),
    )
    stalls = [first + int(np.argmin(gain)) for gain in gains]
    report.claim(
        f"{name}: farthest of the stall (least gain from h = {first} to {last}) from "
        f"h = {STALL[0]} to {STALL[1]}, in steps",
        max(abs(stall - STALL[0]) for stall in stalls),
        1.0,
        side="at most",
    )
    short = [math.log(104) - entropy[SATURATED_FROM:] for entropy in entropies]
    report.claim(
        f"{name}: farthest of the entropy from log 104, from h = {SATURATED_FROM} on",
        max(float(np.abs(s).max()) for s in short),
        NEAR_MAXIMUM,
        side="at most",
    )


# Brackets of the optimum.


def bracket_rooms(report: Report, rooms: Rooms) -> None:
    """Mirror ascent's bracket, and the network plan's certificate."""
    began = time.perf_counter()
    moves = MoveFlow(rooms.flow, rooms.motion, rooms.moves)
    result = MirrorAscent(sweeps=2000, bracket=BRACKET).solve(moves)
    show_bracket(report, f"four rooms, {POINTS} x {POINTS} moves", result, began)
    report.claim(
        "four rooms: mirror ascent's bracket", float(result.bracket), BRACKET, side="at most"
    )
    own = certify(rooms.flow, rooms.motion, rooms.plan, rooms.moves)
    report.row("  network plan's own certificate", f"{own.value:.3f} <= J* <= {own.upper:.3f}")
    report.row(
        "  network plan below the best randomised policy, by both bounds",
        f"{max(0.0, float(result.value) - own.value):.3f} to "
        f"{min(own.upper, float(result.upper)) - own.value:.3f}",
    )


def bracket_discrete_rooms(report: Report) -> None:
    """The discrete rooms, in float64."""
    with jax.enable_x64(True):
        began = time.perf_counter()
        flow, motion = mufield.make("discrete-rooms").reveal()
        moves = MoveFlow(flow, motion, flow.problem.actions.moves)
        result = MirrorAscent(sweeps=4000, bracket=DISCRETE_BRACKET).solve(moves)
        assert result.value.dtype == jnp.float64
        show_bracket(report, "discrete four rooms, float64", result, began)
    report.claim(
        "discrete four rooms: mirror ascent's bracket",
        float(result.bracket),
        DISCRETE_BRACKET,
        side="at most",
    )


def show_bracket(report: Report, name: str, result: MirrorResult, began: float) -> None:
    report.row(
        f"{name}: bracket after {len(result.history)} sweeps",
        f"{float(result.value):.4f} <= J* <= {float(result.upper):.4f}, "
        f"{time.perf_counter() - began:.1f} s",
    )


# Swarm.


def plan_swarms(report: Report, sizes: Sizes) -> None:
    """Plans and the closed form, in the same discrete world."""
    gains: dict[str, list[float]] = {}
    distances = []
    for name, initial in sizes.swarms:
        began = time.perf_counter()
        system = mufield.make(name, initial=initial)
        flow, motion = system.reveal()
        closed = system.evaluate(closed_form_policy)
        if sizes.swarm_networks:
            found = plan(flow, motion, Network(width=SWARM_WIDTH))
        else:
            found = plan(flow, motion, ascent=BPTT(steps=100, learning_rate=0.1))
        rollout = system.evaluate(found.profile)
        gains.setdefault(name, []).append(float(rollout.value - closed.value))
        report.row(
            f"{name}, {initial}: J of the plan, of the closed form",
            f"{float(rollout.value):.3f}, {float(closed.value):.3f}; "
            f"{time.perf_counter() - began:.0f} s",
        )
        if name == "swarm":
            distances.append(distances_to_closed_form(system, rollout))
            show_distances(report, "  W1 to the closed form", distances[-1])
            show_effort(report, system, found.profile)
            if sizes.swarm_points:
                show_certificate(report, found.profile, initial, sizes.swarm_points)
    for name, gain in gains.items():
        report.claim(
            f"{name}: J of the plan above the closed form's", min(gain), 0.0, side="at least"
        )

    def claim(where: str, h: int, curves: list[np.ndarray]) -> None:
        report.claim(
            f"swarm: W1 to the closed form, {where}",
            max(float(curve[h]) for curve in curves),
            CLOSE_TO_CLOSED_FORM,
            side="at most",
        )

    claim("in the middle (h = 100 of 200)", 100, distances)
    claim("at the end (h = 200 of 200)", 200, distances)
    if sizes.longer_swarms:
        claim("at h = 200 of 250", 200, plan_longer_swarms(report, sizes.longer_swarms))


def distances_to_closed_form(system: SimulatedSystem, rollout: Rollout) -> np.ndarray:
    """W1 between each step's distribution and the closed-form density."""
    grid = system.problem.grid
    target = mufield.from_density(grid, closed_form_density(grid.centres[:, 0]))
    return np.array([wasserstein(grid, mass, target) for mass in rollout.mass])


def show_distances(report: Report, name: str, distances: np.ndarray) -> None:
    looks = [h for h in (50, 100, 150, 180, 190, 200, 230, 250) if h < len(distances)]
    report.row(
        f"{name} at h = {', '.join(map(str, looks))}",
        ", ".join(f"{distances[h]:.4f}" for h in looks),
    )
    close = np.flatnonzero(distances <= CLOSE_TO_CLOSED_FORM)
    whole = "all of them" if len(close) == close[-1] - close[0] + 1 else "with gaps"
    report.row(
        f"{name}: steps within {CLOSE_TO_CLOSED_FORM}", f"h = {close[0]} to {close[-1]}, {whole}"
    )


def show_effort(report: Report, system: SimulatedSystem, plan: Profile) -> None:
    """How effort fades at the end."""
    mass = system.evaluate(plan).mass
    size = action_sizes(mass, system.mean_actions(plan, mass))
    looks = (100, 150, 180, 190, 199)
    report.row(
        f"  mean |a| at h = {', '.join(map(str, looks))}",
        ", ".join(f"{size[h]:.2f}" for h in looks),
    )


def show_certificate(report: Report, plan: Profile, initial: str, points: int) -> None:
    """How much any other plan could earn more; in float64, as gaps are small."""
    with jax.enable_x64(True):
        flow, motion = mufield.make("swarm", initial=initial).reveal()
        exact = jax.tree.map(
            lambda x: jnp.asarray(x, dtype=jnp.float64) if eqx.is_inexact_array(x) else x, plan
        )
        box = flow.problem.actions
        moves = box.points(points)
        own = certify(flow, motion, exact, moves)
    report.row(
        f"  the plan's certificate, {points} moves, float64",
        f"{own.value:.4f} <= J* <= {own.upper:.4f}: gap {own.gap:.2g}",
    )


def plan_longer_swarms(report: Report, initials: Sequence[str]) -> list[np.ndarray]:
    """The same motion, but the episode goes on for 50 steps more."""
    distances = []
    for initial in initials:
        system = mufield.make("swarm", initial=initial, horizon=250, duration=1.25)
        flow, motion = system.reveal()
        found = plan(flow, motion)
        distances.append(distances_to_closed_form(system, system.evaluate(found.profile)))
        show_distances(report, f"swarm, {initial}, 250 steps (table): W1", distances[-1])
    return distances


def action_sizes(mass: jax.Array, actions: jax.Array) -> np.ndarray:
    """Mean length of the population's actions at each step."""
    lengths = np.linalg.norm(np.asarray(actions), axis=-1)
    return np.sum(np.asarray(mass)[:-1] * lengths, axis=1)


# Time.


def time_gradients(report: Report, rooms: Rooms, sizes: Sizes) -> None:
    """Gradients of J for networks, over that for a table."""
    problem = rooms.flow.problem
    profiles = {"table": Table().random(problem, problem.actions, jax.random.key(0))}
    for width in sizes.widths:
        profiles[f"networks, 2 x {width}"] = network_profile(
            problem, jax.random.key(0), width=width, depth=2
        )

    def gradient(profile: Profile) -> Callable[[], object]:
        arrays, rest = eqx.partition(profile, eqx.is_inexact_array)

        @jax.jit
        def compute(arrays: Any) -> Any:
            return jax.grad(lambda a: rooms.flow.value(eqx.combine(a, rest), rooms.motion))(arrays)

        return lambda: jax.block_until_ready(compute(arrays))

    times = time_side_by_side(
        {name: gradient(profile) for name, profile in profiles.items()}, rounds=sizes.rounds
    )
    for name, timing in times.items():
        ratio = timing.best / times["table"].best
        report.row(f"one gradient of J, {name}", f"{show(timing)}, {ratio:.2f} x")
        if name == f"networks, 2 x {DEFAULT_WIDTH}":
            report.claim(
                f"gradient for {name}, over the flow's own", ratio, GRADIENT_COST, side="at most"
            )


def time_fresh(report: Report, sizes: Sizes) -> None:
    """Times a process that starts from nothing and compiles everything."""
    bars = {"bracket": BRACKET_SECONDS, "plan": PLAN_SECONDS}
    titles = {
        "bracket": f"mirror ascent: seconds to a bracket of {FAST_BRACKET}, with compilation",
        "plan": f"four rooms: seconds of a new process to a network plan of {EVERY_NETWORK}",
    }
    cacheless = {"MUFIELD_COMPILATION_CACHE": "off", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    for task in sizes.fresh:
        began = time.perf_counter()
        run = subprocess.run(
            [sys.executable, __file__, "--fresh", task],
            env=os.environ | cacheless,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        whole = time.perf_counter() - began
        result = json.loads(run.stdout.splitlines()[-1])
        report.row(
            f"a new process, {task}: {result['figure']}",
            f"imports {whole - result['made'] - result['solved']:.1f} s, "
            f"rooms {result['made']:.1f} s, the rest {result['solved']:.1f} s",
        )
        seconds = whole if task == "plan" else result["solved"]
        if not result["reached"]:
            seconds = math.inf
        report.claim(titles[task], seconds, bars[task], side="at most")


def run_fresh(task: str) -> None:
    """What a new process does."""
    began = time.perf_counter()
    rooms = make_rooms()
    made = time.perf_counter() - began
    if task == "bracket":
        moves = MoveFlow(rooms.flow, rooms.motion, rooms.moves)
        result = MirrorAscent(sweeps=2000, bracket=FAST_BRACKET).solve(moves)
        reached = float(result.bracket) <= FAST_BRACKET
        figure = f"bracket {float(result.bracket):.3f} after {len(result.history)} sweeps"
    else:
        found = plan(rooms.flow, rooms.motion, Network())
        reached = float(found.value) >= EVERY_NETWORK
        figure = f"J = {float(found.value):.3f}"
    solved = time.perf_counter() - began - made
    print(json.dumps({"made": made, "solved": solved, "figure": figure, "reached": reached}))


# Mirror ascent in NumPy.


class DenseRooms:
    """The same sweeps with one row of probabilities for every move and cell."""

    def __init__(self, rooms: Rooms, dtype: Any):
        flow, motion = rooms.flow, rooms.motion
        cells = jnp.eye(flow.problem.grid.n_cells)

        def rows(action: jax.Array) -> jax.Array:
            def row(mass: jax.Array) -> jax.Array:
                actions = jnp.broadcast_to(action, (len(cells), 1, len(action)))
                law = ActionLaw(actions=actions, weights=jnp.ones((len(cells), 1)))
                return flow.step(mass, law, motion)

            return jax.vmap(row)(cells)

        tensor = np.asarray(jax.jit(lambda moves: jax.lax.map(rows, moves))(rooms.moves))
        self.n_moves, self.n_cells, _ = tensor.shape
        self.flat = np.ascontiguousarray(tensor.reshape(-1, self.n_cells), dtype=dtype)
        self.initial = np.asarray(flow.problem.initial, dtype=dtype)
        self.horizon = flow.problem.horizon
        self.dtype = np.dtype(dtype)

    def sweep(self, weights: np.ndarray) -> tuple[float, float, np.ndarray]:
        """J, gap and the derivatives of J by the joint mass [step, move, cell]."""
        masses = [self.initial]
        for now in weights:
            masses.append((masses[-1] * now).reshape(-1) @ self.flat)
        logs = [np.log(np.maximum(mass, LOG_FLOOR)) for mass in masses]
        value = -sum(mass @ log for mass, log in zip(masses, logs, strict=True))
        # The derivative of -mu log mu; in empty cells the logarithm is cut off.
        slopes = [np.where(mass > LOG_FLOOR, -1.0, 0.0).astype(self.dtype) for mass in masses]
        ahead = np.repeat((slopes[-1] - logs[-1])[:, None], 2, axis=1)
        by_move = np.empty_like(weights)
        for h in reversed(range(self.horizon)):
            by_both = (self.flat @ ahead).reshape(self.n_moves, self.n_cells, 2) - logs[h][:, None]
            by_move[h] = by_both[..., 0]
            values = np.einsum("mk,mk->k", weights[h], by_move[h])
            ahead = np.stack([values, by_both[..., 1].max(axis=0)], axis=1) + slopes[h][:, None]
        return float(value), float(self.initial @ (ahead[:, 1] - ahead[:, 0])), by_move

    def solve(self, sweeps: int) -> tuple[float, float]:
        """Mirror ascent from even weights: J and the least upper bound."""
        shape = (self.horizon, self.n_moves, self.n_cells)
        logits = np.full(shape, -math.log(self.n_moves), dtype=self.dtype)
        value, gap, by_move = self.sweep(softmax(logits))
        rule, velocity, gains = StepRule(), np.zeros_like(logits), 0
        upper, step = value + gap, rule.first
        for _ in range(sweeps):
            number = self.dtype.type
            change = number(step) * by_move + number(gains / (gains + 3)) * velocity
            trial = logits + change
            trial -= trial.max(axis=1, keepdims=True)
            new_value, gap, new_by_move = self.sweep(softmax(trial))
            upper = min(upper, new_value + gap)
            if new_value >= value - 2 * np.finfo(self.dtype).eps * abs(value):
                logits, value, by_move, velocity = trial, new_value, new_by_move, change
                step, gains = step * rule.growth, gains + 1
            else:
                step *= rule.slowing if gains else rule.shrinkage
                velocity, gains = np.zeros_like(logits), 0
        return value, upper


def softmax(logits: np.ndarray) -> np.ndarray:
    """Weights of the moves, the middle axis."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


@eqx.filter_jit
def sweep(moves: MoveFlow) -> MirrorState:
    """Mirror ascent from even weights."""
    planner = MirrorAscent()
    return planner.step(moves, planner.init(moves), SWEEPS)[0]


def compare_with_numpy(report: Report, sizes: Sizes) -> None:
    """Times sweeps with the same number format, after a check that both sides say the same."""
    for dtype in sizes.dtypes:
        with jax.enable_x64(dtype == "float64"):
            rooms = make_rooms()
            moves = MoveFlow(rooms.flow, rooms.motion, rooms.moves)
            dense = DenseRooms(rooms, dtype)
            ours, theirs = sweep(moves), dense.solve(SWEEPS)
            assert ours.value.dtype == dense.flat.dtype == dtype
            apart = max(abs(float(ours.value) - theirs[0]), abs(float(ours.upper) - theirs[1]))
            if apart > SAME_VALUE[dtype]:
                sys.exit(f"mirror ascent and its NumPy version disagree by {apart} in {dtype}")
            sides = {
                "ours": partial(lambda moves: float(sweep(moves).value), moves),
                "numpy": partial(dense.solve, SWEEPS),
                "solve": partial(MirrorAscent(sweeps=SWEEPS).solve, moves),
            }
            times = time_side_by_side(sides, rounds=sizes.numpy_rounds)
        ratio = times["numpy"].best / times["ours"].best
        report.row(
            f"{SWEEPS} sweeps of mirror ascent, {dtype}: ours",
            f"{show(times['ours'])}; J and bound {apart:.1e} apart",
        )
        report.row("  the same, dense NumPy", f"{show(times['numpy'])}, {ratio:.1f} x")
        report.row("  the same with solve, which tests for concavity first", show(times["solve"]))
        report.claim(
            f"mirror ascent, {dtype}: times faster than dense NumPy",
            ratio,
            FASTER_THAN_NUMPY[dtype],
            side="at least",
        )


# Starts.


def compare_starts(report: Report, rooms: Rooms, sizes: Sizes) -> None:
    """Which start wins; times are of a second run, without compilation."""
    key = jax.random.key(1)
    # The global start of networks plans a table and fits it first; random ones get steps instead.
    longer = BPTT(steps=1200, learning_rate=3e-3)
    plans = {"table": (Table(), None), "networks": (Network(), longer)}
    for name, (policy, ascent) in plans.items():
        found = {}
        for start in ("global", "random"):
            options = {} if start == "global" else {"random": True, "ascent": ascent}
            seeds = 1 if start == "global" else sizes.random_starts
            for _ in range(2):
                began = time.perf_counter()
                result = plan(rooms.flow, rooms.motion, policy, key=key, starts=seeds, **options)
                jax.block_until_ready(result.value)
                seconds = time.perf_counter() - began
            values = np.asarray(result.values)
            found[start] = float(values.max())
            shown = f"{values.min():.3f} to {values.max():.3f}" if seeds > 1 else f"{values[0]:.3f}"
            report.row(
                f"{name} from {'a' if seeds == 1 else seeds} {start} "
                f"{'start' if seeds == 1 else 'starts side by side'}",
                f"J = {shown}, {len(result.history)} steps, {seconds:.1f} s",
            )
        report.claim(
            f"{name}: J of the global start above the best random one",
            found["global"] - found["random"],
            0.0,
            side="at least",
        )


# Pictures.


def draw(rooms: Rooms, directory: Path) -> None:
    """The network plan: four steps, curves, and the whole episode."""
    from mufield import viz

    directory.mkdir(parents=True, exist_ok=True)
    assert rooms.rollout is not None
    grid, mass = rooms.flow.problem.grid, rooms.rollout.mass
    arrows = rooms.system.mean_actions(rooms.plan, mass)
    horizon = rooms.flow.problem.horizon
    titles = [f"h = {h}" if h < horizon else f"h = {h}, the end" for h in PANELS]
    figure = viz.field_figure(grid, mass, PANELS, arrows=arrows, titles=titles)
    figure.savefig(directory / "network_plan.png", dpi=120)
    curves = draw_curves(np.asarray(rooms.rollout.rewards), action_sizes(mass, arrows))
    curves.savefig(directory / "reward_and_action_size.png", dpi=120)
    film = viz.animate_flow(
        directory / "network_plan.mp4",
        grid,
        mass,
        arrows=arrows,
        titles=[f"h = {h} of {horizon}" for h in range(horizon + 1)],
    )
    print(f"wrote network_plan.png, reward_and_action_size.png and {film.name} to {directory}")


def draw_curves(rewards: np.ndarray, sizes: np.ndarray) -> Any:
    """Reward and mean action size at each step, one above the other."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from mufield._style import STYLE

    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    series = (rewards, "reward: entropy (nats)"), (sizes, "mean action size (cells)")
    for axes, (values, label), colour, marker in zip(
        panels, series, STYLE.colours, STYLE.markers, strict=False
    ):
        axes.plot(values, color=colour, marker=marker, markersize=4)
        axes.set(ylabel=label, ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].axhline(
        math.log(104), color="0.35", linestyle="--", linewidth=1.2, label="maximum, log 104"
    )
    panels[0].legend(frameon=False, loc="lower right")
    panels[0].set_title("network plan, known motion")
    panels[1].set_xlabel("step h")
    panels[1].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    return figure


def show(timing: Timing) -> str:
    """Fastest and middle round."""
    return f"{duration(timing.best)} (median {duration(timing.median)})"


def main() -> None:
    """Runs everything, or the part that needs a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="draw the network plan there")
    parser.add_argument("--fresh", choices=("bracket", "plan"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fresh:
        run_fresh(options.fresh)
        return
    sizes = QUICK if options.quick else Sizes()
    report = Report("known_dynamics")
    seconds: dict[str, float] = {}

    def stage(name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        result = work(*arguments)
        seconds[name] = time.perf_counter() - began
        print(f"{name}: {seconds[name]:.0f} s", file=sys.stderr, flush=True)
        return result

    rooms = stage("plans", plan_rooms, report, sizes)
    stage("bracket", bracket_rooms, report, rooms)
    stage("discrete", bracket_discrete_rooms, report)
    stage("swarm", plan_swarms, report, sizes)
    stage("gradients", time_gradients, report, rooms, sizes)
    stage("new processes", time_fresh, report, sizes)
    stage("NumPy", compare_with_numpy, report, sizes)
    if sizes.random_starts:
        stage("starts", compare_starts, report, rooms, sizes)
    if options.pictures:
        stage("pictures", draw, rooms, options.pictures)
    shown = ", ".join(f"{name} {taken:.0f}" for name, taken in seconds.items())
    report.row("seconds of this run", f"{sum(seconds.values()):.0f}: {shown}")
    report.show()


if __name__ == "__main__":
    main()
