"""The speed of this tree against another one, such as a worktree of an earlier commit.

    git worktree add ../before <commit>
    python benchmarks/versus.py ../before

Each task runs in processes of its own, by turns in one tree and in the other, and counts with the
least processor time of its runs, all of them on one core: on a machine that does other work, too,
that is the fairest figure. Tasks use names that both trees have. Compilation is timed as well: the
first plan of the rooms, with no compiled programs on disk.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from _report import Report

MOST = 1.05
"""Greatest ratio of this tree's time to the other's."""

START = """
import inspect, sys, time
import jax, jax.numpy as jnp, numpy as np, equinox as eqx
import mufield as mf

def least(run, times):
    run()
    found = []
    for _ in range(times):
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    print(min(found))

def ascent(system, sweeps, points):
    flow, motion = system.reveal()
    moves = mf.MoveFlow(flow, motion, system.problem.actions.points(points))
    method = mf.MirrorAscent(sweeps, bound=False)
    return lambda: jax.block_until_ready(method.solve(moves).value)
"""

TASKS = {
    "value and gradient, rooms": """
rooms = mf.make("four-rooms")
flow, motion = rooms.reveal()
raw = jax.random.normal(jax.random.key(0), (20, 104, 2))
value = jax.jit(jax.value_and_grad(lambda x: flow.value(
    mf.Profile.stacked(mf.TablePolicy.deterministic(jnp.tanh(x)), 20), motion)))
least(lambda: [jax.block_until_ready(value(raw)) for _ in range(50)], 7)
""",
    "mirror ascent, rooms": 'least(ascent(mf.make("four-rooms"), 200, 9), 5)',
    "mirror ascent, city": """
if "city" not in (entry.name for entry in mf.catalogue()):  # earlier trees had it in the package
    import suite
least(ascent(mf.make("city"), 80, 9), 5)
""",
    "mirror ascent, Manhattan": 'least(ascent(mf.make("manhattan"), 60, 5), 3)',
    "a million cells": """
grid = mf.Grid.box(0.0, 1000.0, (1000, 1000))
start = jnp.full(grid.n_cells, 1e-6)
space = {"space" if "space" in inspect.signature(mf.Problem).parameters else "grid": grid}
problem = mf.Problem(**space, actions=mf.Box(-1.0, 1.0, 2), horizon=3, noise=0.25, max_move=1.0,
    initial=start, reward=lambda s, a, mu: -mu.here)
flow = mf.Flow(problem)
value = jax.jit(jax.value_and_grad(lambda k: flow.value(
    lambda s, mu, h: jnp.tanh(k * jnp.sin(s / 50)), lambda s, a, mu: s + a)))
least(lambda: jax.block_until_ready(value(jnp.asarray(0.5))), 2)
""",
    "a million agents": """
from mufield.finite.system import FiniteSystem
rooms = mf.make("four-rooms", horizon=5)
crowd = FiniteSystem.of(rooms, 1_000_000)
policy = mf.random_policy(rooms.problem)
least(lambda: crowd.evaluate(policy, jax.random.key(0)).values.block_until_ready(), 3)
""",
    "15 episodes of the rooms, warm": """
rooms = mf.make("four-rooms")
learner = mf.M3UCRL(rooms.problem)
least(lambda: mf.learn(rooms, learner, episodes=15, progress=False), 1)
""",
    "first plan of the rooms, with compilation": """
rooms = mf.make("four-rooms")
learner = mf.M3UCRL(rooms.problem)
began = time.process_time()
learner.ask(learner.init(jax.random.key(0)))
print(time.process_time() - began)
""",
}


def seconds(tree: Path, task: str) -> float:
    """Runs a task in a tree."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", START + TASKS[task]],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(Path(__file__).parent)]),
            "OPENBLAS_NUM_THREADS": "1",
            "PJRT_NPROC": "1",
            "MUFIELD_COMPILATION_CACHE": "off",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise SystemExit(f"{task} failed in {tree}:\n{found.stderr[-2000:]}")
    return float(found.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, help="the other tree")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="tasks whose names contain this")
    parser.add_argument("--quick", action="store_true", help="one round of the first two tasks")
    args = parser.parse_args()
    here = Path(__file__).resolve().parents[1]
    names = [name for name in TASKS if args.only in name]
    names, rounds = (names[:2], 1) if args.quick else (names, args.rounds)
    report = Report("versus")
    for name in names:
        times: dict[Path, list[float]] = {args.before.resolve(): [], here: []}
        for _ in range(rounds):
            for tree, found in times.items():
                found.append(seconds(tree, name))
        then, now = (min(found) for found in times.values())
        print(f"{name}: {then:.3g} s before, {now:.3g} s now", flush=True)
        report.row(name, f"{then:.3g} s | {now:.3g} s | {now / then:.3f}")
        report.claim(f"{name}: time, as a share of before", now / then, MOST, side="at most")
    report.show()


if __name__ == "__main__":
    main()
