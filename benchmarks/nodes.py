"""Problems on nodes: equal numbers, speed, certified optima, and unknown probabilities learned.

- ``equal``: the uniform policy earns what OpenSpiel's own code says, to 1e-6: crowd modelling in a
  square (where its first reward is taken at an even distribution), on a line (where it charges
  places for the move by which a search first came there) and routing in Braess' network.
- ``speed``: flow and value of crowd modelling in a square, beside OpenSpiel's `DistributionPolicy`
  and `PolicyValue`, after compilation (bar 1,000 times as fast). Of so few nodes and steps most of
  our time is that of starting a program, and with the `MoveFlow` as an argument that of taking it
  apart. `benchmarks/peers.py` has a larger problem.
- ``optimum``: the gap to a certified bound where the problem is concave (bar 0.1%), and elsewhere
  the loss to the best of 20 ascents from random policies, as a share of |J| (bar 1%).
- ``learned``: without the probabilities, ten tracked agents, ten episodes, five seeds: the share of
  the way from the uniform policy to the optimum that the last episode earns, which still explores
  (bar 97%), and that `LearnResult.best` earns, the policy to use afterwards. One agent: 3 seeds.
- ``garnets``: the same on random problems that nothing was tuned on, 20 seeds (bar 95%). Beside it
  what whoever knew the probabilities exactly in the crowds of its own policies would earn, but not
  how they change with the crowd, after nine plans: the rest is a matter of that change.
- ``graph``: value and gradient of 20 steps on 10,000 nodes with 8 neighbours each; memory.

``--quick`` has ``equal``, ``speed`` and ``graph``.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import argparse
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
from _open_spiel import crowd_line
from _report import Report, duration, learn_many, options_of, run_sections, time_side_by_side
from open_spiel.python.mfg.algorithms.distribution import DistributionPolicy
from open_spiel.python.mfg.algorithms.policy_value import PolicyValue
from open_spiel.python.mfg.games import factory
from open_spiel.python.policy import UniformRandomPolicy

import mufield as mf
from mufield.environments.registry import FIELD
from mufield.planning.moves import regular_moves
from mufield.space.measure import at_all_cells

CONCAVE = ("left-right", "beach-bar", "crowd-line", "crowd-square")
LEARNED = tuple(name for name in FIELD if name not in ("garnet", "braess"))


def _open_spiel_square() -> Any:
    start = {"initial_distribution": "[0|0]", "initial_distribution_value": "[1.0]"}
    settings = {"only_distribution_reward": True, "horizon": 10, "size": 10}
    return pyspiel.load_game("mfg_crowd_modelling_2d", settings | start)


def _value_there(game: Any) -> float:
    policy = UniformRandomPolicy(game)
    flow = DistributionPolicy(game, policy)
    return float(PolicyValue(game, flow, policy)(game.new_initial_state()))


def _uniform(system: Any) -> float:
    return float(system.evaluate(mf.random_policy(system.problem)).value)


def _best(system: Any, sweeps: int = 300, weights: Any = None) -> Any:
    moves = regular_moves(*system.reveal(), system.problem.actions, points=1)
    return mf.MirrorAscent(sweeps=sweeps).solve(moves, weights)


def equal(report: Report, given: argparse.Namespace) -> None:
    """Values of the uniform policy beside OpenSpiel's."""
    braess = factory.create_game_with_setting(
        "python_mfg_dynamic_routing", "dynamic_routing_braess"
    )
    with jax.enable_x64(True):
        pairs = {
            "crowd-square": (
                _uniform(mf.make("crowd-square")) + np.log(100),
                _value_there(_open_spiel_square()),
            ),
            "braess": (_uniform(mf.make("braess", whole_steps=True)), _value_there(braess)),
            "crowd-line": (
                _uniform(crowd_line()),
                _value_there(pyspiel.load_game("python_mfg_crowd_modelling")),
            ),
        }
    for name, (here, there) in pairs.items():
        report.row(f"{name}: uniform policy, ours and OpenSpiel's", f"{here:.9f}, {there:.9f}")
    worst = max(abs(here - there) for here, there in pairs.values())
    report.claim("difference from OpenSpiel's values", worst, 1e-6, side="at most")


