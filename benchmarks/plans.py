"""Plans with known motion, and with a model of it: what they reach, how far from the optimum, time.

Sections, each with its claims:

- ``rooms``: the four rooms. Networks, one for each step: the best of five seeds earns at least
  78.2, each at least 77.8; a table of actions for each cell and step at least 78.26, the paper's
  figure. Mirror ascent on 9 x 9 moves brackets the global optimum over randomised policies to 0.03.
  Starts from mirror ascent end above random ones.
- ``box``: the same rooms over the whole box of actions, by mirror ascent that goes on from coarse
  moves: the certificate is proved, and its bracket is at most 0.5% wide.
- ``noise``: the paper prints no noise. It reports that its networks earned 78.26, that their
  entropy stalled from h = 4 to 5, when the crowd meets the doors, and was the greatest possible,
  log 104, from h = 14 on. The same of our plans, for several noises; the claims are about the
  default.
- ``discrete``: the discrete four rooms without noise, five moves, float64: bracketed to 0.002.
- ``swarm``: both motions, both starts: the plan earns at least what the closed form earns in the
  same discrete world. For s + a dh its distribution is within W1 0.02 of the closed-form density.
  The closed form is for an endless episode: towards the end of a finite one the best plan saves
  effort that can no longer pay back. That is gone where the episode goes on for 50 steps more.
- ``crowds``: two motions that depend on mu, where nothing is proved: mirror ascent and a table, J
  and processor time of a call with its compilation.
- ``model``: seconds of a plan in the city with models that see mu, against evaluating the model for
  every move in every sweep, of which two steps are timed: a plan would take minutes.
- ``time``: a gradient of J for the networks' weights takes at most 1.6 times that for a table. In a
  new process that compiles everything, the four rooms are planned to 77.8 within two minutes, and
  mirror ascent brackets their optimum to 0.5 within ten seconds.
- ``volume``: three dimensions, 5 x 5 x 4 cells, ten steps, ten tracked agents: a learner's first
  episode, in a new process that compiles everything, takes at most 50 s of processor time.
- ``numpy``: mirror ascent is at least 8 times faster in float32, and 5 times in float64, than the
  same sweeps with a dense transition tensor in NumPy, and ends with the same J.

Run ``python benchmarks/plans.py [section ...]``; ``--quick`` has one seed of the rooms, the
discrete rooms and NumPy.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import inspect
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import suite
from _report import Report, duration, options_of, run_sections, time_side_by_side

import mufield as mf
from mufield import MirrorAscent, MoveFlow, Network, Profile, SimulatedSystem, Table, plan
from mufield.environments.four_rooms import four_rooms
from mufield.environments.swarm import closed_form_density, closed_form_policy
from mufield.flow import Rollout
from mufield.learning import LearnerState
from mufield.models import AbstractModelFamily
from mufield.planning import BPTT, StepRule
from mufield.planning.ascent import MirrorState
from mufield.planning.moves import regular_moves
from mufield.policies import ActionLaw, Here, Pooled, network_profile
from mufield.problem import Motion
from reproduction.paper import Paper

BEST_NETWORK, EVERY_NETWORK, TABLE = 78.2, 77.8, 78.26
STALL, SATURATED_FROM = 4, 15
BRACKET, DISCRETE_BRACKET, FAST_BRACKET = 0.03, 0.002, 0.5
BOX = 0.005  # width of the bracket over the box, as a share
CLOSE_TO_CLOSED_FORM = 0.02
GRADIENT_COST = 1.6
PLAN_SECONDS, BRACKET_SECONDS, VOLUME_SECONDS = 120.0, 10.0, 50.0
FASTER_THAN_NUMPY, SWEEPS = {"float32": 8.0, "float64": 5.0}, 20
SAME_VALUE = {"float32": 1e-2, "float64": 1e-6}
DEFAULT_WIDTH = 32  # of Network
LOG_FLOOR = 1e-25  # of `mufield.log_mass`
POINTS = 9  # moves on each axis of the action box
DEFAULT_NOISE = float(inspect.signature(four_rooms).parameters["noise_std"].default)
NOISES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.5)
KEY = jax.random.key(0)


def moves_of(system: SimulatedSystem, points: int = POINTS) -> MoveFlow:
    """The flow over regular moves, with the true motion."""
    return MoveFlow(*system.reveal(), system.problem.actions.points(points))


# Four rooms.


def rooms(report: Report, options: argparse.Namespace) -> None:
    """Plans of several classes beside the bracket of the optimum; entropies along the way."""
    system, seeds = mf.make("four-rooms"), 1 if options.quick else 5
    flow, motion = system.reveal()
    for points in (9,) if options.quick else (9, 17):
        bracket(report, system, points)

    def planned(name: str, kind: Any, seeds: int) -> list[float]:
        values, entropies = [], []
        for seed in range(seeds):
            began = time.perf_counter()
            found = plan(flow, motion, kind, key=jax.random.key(seed))
            course = system.evaluate(found.profile)  # what the system pays, not what planners say
            values.append(float(course.value))
            entropies.append(np.asarray(course.rewards))
            seconds = time.perf_counter() - began
            report.row(f"rooms: {name}, seed {seed}", f"J = {values[-1]:.3f}, {seconds:.0f} s")
        describe_entropy(report, name, entropies)
        return values

    networks, table = planned("network", Network(), seeds), planned("table", Table(), 1)
    report.claim("rooms: best network plan", max(networks), BEST_NETWORK, side="at least")
    report.claim("rooms: worst network plan", min(networks), EVERY_NETWORK, side="at least")
    report.claim("rooms: per-cell table", table[0], TABLE, side="at least")
    if not options.quick:
        random_starts(report, system, max(networks), table[0])


def bracket(report: Report, system: SimulatedSystem, points: int) -> None:
    """The bracket of the optimum over randomised policies."""
    began = time.perf_counter()
    found = MirrorAscent(sweeps=2000, gap=BRACKET).solve(moves_of(system, points))
    report.row(
        f"rooms: optimum over {points} x {points} moves, {len(found.history)} sweeps",
        f"{float(found.value):.3f} <= J* <= {float(found.upper):.3f}, "
        f"{time.perf_counter() - began:.1f} s",
    )
    if points == POINTS:
        report.claim("rooms: mirror ascent's bracket", float(found.gap), BRACKET, side="at most")


def box(report: Report, options: argparse.Namespace) -> None:
    """The optimum over all actions of the box, with its certificate."""
    began = time.perf_counter()
    found = MirrorAscent().solve(MoveFlow(*mf.make("four-rooms").reveal()))
    low, high = float(found.value), float(found.upper)
    report.row(
        f"rooms, whole box: {low:.2f} <= J* <= {high:.2f}, proof {found.proof!r}",
        f"{time.perf_counter() - began:.1f} s",
    )
    report.claim("rooms, whole box: width of the bracket", (high - low) / high, BOX, side="at most")
    report.claim("rooms, whole box: proved", float(found.proof == "box"), 1.0, side="at least")


def describe_entropy(report: Report, name: str, entropies: list[np.ndarray]) -> None:
    """Where the entropy stalls, and how near to its maximum it is later."""
    first, last = 3, 8
    gains = [np.diff(entropy)[first:last] for entropy in entropies]
    shown = ", ".join(f"{gain:.3f}" for gain in gains[0])
    report.row(f"rooms: {name}: gain of entropy, h = {first} to {last}", shown)
    off = max(abs(first + int(np.argmin(gain)) - STALL) for gain in gains)
    stalls = f"rooms: {name}: steps of the least gain of entropy from h = {STALL}, farthest"
    report.claim(stalls, off, 1.0, side="at most")
    short = max(float(np.abs(Paper.most_entropy - e[SATURATED_FROM:]).max()) for e in entropies)
    late = f"rooms: {name}: farthest of the entropy from log 104, from h = {SATURATED_FROM} on"
    report.claim(late, short, Paper.near_maximum, side="at most")


def random_starts(report: Report, system: SimulatedSystem, network: float, table: float) -> None:
    """What random starts reach; mirror ascent's work goes into more steps instead."""
    longer = BPTT(steps=1200, learning_rate=3e-3)
    for name, kind, ascent, ours in (
        ("table", Table(), None, table),
        ("networks", Network(), longer, network),
    ):
        key = jax.random.key(1)
        found = plan(*system.reveal(), kind, key=key, starts=5, random=True, ascent=ascent)
        values = np.asarray(found.values)
        report.row(f"rooms: {name}, random starts", ", ".join(f"{v:.3f}" for v in values))
        above = f"rooms: {name}: J from mirror ascent's plan above the best of five random starts"
        report.claim(above, ours - float(values.max()), 0.0, side="at least")


