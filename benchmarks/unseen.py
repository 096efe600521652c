"""Problems on which nothing in the library was tuned: plans with known motion, and learners.

They were written after all defaults stood, and are different on purpose: boxes, a ring and a torus;
noise of half a cell and of two; a motion that looks at the step, at the own cell's crowd or at the
population's mean; effort that is paid for everywhere; rewards in units of 1e4 and of 1e-3. They
stay of use only as long as no default is chosen by them.

- ``plans``: mirror ascent by default settings (`mf.MirrorAscent`) beside a table by gradient ascent
  (`mf.plan`), both as shares of the way from agents at rest to the better. Claims: mirror ascent
  goes at least 99.5% of it, and neither ends below agents at rest.
- ``learned``: the default learner with ten tracked agents, ten episodes, one seed. Claims: the mean
  of the last three episodes is at least 98.5% of the way to the better plan, and no episode earns
  less than agents at rest.

Run ``python benchmarks/unseen.py [section ...]``; ``--only NAME,...`` takes some problems,
``--seeds N`` more seeds. ``--quick`` plans two of them.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _report import Report, learn_many, names_of, options_of, run_sections

import mufield as mf

NEAR, LEARNED = 0.995, 0.985


def yard() -> mf.SimulatedSystem:
    """A yard with a wall and a slope; effort and crowds are paid for in units of 1e4."""
    rows = ["." * 9] * 2 + [".....#..."] * 4 + ["." * 9]
    grid, goal = mf.Grid.from_map("\n".join(rows)), jnp.array([7.5, 1.5])

    def motion(state: Any, action: Any, mu: mf.MeanField) -> Any:
        return state + 0.9 * action + 0.25 * jnp.sin(state[1] / 2) * jnp.array([1.0, 0.0])

    def reward(state: Any, action: Any, mu: mf.MeanField) -> Any:
        away = jnp.sum((state - goal) ** 2) / 20 + 0.6 * jnp.sum(action**2)
        return 1e4 * (-away - 0.3 * mf.log_mass(mu.here))

    return _system(motion, grid, reward, mf.point_mass(grid, 1, 1), 14, noise=0.3, max_move=1.3)


def ring() -> mf.SimulatedSystem:
    """A ring with a drift by place, little noise, and a place to be that moves on."""
    grid = mf.Grid.box(0.0, 12.0, 48, periodic=True)

    def motion(state: Any, action: Any, mu: mf.MeanField) -> Any:
        return state + action + 0.3 * jnp.sin(2 * jnp.pi * state / 12)

    def reward(state: Any, action: Any, mu: mf.MeanField) -> Any:
        near = jnp.cos(2 * jnp.pi * (state[0] - 3 - 0.4 * mu.step) / 12)
        return near - 0.8 * action[0] ** 2 - 0.2 * mf.log_mass(mu.here)

    return _system(motion, grid, reward, mf.point_mass(grid, 30), 15, noise=0.12, max_move=1.3)


def river() -> mf.SimulatedSystem:
    """A line with a tide and much noise; rewards are of the order of 1e-3."""
    grid = mf.Grid.box(-10.0, 10.0, 50)
    start = mf.from_density(grid, lambda state: jnp.exp(-0.5 * (state[0] + 4) ** 2))

    def motion(state: Any, action: Any, mu: mf.MeanField) -> Any:
        return state + 0.7 * action + 0.6 * jnp.sin(2 * jnp.pi * mu.step / 10)

    def reward(state: Any, action: Any, mu: mf.MeanField) -> Any:
        return -1e-3 * (0.1 * (state[0] - 2) ** 2 + 0.5 * action[0] ** 2)

    return _system(motion, grid, reward, start, 18, noise=0.8, max_move=2.0, limits=(-2.0, 2.0))


def flock() -> mf.SimulatedSystem:
    """A torus where crowds slow agents down strongly: all start in one cell."""
    grid = mf.Grid.box((0, 0), (8, 8), (8, 8), periodic=True)

    def motion(state: Any, action: Any, mu: mf.MeanField) -> Any:
        return state + action / (1 + 6 * mu.here)

    def reward(state: Any, action: Any, mu: mf.MeanField) -> Any:
        x, y = 2 * jnp.pi * state / 8
        effort = 0.4 * jnp.sum(action**2)
        return jnp.cos(x) + 0.5 * jnp.sin(y) - effort - 0.15 * mf.log_mass(mu.here)

    return _system(motion, grid, reward, mf.point_mass(grid, 4, 4), 12, noise=0.4, max_move=1.0)


def lift() -> mf.SimulatedSystem:
    """A line whose agents sink and follow their mean; actions reach farther up than down."""
    grid = mf.Grid.box(0.0, 20.0, 80)
    centres = jnp.asarray(grid.centres[:, 0])
    start = mf.from_density(grid, lambda state: jnp.exp(-0.5 * ((state[0] - 5) / 1.5) ** 2))

    def motion(state: Any, action: Any, mu: mf.MeanField) -> Any:
        mean = jnp.dot(mu.mass, centres.astype(mu.mass.dtype))
        return state + 0.5 * action - 0.2 + 0.15 * (mean - state)

    def reward(state: Any, action: Any, mu: mf.MeanField) -> Any:
        away = 0.05 * jnp.abs(state[0] - 14 - 0.5 * mu.step) ** 1.5
        return -1e4 * (away + 0.2 * action[0] ** 2 + 0.1 * action[0])

    return _system(motion, grid, reward, start, 10, noise=0.25, max_move=4.7, limits=(-1.0, 3.0))


PROBLEMS: dict[str, Callable[[], mf.SimulatedSystem]] = {
    each.__name__: each for each in (yard, ring, river, flock, lift)
}


def _system(
    motion: Any,
    grid: mf.Grid,
    reward: Any,
    start: Any,
    horizon: int,
    *,
    limits: tuple[float, float] = (-1.0, 1.0),
    **known: float,
) -> mf.SimulatedSystem:
    """The system, whose actions have the same limits on each axis of the space."""
    problem = mf.Problem(
        space=grid,
        actions=mf.Box(*limits, dim=grid.dim),
        reward=reward,
        horizon=horizon,
        initial=start,
        **known,
    )
    return mf.SimulatedSystem(problem, motion)


def known(system: mf.SimulatedSystem) -> tuple[float, float, float]:
    """J of agents at rest, of mirror ascent and of a table, each by default settings."""
    flow, motion = system.reveal()
    ascent = mf.MirrorAscent().solve(mf.MoveFlow(flow, motion)).profile
    plans = [ascent, mf.plan(flow, motion, mf.Table()).profile]
    rest = system.evaluate(lambda state, mu, step: jnp.zeros_like(state)).value
    return float(rest), *(float(system.evaluate(plan).value) for plan in plans)


def plans(report: Report, options: argparse.Namespace) -> None:
    """Plans with known motion."""
    names = options.only or (("river", "lift") if options.quick else PROBLEMS)
    for name in names:
        rest, mirror, table = known(PROBLEMS[name]())
        report.row(f"{name}: rest, mirror ascent, table", f"{rest:.6g}, {mirror:.6g}, {table:.6g}")
        way = max(mirror, table) - rest
        share = (mirror - rest) / way
        report.claim(f"{name}: mirror ascent, share of the way", share, NEAR, side="at least")
        worst = (min(mirror, table) - rest) / way
        report.claim(f"{name}: the worse plan above rest", worst, 0.0, side="at least")


def learned(report: Report, options: argparse.Namespace) -> None:
    """The default learner."""
    for name in options.only or PROBLEMS:
        system = PROBLEMS[name]()
        rest, *values = known(system)
        found = learn_many(system, seeds=range(options.seeds), episodes=10, agents=10)
        curves = np.array([[row.value for row in each.metrics] for each in found])
        shares = (curves - rest) / (max(values) - rest)
        for seed, each in enumerate(shares):
            what = f"{name}: % of the way by episode, seed {seed}"
            shown = " ".join(f"{100 * share:.1f}" for share in each)
            report.row(what, shown)
            print(f"{what}: {shown}", file=sys.stderr, flush=True)  # the whole takes minutes
        end, least = float(shares[:, -3:].mean()), float(shares.min())
        report.claim(f"{name}: mean of the last three", end, LEARNED, side="at least")
        report.claim(f"{name}: least of all episodes", least, 0.0, side="at least")
        jax.clear_caches()


def options_here() -> argparse.ArgumentParser:
    parser = options_of(__doc__)
    parser.add_argument("--only", type=names_of(PROBLEMS), help="problems, with commas")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds of learners")
    return parser


if __name__ == "__main__":
    run_sections("unseen", options_here(), {"plans": plans, "learned": learned}, quick=("plans",))
