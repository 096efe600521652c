"""How fast exported policies decide, beside calling the policy in JAX.

For 1, 100 and 10,000 agents in the four rooms, a randomised policy as the default planner makes it
and a network that sees the population: the NumPy reader against the policy in JAX, compiled, and
called as it stands with ``jax.vmap``. All draw or compute one action
for each agent. Then a process of its own that starts, loads a policy and decides for one agent:
the reader against ``mufield.load_policy`` and JAX.

Claims: such a process starts within 0.3 s (of processor time, which it needs alone; the clock on
the wall also counts what else the machine does, and is shown), 10,000 agents decide within 20 ms,
and the reader's outputs are within 1e-5 of the policy's on random inputs.

Run ``python benchmarks/deploy.py``, or with ``--quick`` for less than a minute.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _report import Report, Timing, duration, options_of, run_sections, time_side_by_side

import mufield as mf
from mufield.deploy.export import export_policy
from mufield.deploy.reader import DeployedPolicy
from mufield.finite.draws import drawn
from mufield.space.measure import mean_field_at

START = 0.3
DECISION = 0.020
SAME = 1e-5
SIZES = (1, 100, 10_000)
STEP = 3
ALONE = "mufield_reader"

READER = """
from mufield.deploy.reader import DeployedPolicy
policy = DeployedPolicy.load("policy.safetensors")
policy.act([[0.5, 0.5]], policy.histogram([[0.5, 0.5]]), step=3)
"""
IN_JAX = """
import jax, jax.numpy as jnp, mufield as mf
from mufield.space.measure import mean_field_at
profile, grid = mf.load_policy("learned.policy"), mf.make("four-rooms").problem.grid
state = jnp.array([0.5, 0.5])
law = profile.at(3).law(state, mean_field_at(grid, mf.point_mass(grid, 0, 0), state))
law.sample(jax.random.key(0)).block_until_ready()
"""


def profiles(problem: mf.Problem) -> dict[str, mf.Profile]:
    """The policies that are compared."""
    horizon, cells = problem.horizon, problem.grid.n_cells
    moves = mf.Box(-1.0, 1.0, 2).points(9)
    weights = jax.random.dirichlet(jax.random.key(0), jnp.full(len(moves), 0.1), (horizon, cells))
    return {
        "randomised": mf.Profile.stacked(mf.TablePolicy.mixing(moves, weights), horizon),
        "network": mf.policies.network_profile(problem, jax.random.key(1), mu=mf.policies.Pooled()),
    }


def deciders(
    directory: Path, profile: mf.Profile, problem: mf.Problem, agents: int
) -> dict[str, Callable[[], Any]]:
    """Functions that decide for the same agents in three ways."""
    grid, rng = problem.grid, np.random.default_rng(agents)
    states = np.asarray(mf.sample(grid, mf.uniform(grid), jax.random.key(2), agents))
    mass = rng.dirichlet(np.ones(grid.n_cells)).astype(np.float32)
    chance = rng.random(agents, dtype=np.float32)
    policy = DeployedPolicy.load(directory / "policy.safetensors")

    def in_jax(states: Any, mass: Any, step: Any, chance: Any) -> Any:
        now = profile.at(step)
        return jax.vmap(lambda s, c: drawn(now.law(s, mean_field_at(grid, mass, s)), c))(
            states, chance
        )

    compiled, arrays = jax.jit(in_jax), tuple(jnp.asarray(a) for a in (states, mass))
    rest = (jnp.asarray(STEP), jnp.asarray(chance))
    return {
        "NumPy reader": lambda: policy.act(states, mass, step=STEP, rng=rng),
        "JAX, compiled": lambda: jax.block_until_ready(compiled(*arrays, *rest)),
        "JAX, as it stands": lambda: jax.block_until_ready(in_jax(*arrays, STEP, rest[1])),
    }


def decisions(report: Report, options: argparse.Namespace) -> None:
    """Times all ways of deciding, and how far the reader's outputs are from JAX."""
    problem = mf.make("four-rooms").problem
    slowest = difference = 0.0
    for kind, profile in profiles(problem).items():
        with tempfile.TemporaryDirectory() as place:
            directory = Path(place)
            difference = max(difference, export_policy(profile, problem, directory).difference)
            for agents in SIZES:
                sides = deciders(directory, profile, problem, agents)
                times = time_side_by_side(sides, rounds=3 if options.quick else 25)
                report.row(f"{kind} policy, {agents:,} agent{'s' if agents > 1 else ''}", "")
                for name, timing in times.items():
                    ratio = times["JAX, compiled"].best / timing.best
                    report.row(f"  {name}", f"{timing}, {ratio:.2g} times as fast as compiled JAX")
            slowest = max(slowest, times["NumPy reader"].best)
    text = f"NumPy reader: seconds for {max(SIZES):,} agents, the slower policy"
    report.claim(text, slowest, DECISION, side="at most")
    report.claim("largest difference of its outputs from JAX", difference, SAME, side="at most")


def start(report: Report, options: argparse.Namespace) -> None:
    """Times whole processes."""
    problem = mf.make("four-rooms").problem
    profile = profiles(problem)["network"]
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        export_policy(profile, problem, directory)
        mf.save_policy(directory / "learned.policy", profile)
        codes = {
            "the reader, within mufield": READER,
            "the reader, as a copied file": READER.replace("mufield.deploy.reader", ALONE),
            "import numpy alone": "import numpy",
            "JAX": IN_JAX,
        }
        starts: dict[str, list[tuple[float, float]]] = {name: [] for name in codes}
        for _ in range(3 if options.quick else 10):
            for name, code in codes.items():
                starts[name].append(_started(code, directory))
    report.row("a process that starts, loads and decides for one agent", "")
    for name, pairs in starts.items():
        wall, processor = (Timing(seconds) for seconds in zip(*pairs, strict=True))
        report.row(f"  {name}", f"{wall}, processor time {duration(processor.best)}")
    started = min(processor for _, processor in starts["the reader, within mufield"])
    text = "reader: processor seconds to start, load and decide"
    report.claim(text, started, START, side="at most")


def _started(code: str, directory: Path) -> tuple[float, float]:
    """Seconds on the wall and of the processor that a process takes from start to end."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=directory, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    sections = {"decisions": decisions, "start": start}
    run_sections("deploy", options_of(__doc__), sections)


if __name__ == "__main__":
    main()