def noise(report: Report, options: argparse.Namespace) -> None:
    """Plans for several noises, beside what the paper reports of its own."""
    for std in NOISES:
        system = mf.make("four-rooms", noise_std=std)
        flow, motion = system.reveal()
        best = MirrorAscent(sweeps=300).solve(moves_of(system))
        networks = plan(flow, motion, Network())
        random = plan(flow, motion, Network(), random=True, starts=3)
        values = [networks.value, random.value, plan(flow, motion).value, best.value]
        entropy = np.asarray(system.evaluate(networks.profile).rewards)
        gains = np.diff(entropy)[STALL - 1 : STALL + 2]
        full = 1 + int(np.flatnonzero(entropy < Paper.most_entropy - Paper.near_maximum)[-1])
        report.row(
            f"noise {std:g}: networks, from random weights, table, optimum",
            " / ".join(f"{float(value):.2f}" for value in values),
        )
        report.row(
            f"noise {std:g}: gains of entropy around h = {STALL}, greatest from h",
            f"{', '.join(f'{gain:.2f}' for gain in gains)}; {full if full <= 20 else 'never'}",
        )
        if math.isclose(std, DEFAULT_NOISE):
            claim, late = report.claim, abs(full - Paper.full_entropy_at)
            claim("noise: gain of entropy, h = 4 to 5", gains[1], 0.02, side="at most")
            claim("noise: greatest entropy, steps from h = 14", late, 1, side="at most")
            claim("noise: networks", float(networks.value), Paper.known, side="at least")
            claim("noise: from random weights", float(random.value), Paper.known, side="at most")


