"""Scouts against the paper's protocol: who pays for exploration, and how much.

In the paper the whole population runs the optimistic policy. With scouts only the tracked agents
do, and the population follows the plan that the data so far make best. Both learn from ten tracked
agents with the library's defaults. For each system: J by episode as the share of the way from
agents at rest to the plan with known motion, and the cumulative regret, the sum over the episodes
of what is missing to that plan.

Systems: motions of ``benchmarks/motions.py``; ``lq``, linear-quadratic control whose motion sees
the population's mean; ``capped``, a map with a limit on the mass of its middle; and ``ice``, where
scouts must fail: only a crowd can cross the ice, few scouts learn that it can't be crossed, and the
population never tries.

Claims: the median over systems (``ice`` left out) of the cumulative regret with scouts, as a share
of that without; the greatest such share; no violation of the limit above 1%; and that scouts fail
on ice.

Run ``python benchmarks/scouts.py``; ``--only NAME,...`` takes some systems, ``--quick`` one of them
and three episodes.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Report, learn_many, names_of, options_of, run_sections

import mufield as mf

SUITE = ("rooms-wind", "rooms-turned", "rooms-crowded", "hall-vortex", "hall-lane", "torus-vortex")
SYSTEMS = (*SUITE, "city", "manhattan", "walkway", "lq", "capped", "ice")


def mean_of(mu: mf.MeanField) -> jax.Array:
    return mu.mass @ jnp.asarray(mu.grid.centres[:, 0], dtype=mu.mass.dtype)


def linear_quadratic() -> mf.SimulatedSystem:
    """``s + 0.8 a + 0.25 (m - s)``, m the population's mean; rest is far from the optimum."""
    grid = mf.Grid.box(-2.5, 2.5, 50)

    def reward(state: jax.Array, action: jax.Array, mu: mf.MeanField) -> jax.Array:
        mean = mean_of(mu)
        return -(0.5 * (state[0] - mean) ** 2 + 1.2 * mean**2 + action[0] ** 2) / 2

    problem = mf.Problem(
        space=grid,
        actions=mf.Box(-1.0, 1.0, dim=1),
        initial=mf.from_density(grid, lambda s: jnp.exp(-0.5 * ((s[0] + 1.3) / 0.7) ** 2)),
        reward=reward,
        horizon=10,
        noise=0.2,
        max_move=2.1,
    )
    return mf.SimulatedSystem(problem, lambda s, a, mu: s + 0.8 * a + 0.25 * (mean_of(mu) - s))


def capped(*, limit: bool = True) -> mf.SimulatedSystem:
    """A swirl on 9 by 7 cells, whose three middle columns may hold a quarter of the population."""
    grid = mf.Grid.box((0, 0), (9, 7), (9, 7))
    middle = [(x, y) for x in (3, 4, 5) for y in range(7)]
    cap = mf.constraints.mass_at_most(grid, middle, 0.25, name="middle")

    def motion(state: jax.Array, action: jax.Array, mu: mf.MeanField) -> jax.Array:
        apart = (state - jnp.array([4.5, 3.5])) / 3.0
        swirl = 0.3 * jnp.exp(-0.5 * apart @ apart) * jnp.array([-apart[1], apart[0]])
        return state + 0.8 * action + swirl

    problem = mf.Problem(
        space=grid,
        actions=mf.Box(-1.0, 1.0, dim=2),
        initial=mf.point_mass(grid, 1, 3),
        reward=lambda s, a, mu: -mf.log_mass(mu.here),
        horizon=16,
        noise=0.25,
        max_move=1.1,
        constraints=(cap,) if limit else (),
    )
    return mf.SimulatedSystem(problem, motion)


