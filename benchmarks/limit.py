"""How near the flow is to what many agents earn, who stand anywhere in their cells, and its cost.

The flow of the paper moves the mass of a cell from its centre; `Flow(problem, within_cells=True)`
follows where in their cells agents stand. Both are compared with N agents, in the four rooms, the
swarm, and a city whose noise is 0.3 and 1 cell (0.12 and 0.4 in cells that are 0.4 wide), under
policies that differ: at rest, at random, a deterministic table that was planned with the flow from
cell centres, and so exploits its error where that helps, and the randomised plan of mirror ascent.

1. The error of each flow, as a share of J's range over these policies: J of the flow minus the
   mean J of N agents. At 10,000 agents finite N has a share of it, too: an entropy is biased by
   about cells / 2N a step. With 100,000 agents it is a tenth.
2. The cost: processor time of an episode's flow within cells, over that of the flow from centres,
   for the table and for the plan of mirror ascent.

Run ``python benchmarks/limit.py``; ``--quick`` leaves out the swarm's and the city's plans and
100,000 agents.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from _report import Report, parse_quick

import mufield
from mufield import Flow, MirrorAscent, MoveFlow, SimulatedSystem, Table
from mufield.finite.system import FiniteSystem
from mufield.policies.base import as_profile

NEAR = 0.01
"""Greatest error, as a share of J's range over policies."""

COST = 3.0
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
    rest = jnp.asarray(problem.actions.rest)
    moves = problem.actions.points(5 if problem.grid.dim == 2 else 15)
    found = {
        "rest": as_profile(lambda state, mu, step: rest, problem.horizon),
        "random": as_profile(mufield.random_policy(problem), problem.horizon),
        "mirror": MirrorAscent(sweeps=20 if quick else 100)
        .solve(MoveFlow(flow, motion, moves))
        .profile,
    }
    if not quick:
        found["table"] = mufield.plan(flow, motion, Table()).profile
    return found


def processor_time(function: Callable[[], Any], rounds: int = 7) -> float:
    """Seconds of processor time of one call: other work on the machine counts less."""
    jax.block_until_ready(function())
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        jax.block_until_ready(function())
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


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
    agents = {
        size: {
            policy: FiniteSystem.of(system, size)
            .evaluate(profile, jax.random.key(1), episodes=episodes)
            .values
            for policy, profile in chosen.items()
        }
        for size, episodes in ((10_000, 4 if quick else 10), (100_000, 0 if quick else 2))
        if episodes
    }
    means = {
        size: {policy: float(jnp.mean(found)) for policy, found in each.items()}
        for size, each in agents.items()
    }
    extent = max(means[10_000].values()) - min(means[10_000].values())
    for policy, (centred, followed) in values.items():
        line = f"flow {centred:.2f}, within cells {followed:.2f}"
        for size, each in means.items():
            spread = float(jnp.std(agents[size][policy], ddof=1)) / len(agents[size][policy]) ** 0.5
            line += f", {size:,} agents {each[policy]:.2f} ± {2 * spread:.2f}"
        report.row(f"{place}, {policy}: J", line)
        off = [100 * (value - means[10_000][policy]) / extent for value in (centred, followed)]
        report.row(
            f"{place}, {policy}: error in % of the range {extent:.1f}",
            f"{off[0]:.2f} from centres, {off[1]:.2f} within cells",
        )
    costs = []
    for policy in chosen.keys() & {"table", "mirror"}:
        profile = chosen[policy]
        seconds = [
            processor_time(lambda each=each, profile=profile: rollout(each, profile, motion).value)
            for each in (flow, within)
        ]
        costs.append(seconds[1] / seconds[0])
        report.row(f"{place}, {policy}: times the cost", f"{costs[-1]:.2f}")
    errors = {
        size: max(abs(values[policy][1] - each[policy]) for policy in chosen) / extent
        for size, each in means.items()
    }
    return errors, max(costs)


def main() -> None:
    """Runs the comparison."""
    quick = parse_quick(__doc__)
    report = Report("limit")
    costs = []
    for place in list(PLACES)[:1] if quick else PLACES:
        errors, cost = compare(report, place, quick)
        costs.append(cost)
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