def discrete(report: Report, options: argparse.Namespace) -> None:
    """The bracket of the discrete rooms, in float64."""
    with jax.enable_x64(True):
        began = time.perf_counter()
        flow, motion = mf.make("discrete-rooms").reveal()
        moves = MoveFlow(flow, motion, flow.problem.actions.moves)
        found = MirrorAscent(sweeps=4000, gap=DISCRETE_BRACKET).solve(moves)
        assert found.value.dtype == jnp.float64
    report.row(
        f"discrete rooms: {len(found.history)} sweeps",
        f"{float(found.value):.4f} <= J* <= {float(found.upper):.4f}, "
        f"{time.perf_counter() - began:.1f} s",
    )
    width = float(found.gap)
    report.claim("discrete rooms: bracket", width, DISCRETE_BRACKET, side="at most")


# Swarm.


def swarm(report: Report, options: argparse.Namespace) -> None:
    """Plans and the closed form, in the same discrete world."""
    curves = []
    for name in ("swarm", "swarm-congested"):
        gains = []
        for initial in ("normal", "uniform"):
            began = time.perf_counter()
            system = mf.make(name, initial=initial)
            closed = system.evaluate(closed_form_policy)
            found = plan(*system.reveal(), Network(width=DEFAULT_WIDTH))
            course = system.evaluate(found.profile)
            gains.append(float(course.value - closed.value))
            report.row(
                f"{name}, {initial}: J of the plan, of the closed form",
                f"{float(course.value):.3f}, {float(closed.value):.3f}; "
                f"{time.perf_counter() - began:.0f} s",
            )
            if name == "swarm":
                curves.append(distances(report, f"{name}, {initial}", system, course))
        report.claim(
            f"{name}: J of the plan above the closed form's", min(gains), 0.0, side="at least"
        )
    longer = []
    for initial in ("normal", "uniform"):
        system = mf.make("swarm", initial=initial, horizon=250, duration=1.25)
        course = system.evaluate(plan(*system.reveal()).profile)
        longer.append(distances(report, f"swarm, {initial}, 250 steps (table)", system, course))
    for where, h, found in (
        ("in the middle (h = 100 of 200)", 100, curves),
        ("at the end (h = 200 of 200)", 200, curves),
        ("at h = 200 of 250", 200, longer),
    ):
        most = max(float(curve[h]) for curve in found)
        name = f"swarm: W1 to the closed form, {where}"
        report.claim(name, most, CLOSE_TO_CLOSED_FORM, side="at most")