def ice() -> mf.SimulatedSystem:
    """A line whose middle third holds agents fast where fewer than a tenth of all are."""
    grid = mf.Grid.box(0.0, 12.0, 12)

    def motion(state: jax.Array, action: jax.Array, mu: mf.MeanField) -> jax.Array:
        crowd = jax.nn.sigmoid(60 * (mu.here - 0.1))
        frozen = (state[0] >= 4) & (state[0] < 8)
        return state + jnp.where(frozen, 0.05 + 0.95 * crowd, 1.0) * action

    def reward(state: jax.Array, action: jax.Array, mu: mf.MeanField) -> jax.Array:
        return jnp.where(state[0] >= 8, 1.0, jnp.where(state[0] >= 4, -0.3, 0.0))

    problem = mf.Problem(
        space=grid,
        actions=mf.Box(-1.0, 1.0, dim=1),
        initial=mf.from_density(grid, lambda s: (s[0] < 4).astype(s.dtype)),
        reward=reward,
        horizon=16,
        noise=0.2,
        max_move=1.0,
    )
    return mf.SimulatedSystem(problem, motion)


OWN = {"lq": linear_quadratic, "capped": capped, "ice": ice}


def ends(system: mf.SimulatedSystem, sweeps: int) -> tuple[float, float]:
    """J of agents at rest, and of the plan with known motion; or of all agents going right."""
    flow, motion = system.reveal()
    actions = system.problem.actions
    still = jnp.asarray(actions.rest)
    rest = float(system.evaluate(lambda state, mu, step: still).value)
    planner = mf.MirrorPlanner(sweeps=sweeps)  # as learners plan
    found = eqx.filter_jit(planner.plan)(flow, motion, actions, jax.random.key(0), None)
    right = jnp.asarray(actions.points(3)[-1])  # mirror ascent does not find the way over the ice
    known = [system.evaluate(each).value for each in (found.profile, lambda state, mu, step: right)]
    return rest, float(max(known))


def compare(report: Report, options: argparse.Namespace) -> None:
    names = options.only or (("capped",) if options.quick else SYSTEMS)
    episodes = options.episodes or (3 if options.quick else 15)
    seeds = range(options.seeds or (1 if options.quick else 3))
    shares, violation = {}, 0.0
    for name in names:
        system = OWN[name]() if name in OWN else mf.make(name)
        rest, known = ends(system, 60 if options.quick else 200)
        report.row(f"{name}: rest | known motion", f"{rest:.3f} | {known:.3f}")
        regret: dict[str, Any] = {}
        for protocol, scouts in (("paper", None), ("scouts", mf.Hallucinated())):
            learner = mf.M3UCRL(system.problem, scouts=scouts)
            runs = learn_many(system, learner, seeds=seeds, episodes=episodes, agents=10)
            values = np.array([[row.value for row in run.metrics] for run in runs])
            share = (values - rest) / (known - rest)
            curve = " ".join(f"{100 * each:.1f}" for each in share.mean(axis=0))
            report.row(f"{name}, {protocol}: % of the way by episode", curve)
            regret[protocol] = float(np.mean(np.sum(known - values, axis=1)))
            margins = [row.margin for run in runs for row in run.metrics if row.margin is not None]
            violation = max([violation, *(-margin for margin in margins)])
            sys.stderr.write(f"{name}, {protocol}: {curve}\n")
        shares[name] = regret["scouts"] / regret["paper"]
        both = f"{regret['paper']:.2f} | {regret['scouts']:.2f} ({shares[name]:.2f} times)"
        report.row(f"{name}: cumulative regret, paper | scouts", both)
        jax.clear_caches()
    usual = {name: share for name, share in shares.items() if name != "ice"}
    if usual:
        middle, worst = float(np.median(list(usual.values()))), max(usual, key=lambda n: usual[n])
        report.claim("median share of the regret", middle, 1.0, side="at most")
        report.claim(f"greatest share of the regret ({worst})", usual[worst], 1.1, side="at most")
    if "capped" in names:
        report.claim("violation of the limit", violation, 0.01, side="at most")
    if "ice" in shares:
        report.claim("ice: regret of scouts, as a share", shares["ice"], 1.0, side="at least")


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--episodes", type=int, help="number of episodes")
    parser.add_argument("--seeds", type=int, help="number of seeds")
    parser.add_argument("--only", type=names_of(SYSTEMS), help=f"of {', '.join(SYSTEMS)}")
    run_sections("scouts", parser, {"compare": compare})


if __name__ == "__main__":
    main()
