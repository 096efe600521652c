"""Maps of millions of cells: open cells by a stencil, the others by tables.

1. Against tables for all cells (``WindowSettings(stencil=False)``): four rooms of 1,000 x 1,000
   cells, ten steps, value and gradient of J with respect to a table of actions. At least 4 times
   faster, at most half the peak memory, built at least 5 times faster, the same J. Each side is a
   process of its own, which is told to compute in turn.
2. A map of 4,000 x 2,500 cells: value and gradient of five steps within 20 GB.

Run ``python benchmarks/scale.py``, or with ``--quick`` for small maps and less than a minute; the
second claim is then left out.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FASTER, LESS_MEMORY, BUILT_FASTER = 4.0, 0.5, 5.0
SAME = 1e-5
MOST_GIGABYTES = 20.0
NOISE_STD = 0.25
ROUNDS = 3


# What a worker computes. JAX is imported late: only workers need it.


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


def objective_of(flow: Any) -> tuple[Callable[..., Any], Any]:
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


def work(options: argparse.Namespace) -> None:
    """A worker: builds a flow, then computes each time a line comes in; answers in JSON."""
    import jax

    import mufield as mf

    shape = tuple(int(n) for n in options.map.split("x"))
    problem = rooms((shape[0], shape[1]), options.horizon)
    settings = mf.flow.WindowSettings(stencil=options.worker == "stencil")
    began = time.perf_counter()
    flow = mf.Flow(problem, settings=settings)
    jax.block_until_ready([x for x in jax.tree.leaves(flow) if isinstance(x, jax.Array)])
    built = time.perf_counter() - began
    objective, raw = objective_of(flow)
    value, _ = jax.block_until_ready(objective(raw))
    tell(built=built, value=float(value))
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
    """A process that computes the same on demand."""

    def __init__(self, kind: str, cells: str, horizon: int):
        """Starts it, and waits until it is ready.

        Args:
            kind: "tables" or "stencil".
            cells: Shape of the map, as "1000x1000".
            horizon: Number of steps.
        """
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", kind, "--map", cells]
        self.process = subprocess.Popen(
            [*command, "--horizon", str(horizon)],
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


def against_tables(report: Any, cells: str, horizon: int, rounds: int) -> None:
    """The first claims."""
    from _report import duration

    sides = {kind: Side(kind, cells, horizon) for kind in ("tables", "stencil")}
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
    """Starts workers, or is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    for name in ("worker", "map"):
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    parser.add_argument("--horizon", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    from _report import Report

    report = Report("scale")
    if options.quick:
        against_tables(report, "250x250", 4, 2)
    else:
        against_tables(report, "1000x1000", 10, ROUNDS)
        largest(report, "4000x2500", 5)
    report.show()


if __name__ == "__main__":
    main()