def distances(report: Report, name: str, system: SimulatedSystem, course: Rollout) -> np.ndarray:
    """W1 between each step's distribution and the closed-form density."""
    grid = system.problem.grid
    target = mf.from_density(grid, closed_form_density(grid.centres[:, 0]))
    found = np.array([mf.wasserstein(grid, mass, target) for mass in course.mass])
    looks = [h for h in (50, 100, 150, 180, 190, 200, 230, 250) if h < len(found)]
    shown = ", ".join(f"{found[h]:.4f}" for h in looks)
    report.row(f"{name}: W1 to the closed form at h = {', '.join(map(str, looks))}", shown)
    return found


# Motions that depend on mu, and models of them.


CROWDED: dict[str, dict[str, Any]] = {
    "rooms-crowded": {},
    "swarm-congested": {"horizon": 50, "cells": 50, "duration": 0.25},
}


def crowds(report: Report, options: argparse.Namespace) -> None:
    """Planners side by side; shares are of the way from random to the best that any found."""
    for name, given in CROWDED.items():
        system = mf.make(name, **given)
        flow, motion = system.reveal()
        chance = float(system.evaluate(mf.random_policy(system.problem)).value)

        def mirror(flow: Any = flow, motion: Any = motion) -> Profile:
            return MirrorAscent(sweeps=100).solve(MoveFlow(flow, motion)).profile

        def table(flow: Any = flow, motion: Any = motion) -> Profile:
            ascent = BPTT(steps=200, learning_rate=Table.learning_rate)
            return plan(flow, motion, ascent=ascent).profile

        sides = {"mirror ascent": mirror, "table": table}
        values, seconds = {}, {}
        for side, found in sides.items():
            began = time.process_time()
            profile = jax.block_until_ready(found())
            seconds[side] = time.process_time() - began
            values[side] = float(system.evaluate(profile).value)
        shares = {
            side: (value - chance) / (max(values.values()) - chance)
            for side, value in values.items()
        }
        for side, value in values.items():
            text = f"J {value:.3f}, {shares[side]:.1%} of the way, {duration(seconds[side])}"
            report.row(f"{name}: {side}", text)
        report.row(f"{name}: random policy", f"J {chance:.3f}")
        claim = f"{name}: mirror ascent's share of the way"
        report.claim(claim, shares["mirror ascent"], 0.97, side="at least")


FAMILIES: dict[str, AbstractModelFamily] = {
    "Gaussian process, mu=Here()": mf.GaussianProcess(mu=Here()),
    "ensemble, mu=Here()": mf.DeepEnsemble(mu=Here()),
    "ensemble, mu=Pooled()": mf.DeepEnsemble(mu=Pooled()),
}


def model(report: Report, options: argparse.Namespace) -> None:
    """Plans in the city, 81 actions with five hallucinated controls each, 60 sweeps."""
    for name, family in FAMILIES.items():
        for transitions in (208, 2000):
            learner, state = told(suite.city(), family, transitions)
            taken = second_call(partial(plan_value, learner, state))
            slow = in_every_sweep(learner, state)
            what = f"city, {name}, {len(state.data)} transitions"
            report.row(what, f"{duration(taken)}; in every sweep {duration(slow)}")
            report.claim(f"{what}: seconds of a plan", taken, 10.0, side="at most")
            report.claim(f"{what}: times faster", slow / taken, 5.0, side="at least")
    taken = second_call(partial(plan_value, *told(mf.make("four-rooms"), mf.DeepEnsemble(), 200)))
    report.row("four rooms, ensemble without mu, 200 transitions", duration(taken))


