"""Scouts against the paper's protocol: who pays for exploration, and how much.

In the paper the whole population runs the optimistic policy. With scouts only the tracked agents
do, and the population follows the plan that the data so far make best. Both learn from ten tracked
agents with the library's defaults. For each system: J by episode as the share of the way from
agents at rest to the plan with known motion, and the cumulative regret, the sum over the episodes
of what is missing to that plan.

Systems: ``walkway``, where optimism pays; all of ``benchmarks/motions.py``; Manhattan; ``lq``,
linear-quadratic control whose motion sees the population's mean; ``capped``, a map with a limit on
the mass of its middle; and ``ice``, where scouts must fail: only a crowd can cross the ice, few
scouts learn that it can't be crossed, and the population never tries.

Claims (``ice`` left out of the first three): the median over systems of the cumulative regret with
scouts, as a share of that without; the greatest such share; the least share of the way in any
episode after the first, of the mean over seeds, where rest is safe; on the capped map 97% of the
way by episode 6 and no violation of the limit above 1%; at least as many seeds that find the
walkway; and that scouts fail on ice.

Run ``python benchmarks/scouts.py``; ``--only NAME,...`` takes some systems, ``--quick`` one of them
and three episodes. With ``--out DIR`` the curves of each system and protocol are kept as soon as
they are there, and ``--resume`` goes on after them, so that the table can be made in parts.
``--kinds`` compares other scouts with the paper's protocol.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Report, learn_many, names_of, options_of, run_sections
from motions import INPUTS, looking
from suite import SUITE

import mufield as mf

SYSTEMS = ("walkway", "lq", "capped", "manhattan", *reversed(SUITE), *INPUTS, "ice")
KINDS: dict[str, dict[str, Any]] = {
    "paper": {"greedy_fallback": False},
    "fallback": {},
    "optimistic": {"scouts": mf.Hallucinated()},
    "everybody": {"scouts": mf.Hallucinated(), "optimism": mf.Hallucinated()},
    "thompson": {"scouts": mf.Thompson()},
    "bonus": {"scouts": mf.Bonus()},
}
"""The protocols: the paper's, the library's default, or the optimism of scouts; ``everybody``: of
all."""


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


def system_of(name: str) -> mf.SimulatedSystem:
    """The system of a name."""
    if name in INPUTS:
        return looking(name)
    return OWN[name]() if name in OWN else mf.make(name)


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


def curves(name: str, kind: str, setting: dict[str, int], options: argparse.Namespace) -> Any:
    """What was earned, and the margins of constraints, by seed and episode; and both ends."""
    path = None if options.out is None else options.out / f"{name}-{kind}.json"
    if path is not None and options.resume and path.is_file():
        kept = json.loads(path.read_text())
        if kept["setting"] == setting:
            return kept
    system = system_of(name)
    found: dict[str, Any] = {"setting": setting}
    found["rest"], found["known"] = ends(system, setting["sweeps"])
    runs = learn_many(
        system,
        mf.M3UCRL(system.problem, **KINDS[kind]),
        seeds=range(setting["seeds"]),
        episodes=setting["episodes"],
        agents=10,
    )
    found["values"] = [[row.value for row in run.metrics] for run in runs]
    found["margins"] = [row.margin for run in runs for row in run.metrics if row.margin is not None]
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    jax.clear_caches()
    return found


def compare(report: Report, options: argparse.Namespace) -> None:
    names = options.only or (("lq",) if options.quick else SYSTEMS)
    setting = {
        "episodes": options.episodes or (3 if options.quick else 15),
        "seeds": options.seeds or (1 if options.quick else 5),
        "sweeps": 60 if options.quick else 200,
    }
    found = {}
    for name in names:
        for kind in ("paper", *options.kinds):
            kept = curves(name, kind, setting, options)
            values, rest, known = np.array(kept["values"]), kept["rest"], kept["known"]
            share = (values - rest) / (known - rest)
            curve = " ".join(f"{100 * each:.1f}" for each in share.mean(axis=0))
            if kind == "paper":
                report.row(f"{name}: rest | known motion", f"{rest:.3f} | {known:.3f}")
            report.row(f"{name}, {kind}: % of the way by episode", curve)
            regret = float(np.mean(np.sum(known - values, axis=1)))
            found[name, kind] = share, regret, max([0.0, *(-m for m in kept["margins"])])
            sys.stderr.write(f"{name}, {kind}: {curve}\n")
        for kind in options.kinds:
            paper, own = (found[name, each][1] for each in ("paper", kind))
            both = f"{paper:.2f} | {own:.2f} ({own / paper:.2f} times)"
            report.row(f"{name}: cumulative regret, paper | {kind}", both)
    for kind in options.kinds:
        claim(report, kind, {name: (found[name, kind], found[name, "paper"]) for name in names})


def claim(report: Report, kind: str, found: dict[str, Any]) -> None:
    """The claims about one kind of scouts, from shares, regret and violation beside the paper's."""
    ratio = {name: own[1] / paper[1] for name, (own, paper) in found.items()}
    usual = [name for name in found if name != "ice"]
    if usual:
        middle, worst = (
            float(np.median([ratio[n] for n in usual])),
            max(usual, key=ratio.__getitem__),
        )
        report.claim(f"{kind}: median share of the regret", middle, 0.5, side="at most")
        name = f"{kind}: greatest share of the regret ({worst})"
        report.claim(name, ratio[worst], 1.1, side="at most")
        least = {n: float(found[n][0][0].mean(axis=0)[1:].min()) for n in usual if n != "capped"}
        if least:
            low = min(least, key=least.__getitem__)
            name = f"{kind}: least share of the way in an episode ({low})"
            report.claim(name, least[low], -0.05, side="at least")
    if "capped" in found:
        (share, _, violation), _ = found["capped"]
        end = float(share.mean(axis=0)[:6].max())
        report.claim(f"{kind}: capped, way by episode 6", end, 0.97, side="at least")
        report.claim(f"{kind}: violation of the limit", violation, 0.01, side="at most")
    if "walkway" in found:
        own, paper = (int(np.sum(each[0][:, -1] > 0.9)) for each in found["walkway"])
        report.claim(f"{kind}: seeds that find the walkway", own, paper, side="at least")
    if "ice" in found:
        report.claim(f"{kind}: ice, share of the regret", ratio["ice"], 1.0, side="at least")


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--episodes", type=int, help="number of episodes")
    parser.add_argument("--seeds", type=int, help="number of seeds")
    parser.add_argument("--resume", action="store_true", help="go on after what --out has")
    parser.add_argument(
        "--kinds",
        type=names_of([kind for kind in KINDS if kind != "paper"]),
        default=("optimistic",),
        help=f"of {', '.join(KINDS)}",
    )
    parser.add_argument("--only", type=names_of(SYSTEMS), help=f"of {', '.join(SYSTEMS)}")
    run_sections("scouts", parser, {"compare": compare})


if __name__ == "__main__":
    main()
