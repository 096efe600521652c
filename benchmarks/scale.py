"""Maps of millions of cells: on one device by a stencil, and split over processes.

1. Against the flow by tables alone (``Flow(problem, stencil=False)``), which was the only way
   before: four rooms of 1,000 x 1,000 cells, ten steps, value and gradient of J with respect to a
   table of actions. At least 4 times faster, at most half the peak memory, built at least 5 times
   faster, the same J. Each side is a process of its own, which is told to compute in turn.
2. A map of 4,000 x 2,500 cells: value and gradient of five steps within 20 GB.
3. `ShardedFlow` in two processes (``jax.distributed``) against `Flow` in one, on the same cores:
   the same J and gradient, at most 1.3 times slower. The policy is a pooled table. Shown, not
   claimed: what a step's exchange costs alone, and weak scaling, which is one process on one core
   against two on a core each with twice the cells.

Run ``python benchmarks/scale.py``, or with ``--quick`` for small maps and less than a minute; the
second claim is then left out.
"""

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FASTER, LESS_MEMORY, BUILT_FASTER = 4.0, 0.5, 5.0
SAME = 1e-5
MOST_GIGABYTES = 20.0
SLOWER = 1.3
NOISE_STD = 0.25
BLOCKS = (20, 20)
ROUNDS = 3


# What a worker computes. JAX is imported late: a worker chooses its cores and processes first.