def plan_value(learner: mf.M3UCRL, state: LearnerState) -> jax.Array:
    """J of the learner's plan."""
    return learner.ask(state).value


def told(
    system: SimulatedSystem, family: AbstractModelFamily, transitions: int
) -> tuple[mf.M3UCRL, LearnerState]:
    """A learner after one episode of the random policy with many tracked agents."""
    learner = mf.M3UCRL(system.problem, family)
    agents = transitions // system.problem.horizon
    episode = system.run(mf.random_policy(system.problem), KEY, agents=agents)
    return learner, learner.tell(learner.init(KEY), episode)


def second_call(function: Callable[[], Any]) -> float:
    """Seconds of the second call; the first compiles."""
    jax.block_until_ready(function())
    began = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - began


def in_every_sweep(learner: mf.M3UCRL, state: LearnerState, steps: int = 2) -> float:
    """Seconds of a plan that evaluates the model for every move in every sweep."""
    planner, optimism = mf.MirrorPlanner(), learner.optimism
    problem = suite.city(horizon=steps).problem
    joint_flow = learner.flow.of_problem(optimism.joint(problem))

    @eqx.filter_jit
    def sweep(model: Any) -> jax.Array:
        flow, motion = optimism.imagine(problem, joint_flow, model, None, KEY)
        # As a plain function, of which nothing is known about what moves share.
        plain: Motion = lambda state, joint, mu: motion(state, joint, mu)  # noqa: E731
        listed = regular_moves(flow, plain, problem.actions, points=planner.points)
        moves = MoveFlow(flow, plain, listed.actions[0], group=listed.group, bank_bytes=0)
        return moves.sweep(moves.uniform(), bound=False).action_values

    sweeps = (planner.sweeps + 1) * learner.problem.horizon / steps
    return second_call(lambda: sweep(state.model)) * sweeps


# Time.


def timing(report: Report, options: argparse.Namespace) -> None:
    """Gradients of J for networks over that for a table, and new processes."""
    flow, motion = mf.make("four-rooms").reveal()
    problem = flow.problem
    profiles = {"table": Table().random(problem, problem.actions, KEY)}
    for width in (DEFAULT_WIDTH, 64):
        profiles[f"networks, 2 x {width}"] = network_profile(problem, KEY, width=width, depth=2)

    def gradient(profile: Profile) -> Callable[[], object]:
        arrays, rest = eqx.partition(profile, eqx.is_inexact_array)

        @jax.jit
        def compute(arrays: Any) -> Any:
            return jax.grad(lambda a: flow.value(eqx.combine(a, rest), motion))(arrays)

        return lambda: jax.block_until_ready(compute(arrays))

    times = time_side_by_side({name: gradient(each) for name, each in profiles.items()}, rounds=40)
    for name, found in times.items():
        ratio = found.best / times["table"].best
        report.row(f"one gradient of J, {name}", f"{found}, {ratio:.2f} x")
        if name == f"networks, 2 x {DEFAULT_WIDTH}":
            claim = f"gradient for {name}, over that for a table"
            report.claim(claim, ratio, GRADIENT_COST, side="at most")
    for task in ("bracket", "plan"):
        time_fresh(report, task)


def volume(report: Report, options: argparse.Namespace) -> None:
    """The first episode of a learner in three dimensions."""
    time_fresh(report, "volume")


