"""How near the flow is to what many agents earn, who stand anywhere in their cells, and its cost.

The flow of the paper moves the mass of a cell from its centre; `Flow(problem, within_cells=True)`
follows where in their cells agents stand. Both are compared with N agents, in the four rooms, the
swarm, and a city whose noise is 0.3 and 1 cell (0.12 and 0.4 in cells that are 0.4 wide), under
policies that differ: at rest, at random, a whirl that differs within cells, a deterministic table
that was planned with the flow from cell centres, and so exploits its error where that helps, and
the randomised plan of mirror ascent.

1. The error of each flow, as a share of J's range over these policies: J of the flow minus the
   mean J of N agents. At 10,000 agents finite N has a share of it, too: an entropy is biased by
   about cells / 2N a step. With 100,000 agents it is a tenth.
2. The cost: processor time of an episode's flow within cells, over that of the flow from centres,
   for the table and for the plan of mirror ascent; for the whirl, which is asked at four points of
   each cell, without a bar.

    python benchmarks/limit.py                      # minutes of processor time
    python benchmarks/limit.py --only swarm         # one of the places
    python benchmarks/limit.py --quick              # the four rooms, a few policies, 10,000 agents
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from _report import Report

import mufield
from mufield import Flow, MirrorAscent, MoveFlow, SimulatedSystem, Table, as_profile
from mufield.finite.system import FiniteSystem
from mufield.planning import BPTT

NEAR = 0.01
"""Greatest error, as a share of J's range over policies."""

COST = 3.0
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


def cost(functions: Sequence[Callable[[], Any]], rounds: int = 9) -> float:
    """Processor time of the second function over that of the first, called in turns."""
    seconds: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for function, each in zip(functions, seconds, strict=True):
            began = time.process_time()
            jax.block_until_ready(function())
            if number:  # the first call compiles
                each.append(time.process_time() - began)
    return statistics.median(seconds[1]) / statistics.median(seconds[0])


def compare(report: Report, place: str, quick: bool) -> tuple[dict[int, float], float]:
    """The largest error within cells by number of agents, and the largest cost."""
    name, options = PLACES[place]
    system = mufield.make(name, **options)
    flow, motion = system.reveal()
    within = Flow(flow.problem, within_cells=True)
    chosen = policies(system, quick)
    rollout = eqx.filter_jit(Flow.rollout)
    values = {
        policy: [float(rollout(each, profile, motion).value) for each in (flow, within)]
        for policy, profile in chosen.items()
    }
    sizes = list(EPISODES)[:1] if quick else list(EPISODES)
    means: dict[int, dict[str, float]] = {size: {} for size in sizes}
    for size in sizes:
        crowd = FiniteSystem.of(system, size)
        for policy, profile in chosen.items():
            played = crowd.evaluate(profile, jax.random.key(1), episodes=EPISODES[size])
            means[size][policy] = float(jnp.mean(played.values))
        print(f"{place}: {size:,} agents played", flush=True)
    extent = max(means[10_000].values()) - min(means[10_000].values())
    for policy, both in values.items():
        agents = ", ".join(f"{means[size][policy]:.2f} ({size:,} agents)" for size in sizes)
        report.row(
            f"{place}, {policy}: J", f"{both[0]:.2f} centres, {both[1]:.2f} within, {agents}"
        )
        off = [100 * (value - means[sizes[-1]][policy]) / extent for value in both]
        report.row(
            f"{place}, {policy}: error in % of the range {extent:.1f}",
            f"{off[0]:.2f} from centres, {off[1]:.2f} within cells",
        )
    costs = {
        policy: cost(
            [
                lambda each=each, policy=policy: rollout(each, chosen[policy], motion).value
                for each in (flow, within)
            ]
        )
        for policy in ("whirl", "table", "mirror")
        if policy in chosen
    }
    for policy, found in costs.items():
        report.row(f"{place}, {policy}: times the cost", f"{found:.2f}")
    errors = {
        size: max(abs(values[policy][1] - each[policy]) for policy in chosen) / extent
        for size, each in means.items()
    }
    return errors, max(costs[policy] for policy in costs.keys() - {"whirl"})


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    parser.add_argument("--only", nargs="+", choices=PLACES, default=list(PLACES))
    given = parser.parse_args()
    quick, places = given.quick, given.only
    mufield.enable_compilation_cache()
    report = Report("limit")
    costs = []
    for place in places[:1] if quick else places:
        errors, times = compare(report, place, quick)
        costs.append(times)
        for size, error in errors.items():
            report.claim(
                f"{place}: largest error of the flow within cells at {size:,} agents, share of the "
                "range of J",
                error,
                NEAR,
                side="at most",
            )
    report.claim("times the cost of the flow from centres", max(costs), COST, side="at most")
    report.show()


if __name__ == "__main__":
    main()