def rooms(shape: tuple[int, int], horizon: int) -> Any:
    """Four rooms of unit cells, doors a tenth of the walls wide."""
    import numpy as np

    import mufield as mf

    walls = np.zeros(shape, dtype=bool)
    middle = [n // 2 for n in shape]
    walls[middle[0], :] = walls[:, middle[1]] = True
    for part in (1, 3):
        across, along = (slice(part * n // 4, part * n // 4 + max(1, n // 10)) for n in shape)
        walls[middle[0], along] = walls[across, middle[1]] = False
    grid = mf.Grid.box(0.0, np.array(shape, dtype=float), shape, walls=walls)
    return mf.Problem(
        grid=grid,
        actions=mf.Box(-1.0, 1.0, dim=2),
        reward=avoid_crowds,
        horizon=horizon,
        initial=mf.uniform(grid),
        noise=NOISE_STD,
        max_move=1.0,
        pay_end=True,
    )


def avoid_crowds(state: Any, action: Any, mu: Any) -> Any:
    """Empty cells pay."""
    import mufield as mf

    return -mf.log_mass(mu.density_here)


def walk(state: Any, action: Any, mu: Any) -> Any:
    """Agents go where they want."""
    return state + action


def by_cell(flow: Any) -> tuple[Callable[..., Any], Any]:
    """Value and gradient with respect to one action for every cell and step."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    import mufield as mf

    problem = flow.problem

    def value(raw: Any, flow: Any) -> Any:
        policy = mf.TablePolicy.deterministic(jnp.tanh(raw))
        return flow.value(mf.Profile.stacked(policy, problem.horizon), walk)

    both = eqx.filter_jit(jax.value_and_grad(value))
    raw = jax.random.normal(jax.random.key(1), (problem.horizon, problem.grid.n_cells, 2))
    return (lambda raw: both(raw, flow)), raw


def by_block(flow: Any) -> tuple[Callable[..., Any], Any]:
    """Value and gradient with respect to one action for every block of cells and step."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    import mufield as mf

    problem = flow.problem

    def value(raw: Any, flow: Any) -> Any:
        policy = mf.PooledTable(jnp.tanh(raw), problem.grid)
        return flow.value(mf.Profile.stacked(policy, problem.horizon), walk)

    both = eqx.filter_jit(jax.value_and_grad(value))
    raw = jax.random.normal(jax.random.key(1), (problem.horizon, *BLOCKS, 2))
    return (lambda raw: both(raw, flow)), raw


def exchange_alone(flow: Any) -> tuple[Callable[..., Any], Any]:
    """What `ShardedFlow` sends in one episode, forth and back, without anything computed."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    ground, axis = flow.slices.ground, flow.mesh.axis_names[0]
    devices = len(flow.mesh.devices)
    up = [(i, i + 1) for i in range(devices - 1)]

    def sent(rows: Any) -> Any:
        def step(carry: Any, _: None) -> tuple[Any, Any]:
            below = jax.lax.ppermute(carry, axis, up)
            above = jax.lax.ppermute(carry, axis, [(j, i) for i, j in up])
            return below + above, jax.lax.psum(jnp.sum(carry), axis)

        return jax.lax.scan(step, rows, None, length=2 * flow.problem.horizon)[1]

    run = jax.shard_map(
        sent, mesh=flow.mesh, in_specs=PartitionSpec(axis), out_specs=PartitionSpec()
    )
    shape = (ground.reach[0] * devices, ground.room[1])
    rows = flow._spread(jnp.ones(shape, dtype=flow.slices.initial.dtype))
    compiled = jax.jit(run)
    return (lambda rows: (compiled(rows)[0], rows)), rows


def work(options: argparse.Namespace) -> None:
    """A worker: builds a flow, then computes each time a line comes in; answers in JSON."""
    if options.cores:
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    import jax
    import numpy as np

    import mufield as mf

    if options.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{options.port}", options.processes, options.process)
    shape = tuple(int(n) for n in options.map.split("x"))
    problem = rooms((shape[0], shape[1]), options.horizon)
    began = time.perf_counter()
    if options.worker in ("tables", "stencil"):
        flow: Any = mf.Flow(problem, stencil=options.worker == "stencil")
    else:
        flow = mf.ShardedFlow(problem)
    jax.block_until_ready([x for x in jax.tree.leaves(flow) if isinstance(x, jax.Array)])
    built = time.perf_counter() - began
    objectives = {"cells": by_cell, "blocks": by_block, "exchange": exchange_alone}
    objective, raw = objectives[options.policy](flow)
    value, gradient = jax.block_until_ready(objective(raw))
    size = float(np.linalg.norm(np.asarray(gradient))) if options.policy == "blocks" else 0.0
    tell(built=built, value=float(value), gradient=size)
    for _ in sys.stdin:
        began = time.perf_counter()
        jax.block_until_ready(objective(raw))
        seconds = time.perf_counter() - began
        tell(seconds=seconds, gigabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


def tell(**figures: float) -> None:
    """One line for whoever started this worker."""
    print(json.dumps(figures), flush=True)


# Who starts workers.


class Side:
    """One or more processes that compute the same on demand."""

    def __init__(self, kind: str, cells: str, horizon: int, *, policy: str, **more: Any):
        """Starts them, and waits until they are ready.

        Args:
            kind: "tables", "stencil" or "sharded".
            cells: Shape of the map, as "1000x1000".
            horizon: Number of steps.
            policy: "cells", "blocks" or "exchange".
            **more: ``processes``, and ``cores``: of each process, comma-separated.
        """
        count, cores = more.get("processes", 1), more.get("cores", [""] * 2)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", kind, "--map", cells]
        command += ["--horizon", str(horizon), "--policy", policy, "--port", str(port)]
        self.processes = [
            subprocess.Popen(
                [*command, "--processes", str(count), "--process", str(i), "--cores", cores[i]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(count)
        ]
        self.ready = self._answers()[0]
        self.seconds: list[float] = []
        self.gigabytes = 0.0

    def _answers(self) -> list[dict[str, float]]:
        return [self._answer(process) for process in self.processes]

    def _answer(self, process: "subprocess.Popen[str]") -> dict[str, float]:
        for line in process.stdout or ():
            if line.startswith("{"):  # The library for collectives prints lines of its own.
                found: dict[str, float] = json.loads(line)
                return found
        self.end()
        sys.exit("a worker ended before it answered; its error stands above")

    def run(self) -> None:
        """Computes once."""
        for process in self.processes:
            if process.stdin:
                process.stdin.write("\n")
                process.stdin.flush()
        answers = self._answers()
        self.seconds.append(max(answer["seconds"] for answer in answers))
        self.gigabytes = max(answer["gigabytes"] for answer in answers)

    @property
    def best(self) -> float:
        """Seconds of the fastest round."""
        return min(self.seconds)

    def end(self) -> None:
        """Ends the processes. They wait for each other, so all are told first."""
        for process in self.processes:
            if process.stdin:
                process.stdin.close()
        for process in self.processes:
            process.wait()


def in_turn(sides: list[Side], rounds: int) -> None:
    """Lets sides compute in turns, so that a slow spell of the machine meets all of them."""
    for _ in range(rounds):
        for side in sides:
            side.run()
    for side in sides:
        side.end()


def against_tables(report: Any, cells: str, horizon: int, rounds: int) -> None:
    """The first claims."""
    from _report import duration

    sides = {kind: Side(kind, cells, horizon, policy="cells") for kind in ("tables", "stencil")}
    in_turn(list(sides.values()), rounds)
    tables, stencil = sides["tables"], sides["stencil"]
    count = cells_of(cells) * horizon
    for name, side in sides.items():
        report.row(
            f"{cells} cells, {horizon} steps, by {name}",
            f"built in {duration(side.ready['built'])}, value and gradient {duration(side.best)} "
            f"({side.best / count * 1e9:.0f} ns a cell and step), peak {side.gigabytes:.2f} GB",
        )
    report.claim(
        "value and gradient: times faster than by tables",
        tables.best / stencil.best,
        FASTER,
        side="at least",
    )
    report.claim(
        "peak memory, as a share of that by tables",
        stencil.gigabytes / tables.gigabytes,
        LESS_MEMORY,
        side="at most",
    )
    report.claim(
        "built: times faster than tables",
        tables.ready["built"] / stencil.ready["built"],
        BUILT_FASTER,
        side="at least",
    )
    report.claim(
        "relative difference of J",
        abs(stencil.ready["value"] / tables.ready["value"] - 1),
        SAME,
        side="at most",
    )


def cells_of(cells: str) -> int:
    """Number of cells of a map given as "1000x1000"."""
    across, along = cells.split("x")
    return int(across) * int(along)


def largest(report: Any, cells: str, horizon: int) -> None:
    """The second claim."""
    from _report import duration

    side = Side("stencil", cells, horizon, policy="cells")
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


def two_processes(report: Any, cells: str, horizon: int, rounds: int, *, weak: bool) -> None:
    """The third claim, and what it says about more than one computer."""
    from _report import duration

    one = Side("stencil", cells, horizon, policy="blocks")
    two = Side("sharded", cells, horizon, policy="blocks", processes=2)
    in_turn([one, two], rounds)
    report.row(f"{cells} cells, {horizon} steps: one process", duration(one.best))
    report.row("two processes on the same cores", duration(two.best))
    report.claim(
        "two processes against one: relative difference of J and of its gradient's norm",
        max(abs(two.ready[x] / one.ready[x] - 1) for x in ("value", "gradient")),
        SAME,
        side="at most",
    )
    report.claim(
        "two processes against one on the same cores: times slower",
        two.best / one.best,
        SLOWER,
        side="at most",
    )
    alone = Side("sharded", cells, horizon, policy="exchange", processes=2)
    in_turn([alone], rounds)
    report.row(
        "exchange of margins alone, forth and back, for each step",
        f"{duration(alone.best / horizon)}, {alone.best / two.best:.1%} of the whole",
    )
    if not weak:
        return
    across, along = cells.split("x")
    single = Side("sharded", cells, horizon, policy="blocks", cores=["0"])
    double = Side(
        "sharded",
        f"{2 * int(across)}x{along}",
        horizon,
        policy="blocks",
        processes=2,
        cores=["0", "1"],
    )
    in_turn([single, double], rounds)
    report.row(
        f"weak scaling: {cells} cells on one core, twice as many on two",
        f"{duration(single.best)}, {duration(double.best)}: {single.best / double.best:.0%}",
    )


def main() -> None:
    """Starts workers, or is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    for name in ("worker", "map", "policy", "cores"):
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    for name in ("horizon", "processes", "process", "port"):
        parser.add_argument(f"--{name}", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    from _report import Report

    report = Report("scale")
    if options.quick:
        against_tables(report, "250x250", 4, 2)
        two_processes(report, "400x250", 4, 2, weak=False)
    else:
        against_tables(report, "1000x1000", 10, ROUNDS)
        two_processes(report, "1000x1000", 10, ROUNDS, weak=True)
        largest(report, "4000x2500", 5)
    report.show()


if __name__ == "__main__":
    main()