def first_in_volume() -> float:
    """J of that episode."""
    grid = mf.Grid.box((0, 0, 0), (5, 5, 4), (5, 5, 4))
    problem = mf.Problem(
        space=grid,
        actions=mf.Box(-1.0, 1.0, dim=3),
        reward=lambda s, a, mu: -mf.log_mass(mu.here) - 0.1 * jnp.sum(a**2),
        horizon=10,
        initial=mf.point_mass(grid, 0, 0, 0),
        noise=0.25,
        max_move=1.0,
    )
    wind = jnp.array([0.2, -0.1, 0.1])
    system = SimulatedSystem(problem, lambda s, a, mu: s + 0.8 * a + wind)
    return mf.learn(system, episodes=1, agents=10, progress=False).metrics[0].value


FRESH = {
    "bracket": (
        f"mirror ascent: seconds to a bracket of {FAST_BRACKET}, with compilation",
        BRACKET_SECONDS,
    ),
    "plan": (
        f"four rooms: seconds of a new process to a network plan of {EVERY_NETWORK}",
        PLAN_SECONDS,
    ),
    "volume": (
        "5 x 5 x 4 cells: processor seconds of a learner's first episode, with compilation",
        VOLUME_SECONDS,
    ),
}


def time_fresh(report: Report, task: str) -> None:
    """Times a process that starts from nothing and compiles everything."""
    cacheless = {"MUFIELD_COMPILATION_CACHE": "off", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    began = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, __file__, "--fresh", task],
        env=os.environ | cacheless,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    whole, found = time.perf_counter() - began, json.loads(ran.stdout.splitlines()[-1])
    report.row(
        f"a new process, {task}: {found['figure']}",
        f"{whole:.1f} s, of them {found['solved']:.1f} s after imports and the rooms",
    )
    seconds = whole if task == "plan" else found["solved"]
    title, bar = FRESH[task]
    report.claim(title, seconds if found["reached"] else math.inf, bar, side="at most")


def run_fresh(task: str) -> None:
    """What a new process does."""
    system = mf.make("four-rooms")
    clock = time.process_time if task == "volume" else time.perf_counter
    began, reached = clock(), True
    if task == "volume":
        figure = f"J = {first_in_volume():.3f}"
    elif task == "bracket":
        result = MirrorAscent(sweeps=2000, gap=FAST_BRACKET).solve(moves_of(system))
        reached = float(result.gap) <= FAST_BRACKET
        figure = f"bracket {float(result.gap):.3f} after {len(result.history)} sweeps"
    else:
        found = plan(*system.reveal(), Network())
        reached = float(found.value) >= EVERY_NETWORK
        figure = f"J = {float(found.value):.3f}"
    solved = clock() - began
    print(json.dumps({"solved": solved, "figure": figure, "reached": reached}))


# Mirror ascent in NumPy.


class DenseRooms:
    """The same sweeps with one row of probabilities for every move and cell."""

    def __init__(self, system: SimulatedSystem, actions: jax.Array, dtype: str):
        flow, motion = system.reveal()
        cells = jnp.eye(flow.problem.grid.n_cells)

        def rows(action: jax.Array) -> jax.Array:
            def row(mass: jax.Array) -> jax.Array:
                actions = jnp.broadcast_to(action, (len(cells), 1, len(action)))
                law = ActionLaw(actions=actions, weights=jnp.ones((len(cells), 1)))
                return flow.step(mass, law, motion)

            return jax.vmap(row)(cells)

        tensor = np.asarray(jax.jit(lambda moves: jax.lax.map(rows, moves))(actions))
        self.n_moves, self.n_cells, _ = tensor.shape
        self.flat = np.ascontiguousarray(tensor.reshape(-1, self.n_cells), dtype=dtype)
        self.initial = np.asarray(flow.problem.initial, dtype=dtype)
        self.horizon = flow.problem.horizon
        self.dtype = np.dtype(dtype)

    def masses(self, weights: np.ndarray) -> list[np.ndarray]:
        """The distributions mu_0, ..., mu_H."""
        found = [self.initial]
        for now in weights:
            found.append((found[-1] * now).reshape(-1) @ self.flat)
        return found

    def sweep(self, weights: np.ndarray) -> tuple[float, float, np.ndarray]:
        """J, gap and the derivatives of J by the joint mass [step, move, cell]."""
        masses = self.masses(weights)
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

    def solve(self, sweeps: int) -> float:
        """J after mirror ascent from even weights, with the steps of `mufield.planning.ascent`."""
        shape = (self.horizon, self.n_moves, self.n_cells)
        logits = np.full(shape, -math.log(self.n_moves), dtype=self.dtype)
        value, _, by_move = self.sweep(softmax(logits))
        rule, velocity, gains = StepRule(), np.zeros_like(logits), 0
        # The first step is relative to the spread of the action values over moves.
        variance = np.stack(self.masses(softmax(logits))[:-1]) * by_move.var(axis=1)
        step = rule.first / math.sqrt(float(variance.sum()) / self.horizon)
        for _ in range(sweeps):
            number = self.dtype.type
            change = number(step) * by_move + number(gains / (gains + 3)) * velocity
            trial = logits + change
            trial -= trial.max(axis=1, keepdims=True)
            new_value, _, new_by_move = self.sweep(softmax(trial))
            if new_value >= value - 2 * np.finfo(self.dtype).eps * abs(value):
                logits, value, by_move, velocity = trial, new_value, new_by_move, change
                step, gains = step * rule.growth, gains + 1
            else:
                step *= rule.slowing if gains else rule.shrinkage
                velocity, gains = np.zeros_like(logits), 0
        return value