def speed(report: Report, given: argparse.Namespace) -> None:
    """Flow and value of the uniform policy."""
    system, game = mf.make("crowd-square"), _open_spiel_square()
    # As planners compute it, for the weights of any policy; unavailable moves are repeated others.
    moves = regular_moves(*system.reveal(), system.problem.actions, points=1)
    weights = jax.block_until_ready(moves.uniform())
    ours = jax.jit(lambda weights: moves.rollout(weights).value)
    passed = eqx.filter_jit(lambda moves, weights: moves.rollout(weights).value)
    sides = {
        "ours": lambda: jax.block_until_ready(ours(weights)),
        "ours, MoveFlow as an argument": lambda: jax.block_until_ready(passed(moves, weights)),
        "OpenSpiel": lambda: _value_there(game),
    }
    found = time_side_by_side(sides, rounds=3 if given.quick else 7)
    for name, timing in found.items():
        report.row(f"crowd-square, flow and value, {name}", str(timing))
    ratio = found["OpenSpiel"].best / found["ours"].best
    report.claim("times as fast as OpenSpiel", ratio, 1000, side="at least")


def optimum(report: Report, given: argparse.Namespace) -> None:
    """Certified bounds, and the best of random starts where there is none."""
    gaps, losses = {}, {}
    for name in FIELD:
        system = mf.make(name)
        found = _best(system)
        if name in CONCAVE:
            gaps[name] = float(found.gap) / abs(float(found.value))
            report.row(f"{name}: J, relative gap", f"{float(found.value):.5f}, {gaps[name]:.2g}")
            continue
        shape, base = found.weights.shape, _uniform(system)
        starts = [
            jax.random.dirichlet(jax.random.key(seed), jnp.ones(shape[-1]), shape[:-1])
            for seed in range(20)
        ]
        best = max(float(_best(system, 100, start).value) for start in starts)
        loss = best - float(found.value)
        losses[name] = loss / abs(best)
        report.row(
            f"{name}: J, best of 20 starts, loss as a share of the way from the uniform policy",
            f"{float(found.value):.5f}, {best:.5f}, {loss / max(abs(best - base), 1e-9):.2%}",
        )
    report.claim("largest gap where concave", max(gaps.values()), 1e-3, side="at most")
    report.claim("largest loss to 20 starts", max(losses.values()), 1e-2, side="at most")


class Shares(NamedTuple):
    """Shares of the way from the uniform policy to the optimum."""

    last: float
    best: float


def _shares(system: Any, agents: int, seeds: range) -> list[Shares]:
    """What the last of ten episodes, and the policy to use afterwards, earn, by seed."""
    low, high = _uniform(system), float(_best(system).value)
    found = []
    for run in learn_many(system, seeds=seeds, episodes=10, agents=agents):
        best = float(system.evaluate(run.best().profile).value)
        found.append(Shares(*((J - low) / (high - low) for J in (run.metrics[-1].value, best))))
    return found


def _figures(shares: Sequence[float]) -> str:
    return f"{min(shares):.1%}, {np.median(shares):.1%}"


def learned(report: Report, given: argparse.Namespace) -> None:
    """Unknown probabilities of the problems of the field."""
    for agents in (10, 1):
        worst = []
        for name in LEARNED:
            seeds = range(given.seeds if agents == 10 else min(3, given.seeds))
            last, best = zip(*_shares(mf.make(name), agents, seeds), strict=True)
            worst.append(Shares(min(last), min(best)))
            jax.clear_caches()  # programs of all problems together are more than a process may map
            report.row(
                f"{name}, agents {agents}: worst, median; of the policy to use",
                f"{_figures(last)}; {_figures(best)}",
            )
        if agents == 10:
            last, best = (min(each) for each in zip(*worst, strict=True))
            report.claim("worst share of the way, ten agents", last, 0.97, side="at least")
            report.claim("worst share, policy to use", best, 0.97, side="at least")


