"""Constraints on the population: what they cost, proofs, and learning under them.

Sections, each a table and claims; name some to run only those:

- ``known``: the four rooms with at most 3% of the agents in each door, with known motion: whether
  the plan satisfies the constraint, how wide the bracket of the constrained optimum is, what the
  constraint costs and adds to planning time; the same for the entropy of the swarm; tables and
  networks.
- ``infeasible``: a constraint that no policy satisfies, and the time until that is proved.
- ``rooms``: learning the capped rooms, 20 episodes: in how many episodes the violation was more
  than 1% of the limit, and the J of the last episodes beside the certified optimum. With models
  sampled from the posterior (the default), and without pessimism. And what constraints add to the
  time of a learner's plan, on the data of the first seed.
- ``swarm``: the same for a swarm that must keep 95% of the greatest entropy.

Run ``python benchmarks/constraints.py [section ...]``; ``--quick`` ends within a minute.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Report, duration, learn_many, names_of, options_of, run_sections

import mufield
from mufield import MirrorAscent, MoveFlow, Network, Table
from mufield.constraints import InfeasibleError, mass_at_least
from mufield.learning import ModelSamples

CAP = 0.03
PESSIMISM = {"model samples": ModelSamples(), "no pessimism": ModelSamples(draws=0)}
LAST = 5
"""The final policy is judged by its last episodes."""
WORSE, WORST = 0.01, 0.05
"""Violations that count, and that must not be, as shares of the limit."""


def moves_of(system: mufield.SimulatedSystem) -> MoveFlow:
    flow, motion = system.reveal()
    return MoveFlow(flow, motion, system.problem.actions.points(9))


def seconds(function: Callable[[], jax.Array]) -> float:
    """The least of three runs, after one that compiles."""
    function()
    spent = []
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready(function())
        spent.append(time.perf_counter() - began)
    return min(spent)


@eqx.filter_jit
def planned(flow: mufield.Flow, motion: Callable[..., jax.Array]) -> jax.Array:
    """J of a plan as learners make it."""
    actions = flow.problem.actions
    return mufield.MirrorPlanner().plan(flow, motion, actions, jax.random.key(0), None).value


def known(report: Report, options: argparse.Namespace) -> None:
    sweeps = 100 if options.quick else 300
    for name, free, capped in (
        ("rooms", mufield.make("four-rooms"), mufield.make("four-rooms-doors", door_cap=CAP)),
        (
            "swarm",
            mufield.make("swarm", initial="uniform", horizon=100),
            mufield.make("swarm-spread"),
        ),
    ):
        found = MirrorAscent(sweeps).solve(moves_of(capped))
        without = MirrorAscent(sweeps).solve(moves_of(free))
        value, upper = float(found.value), float(found.upper)
        width = (upper - value) / abs(value)
        report.row(f"{name}: constrained optimum", f"{value:.3f} to {upper:.3f}")
        best, bound = float(without.value), float(without.upper)
        report.row(f"{name}: optimum without constraints", f"{best:.3f} to {bound:.3f}")
        (part,) = capped.problem.constraints.parts
        margin = part.scale * float(jnp.min(found.margins))
        report.row(f"{name}: least margin", f"{margin:.2g}, where the limit is {part.scale:.3g}")
        if name == "rooms" or not options.quick:
            report.claim(f"{name}: violation by the plan", max(0.0, -margin), 1e-4, side="at most")
        if not options.quick:
            report.claim(f"{name}: width of the bracket", width, 0.003, side="at most")
        if name == "rooms" and not options.quick:
            for kind in (Table(), Network()):
                plan = mufield.plan(*capped.reveal(), kind)
                report.row(
                    f"{name}: {type(kind).__name__.lower()}, J | least margin",
                    f"{float(plan.value):.2f} | {float(jnp.min(plan.margins)):.2%}",
                )
        spent = [seconds(partial(planned, *system.reveal())) for system in (free, capped)]
        report.row(f"{name}: a plan without and with constraints", ", ".join(map(duration, spent)))
        claim = f"{name}: planning time with constraints over without"
        report.claim(claim, spent[1] / spent[0], 2.0, side="at most")


def infeasible(report: Report, options: argparse.Namespace) -> None:
    rooms = mufield.make("four-rooms")
    grid = rooms.problem.grid
    motion = rooms.reveal()[1]
    problem = mufield.Problem(
        space=grid,
        actions=rooms.problem.actions,
        reward=rooms.problem.reward,
        horizon=20,
        initial=rooms.problem.initial,
        noise=rooms.problem.noise,
        max_move=1.0,
        pay_end=True,
        constraints=[mass_at_least(grid, lambda state: state[0] > 6, 0.5, steps=(5,))],
    )
    moves = MoveFlow(mufield.Flow(problem), motion, problem.actions.points(9))
    said, spent = "", 0.0
    for _ in range(2):  # the first compiles
        began = time.perf_counter()
        try:
            MirrorAscent(200).solve(moves)
        except InfeasibleError as error:
            said = str(error)
        spent = time.perf_counter() - began
    report.row("infeasible: what is said", said or "nothing")
    report.claim("infeasible: proved", float(bool(said)), 1.0, side="at least")
    report.claim("infeasible: seconds", spent, 10.0, side="at most")


def learning(
    report: Report,
    options: argparse.Namespace,
    name: str,
    system: mufield.SimulatedSystem,
    free: mufield.SimulatedSystem,
) -> None:
    found = MirrorAscent(300).solve(moves_of(system))
    rest = float(system.evaluate(lambda s, mu, h: jnp.asarray(system.problem.actions.rest)).value)
    upper = float(found.upper)
    report.row(f"{name}: constrained optimum", f"{float(found.value):.3f} to {upper:.3f}")
    for agents in options.agents:
        for way, pessimism in PESSIMISM.items():
            if options.ways and way not in options.ways:
                continue
            learner = mufield.M3UCRL(system.problem, pessimism=pessimism)
            began = time.perf_counter()
            results = learn_many(
                system,
                learner,
                seeds=range(options.seeds),
                episodes=options.episodes,
                agents=agents,
            )
            spent = time.perf_counter() - began
            values = np.array([[row.value for row in each.metrics] for each in results])
            margins = np.array([[row.margin for row in each.metrics] for each in results])
            # Where J can be negative: the share of the way from rest.
            start = rest if upper <= 0 or rest < 0 else 0.0
            ends = ((values - start) / (upper - start))[:, -LAST:].mean(axis=1)
            label = f"{name}, {agents} agents, {way}"
            curve = ((values - start) / (upper - start)).mean(axis=0)
            violated = float(np.mean(margins < -WORSE))
            report.row(f"{label}: % by episode", " ".join(f"{100 * v:.1f}" for v in curve))
            report.row(
                f"{label}: end (worst) | violated by more than 1% | worst violation | time",
                f"{ends.mean():.2%} ({ends.min():.2%}) | {violated:.1%} of {margins.size} | "
                f"{max(0.0, -margins.min()):.1%} | {duration(spent)}",
            )
            if options.out:
                options.out.mkdir(parents=True, exist_ok=True)
                path = options.out / f"{name}-{agents}-{way.replace(' ', '-')}.json"
                document = {"values": values.tolist(), "margins": margins.tolist(), "upper": upper}
                path.write_text(json.dumps(document))
            if way != "model samples":
                continue
            report.claim(
                f"{label}: share of episodes that violate it", violated, 0.01, side="at most"
            )
            report.claim(
                f"{label}: worst violation", max(0.0, -margins.min()), WORST, side="at most"
            )
            if agents >= 10:
                report.claim(f"{label}: end", ends.mean(), 0.97, side="at least")
                state = results[0].state
                data = replace(state.data, problem=free.problem)
                loose = replace(state, data=data, profile=None, last_mass=None)
                spent_on = [
                    seconds(lambda who=who, what=what: who.ask(what).mass)
                    for who, what in ((mufield.M3UCRL(free.problem), loose), (learner, state))
                ]
                report.row(
                    f"{label}: a learner's plan without and with constraints",
                    ", ".join(map(duration, spent_on)),
                )
                claim = f"{label}: a learner's planning time with constraints over without"
                report.claim(claim, spent_on[1] / spent_on[0], 2.0, side="at most")


def rooms(report: Report, options: argparse.Namespace) -> None:
    system, free = mufield.make("four-rooms-doors", door_cap=CAP), mufield.make("four-rooms")
    learning(report, options, "rooms", system, free)


def swarm(report: Report, options: argparse.Namespace) -> None:
    free = mufield.make("swarm", initial="uniform", horizon=100)
    learning(report, options, "swarm", mufield.make("swarm-spread"), free)


def main() -> None:
    parser = options_of(__doc__)
    add = parser.add_argument
    add("--agents", type=lambda text: tuple(map(int, text.split(","))), default=(1, 10))
    add("--seeds", type=int, default=10)
    add("--episodes", type=int, default=20)
    add("--ways", type=names_of(PESSIMISM), help="kinds of pessimism; all by default")
    sections = {"known": known, "infeasible": infeasible, "rooms": rooms, "swarm": swarm}
    run_sections("constraints", parser, sections, quick=("known", "infeasible"))


if __name__ == "__main__":
    main()