def softmax(logits: np.ndarray) -> np.ndarray:
    """Weights of the moves, the middle axis."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


@eqx.filter_jit
def sweep(moves: MoveFlow) -> MirrorState:
    """Mirror ascent from even weights."""
    planner = MirrorAscent()
    return planner.step(moves, planner.init(moves), SWEEPS)[0]


def against_numpy(report: Report, options: argparse.Namespace) -> None:
    """Times sweeps with the same number format, after a check that both sides end alike."""
    for dtype in ("float32",) if options.quick else ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):
            system = mf.make("four-rooms")
            moves = moves_of(system)
            dense = DenseRooms(system, system.problem.actions.points(POINTS), dtype)
            ours, theirs = sweep(moves), dense.solve(SWEEPS)
            assert ours.value.dtype == dense.flat.dtype == dtype
            apart = abs(float(ours.value) - theirs)
            if apart > SAME_VALUE[dtype]:
                sys.exit(f"mirror ascent and its NumPy version disagree by {apart} in {dtype}")
            sides = {
                "ours": partial(lambda moves: float(sweep(moves).value), moves),
                "numpy": partial(dense.solve, SWEEPS),
                "solve": partial(MirrorAscent(sweeps=SWEEPS).solve, moves),
            }
            times = time_side_by_side(sides, rounds=3 if options.quick else 10)
        ratio = times["numpy"].best / times["ours"].best
        report.row(
            f"{SWEEPS} sweeps of mirror ascent, {dtype}: ours",
            f"{times['ours']}; J = {float(ours.value):.4f}, {apart:.1e} apart",
        )
        report.row("  the same, dense NumPy", f"{times['numpy']}, {ratio:.1f} x")
        report.row("  the same with solve, which tests for concavity first", str(times["solve"]))
        claim = f"mirror ascent, {dtype}: times faster than dense NumPy"
        report.claim(claim, ratio, FASTER_THAN_NUMPY[dtype], side="at least")


def main() -> None:
    """Runs the sections, or the part that needs a process of its own."""
    parser = options_of(__doc__)
    parser.add_argument("--fresh", choices=FRESH, help=argparse.SUPPRESS)
    if "--fresh" in sys.argv:
        run_fresh(parser.parse_args().fresh)
        return
    sections = {
        "rooms": rooms,
        "box": box,
        "noise": noise,
        "discrete": discrete,
        "swarm": swarm,
        "crowds": crowds,
        "model": model,
        "time": timing,
        "volume": volume,
        "numpy": against_numpy,
    }
    run_sections("plans", parser, sections, quick=("rooms", "discrete", "numpy"))


if __name__ == "__main__":
    main()