def _as_seen(table: Any, node: Any, action: Any, mu: Any) -> Any:
    return table[mu.step, node, action]


def _without_changes(system: Any) -> float:
    """The share where each plan knows the probabilities in the crowds of the one before."""
    low, high = _uniform(system), float(_best(system).value)
    (_, motion), problem = system.reveal(), system.problem
    actions = jnp.broadcast_to(
        problem.actions.moves, (problem.grid.n_cells, *problem.actions.moves.shape)
    )
    rollout = system.evaluate(mf.random_policy(problem))
    for _ in range(9):
        seen = jax.vmap(lambda mass: at_all_cells(problem.grid, mass, motion, actions))
        known = mf.SimulatedSystem(problem, eqx.Partial(_as_seen, seen(rollout.mass[:-1])))
        rollout = system.evaluate(_best(known, 100).profile)
    return (float(rollout.value) - low) / (high - low)


def garnets(report: Report, given: argparse.Namespace) -> None:
    """Random problems, on none of which anything was tuned."""
    systems = [mf.make("garnet", seed=2000 + i) for i in range(4 * given.seeds)]
    found = [_shares(each, 10, range(i, i + 1))[0] for i, each in enumerate(systems)]
    last, best = zip(*found, strict=True)
    told = [_without_changes(each) for each in systems]
    for what, shares in {
        "the last episode": last,
        "the policy to use": best,
        "exact probabilities in own crowds": told,
    }.items():
        enough = sum(share >= 0.95 for share in shares)
        report.row(
            f"garnets, {what}: worst, median; how many reach 95%",
            f"{_figures(shares)}; {enough} of {len(systems)}",
        )
    report.claim("worst share of the way, garnets", min(last), 0.95, side="at least")
    report.claim("worst share, garnets, policy to use", min(best), 0.95, side="at least")


def graph(report: Report, given: argparse.Namespace) -> None:
    """A road network of 10,000 nodes."""
    for count in (1_000, 10_000):
        rng, nodes = np.random.default_rng(0), np.arange(count)
        hops = np.array([0, 1, -1, 100, -100, 7, -7, 13, -13])
        space = mf.Nodes(count, successors=(nodes[:, None] + hops) % count)
        slip = jnp.asarray(rng.uniform(0.0, 0.3, count), dtype=jnp.float32)

        def motion(node: Any, action: Any, mu: Any, slip: Any = slip) -> Any:
            return jnp.full(9, slip[node] / 9).at[action].add(1 - slip[node])

        problem = mf.Problem(
            space=space,
            actions=9,
            reward=lambda node, action, mu: -mf.log_mass(mu.here),
            horizon=20,
            initial=mf.point_mass(space, 0),
        )
        moves = mf.MoveFlow(mf.Flow(problem), motion, problem.actions.points())
        sweep = eqx.filter_jit(lambda moves, w: moves.sweep(w, bound=False))
        weights = jax.block_until_ready(moves.uniform())
        jax.block_until_ready(sweep(moves, weights))
        times = []
        for _ in range(5):
            began = time.perf_counter()
            jax.block_until_ready(sweep(moves, weights))
            times.append(time.perf_counter() - began)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(moves) if eqx.is_array(leaf))
        report.row(
            f"{count:,} nodes, 8 neighbours, 20 steps: value and gradient, bytes for each edge",
            f"{duration(min(times))}, {size / (9 * count):.0f}",
        )
    report.claim("seconds for value and gradient", min(times), 0.2, side="at most")


if __name__ == "__main__":
    sections = {
        "equal": equal,
        "speed": speed,
        "optimum": optimum,
        "learned": learned,
        "garnets": garnets,
        "graph": graph,
    }
    parser = options_of(__doc__)
    parser.add_argument(
        "--seeds", type=int, default=5, help="of learning; four times as many garnets"
    )
    run_sections("nodes", parser, sections, quick=("equal", "speed", "graph"))
