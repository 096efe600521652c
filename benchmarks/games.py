"""Games: equal numbers with OpenSpiel, known equilibria, tolls, speed, and equilibria learned.

- ``equal``: NashConv of the uniform policy and after ten iterations of each solver, beside
  OpenSpiel's own code, to 1e-6: crowd modelling on a ring (with the cost of the path found first),
  in the four rooms with walls, and routing in Braess' network. Its `MirrorDescent` is left out: it
  changes the table that its policy reads while it evaluates that policy. Munchausen mirror descent
  there is what mirror descent would be, and ours.
- ``known``: left-right, rock-paper-scissors, and rewards -log mu, where the certified optimum is an
  equilibrium up to its own gap and tolls are the same everywhere.
- ``anarchy``: the price of anarchy, and how exploitable the optimum is once agents pay exact tolls,
  as a share of what selfishness costs (bar 1%): rooms with crowded motion, the city, Braess'
  network and the epidemic ``sis``, with 5 moves on each axis of a box. Also what agents who pay
  come to by themselves. In ``seir``, ``beach-bar`` and
  ``cyber-security`` selfishness costs next to nothing: no gap to compare with.
- ``doors``: the same where all agents of one room of the four want into the opposite one, through
  doors that fill up. ``--out DIR`` draws this and the next.
- ``taxis``: the same for 2,000 of Manhattan's taxis on a weekday's morning, 5 x 5 moves.
- ``limit``: the same for the limit of many taxis. There J has a kink at its optimum, where vehicles
  are as many as passengers, and its derivative makes no tolls, as a row shows. Plan and tolls are
  those for 100,000 taxis, whose J is smooth. ``--start`` has another hour of the day.
- ``projected``: the city's tolls by district and hour, not negative and bounded.
- ``obedience``: J if only a share follows the plan.
- ``speed``: one iteration beside OpenSpiel's, in the discrete four rooms over 40 steps.
- ``learned``: unknown motion, ten tracked agents, ten episodes: exploitability under the true
  motion, as a share of the way from the uniform policy to the equilibrium with known motion.

``--quick`` has ``equal``, ``known`` and ``speed``.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import argparse
import time
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import suite  # noqa: F401 (registers its systems)
from _open_spiel import crowd_line
from _report import Report, duration, options_of, run_sections
from open_spiel.python.mfg.algorithms import boltzmann_policy_iteration as boltzmann
from open_spiel.python.mfg.algorithms import fictitious_play, fixed_point, nash_conv
from open_spiel.python.mfg.algorithms import munchausen_mirror_descent as munchausen
from open_spiel.python.mfg.games import factory
from open_spiel.python.policy import UniformRandomPolicy

import mufield as mf
from mufield.environments.four_rooms import MOVES, uniform_legal

GAMES = mf.games
ROUNDS = 3
"""Of quasi-Newton steps that sharpen an optimum."""
SOLVERS = {
    "fictitious play": (fictitious_play.FictitiousPlay, GAMES.FictitiousPlay()),
    "Munchausen": (munchausen.MunchausenMirrorDescent, GAMES.MirrorDescent(rate=0.01)),
    "Boltzmann": (
        boltzmann.BoltzmannPolicyIteration,
        GAMES.FictitiousPlay(rate=1.0, temperature=100.0, best=False),
    ),
    "fixed point": (fixed_point.FixedPoint, GAMES.FictitiousPlay(rate=1.0)),
}


def _rooms(horizon: int) -> tuple[Any, Any, Any]:
    """OpenSpiel's four rooms, ours, and the policy that draws evenly from the legal moves."""
    setting = factory.create_game_with_setting(
        "mfg_crowd_modelling_2d", "crowd_modelling_2d_four_rooms"
    )
    settings = setting.get_parameters() | {"horizon": horizon}
    ours = mf.make("discrete-rooms", horizon=horizon, noise_intensity=1.0, pay_end=False)
    theirs = pyspiel.load_game("mfg_crowd_modelling_2d", settings)
    return theirs, ours, uniform_legal(ours.problem.grid)


def _nash_conv(game: Any, policy: Any) -> float:
    return float(nash_conv.NashConv(game, policy).nash_conv())


def _moves(name: str, points: int = 5) -> Any:
    system = mf.make(name)
    return mf.MoveFlow(*system.reveal(), _listed(system.problem.actions, points))


def _uniform(name: str, **options: Any) -> tuple[Any, Any]:
    system = mf.make(name, **options)
    return system, mf.random_policy(system.problem)


def _listed(actions: Any, points: int) -> Any:
    return actions.points(points) if isinstance(actions, mf.Box) else None


def equal(report: Report, given: argparse.Namespace) -> None:
    """NashConv beside OpenSpiel's."""
    braess = factory.create_game_with_setting(
        "python_mfg_dynamic_routing", "dynamic_routing_braess"
    )
    worst, iterations = 0.0, 10
    with jax.enable_x64(True):
        line, ring = pyspiel.load_game("python_mfg_crowd_modelling"), crowd_line()
        pairs = {
            "crowd-line": (line, ring, mf.random_policy(ring.problem)),
            "four rooms": _rooms(10),
            "braess": (braess, *_uniform("braess", whole_steps=True)),
        }
        for name, (game, system, policy) in pairs.items():
            here = GAMES.exploitability(*system.reveal(), policy)
            there = _nash_conv(game, UniformRandomPolicy(game))
            worst = max(worst, abs(here - there))
            report.row(f"{name}: uniform policy, ours and OpenSpiel's", f"{here:.9f}, {there:.9f}")
        moves = mf.MoveFlow(*pairs["crowd-line"][1].reveal())
        for name, (kind, solver) in SOLVERS.items():
            theirs = kind(line)
            for _ in range(iterations):
                theirs.iteration()
            there = _nash_conv(line, theirs.get_policy())
            here = float(solver.step(moves, solver.init(moves), iterations)[1][-1, 1])
            worst = max(worst, abs(here - there))
            report.row(f"crowd-line, ten iterations of {name}", f"{here:.9f}, {there:.9f}")
    report.claim("difference from OpenSpiel's NashConv", worst, 1e-6, side="at most")


def known(report: Report, given: argparse.Namespace) -> None:
    """Games whose equilibria are known."""
    with jax.enable_x64(True):
        flow, motion = mf.make("left-right").reveal()
        for action, wanted in ((0, 1.0), (1, 2.0)):
            all_one = mf.TablePolicy.deterministic(jnp.full((1, 1), float(action)))
            error = abs(GAMES.exploitability(flow, motion, all_one) - wanted)
            report.claim(f"left-right, all take {action}: error", error, 1e-6, side="at most")
        moves, solver = _moves("rock-paper-scissors"), GAMES.FictitiousPlay()
        state = solver.step(moves, solver.init(moves), 20_000)[0]
        wanted = np.array([0.337662, 0.259740, 0.402597])
        error = float(np.abs(np.asarray(state.response.rollout.mass[-1, 1:]) - wanted).max())
        report.claim("rock-paper-scissors: distance", error, 1e-3, side="at most")
        for name in ("crowd-square", "four-rooms"):
            moves = _moves(name)
            plan = mf.MirrorAscent(sweeps=300).solve(moves)
            gain = GAMES.exploitability(moves.flow, moves.motion, plan.profile, moves.actions)
            prices = GAMES.tolls(moves.flow, moves.motion, plan.profile)
            paid = slice(moves.flow.problem.paid_steps)  # the end may not be
            used = np.asarray(prices.mass)[paid] > 1e-6
            spread = float(np.ptp(np.asarray(prices.prices)[paid][used]))
            report.row(
                f"{name}: gain, gap, tolls differ", f"{gain:.3g}, {plan.gap:.3g}, {spread:.2g}"
            )
            own = mf.certify(moves.flow, moves.motion, plan.profile, moves.actions).gap
            share = gain / max(own, 1e-9)
            report.claim(f"{name}: exploitability by gap", share, 1.0 + 1e-6, side="at most")
            report.claim(f"{name}: tolls differ by", spread, 1e-6, side="at most")


@lru_cache
def _anarchy(name: str) -> Any:
    """Optimum and equilibrium; the only one of ``sis`` that was found is that of damped play.

    In Braess' network mirror descent with longer first steps goes in circles.
    """
    damped = GAMES.FictitiousPlay(3000, rate=0.1, tolerance=1e-9)
    solver = damped if name == "sis" else GAMES.MirrorDescent(600, first=0.1)
    return GAMES.anarchy(_moves(name), mf.MirrorAscent(sweeps=200), solver, rounds=ROUNDS)


def anarchy(report: Report, given: argparse.Namespace) -> None:
    """Exact tolls."""
    worst = 0.0
    with jax.enable_x64(True):
        for name in ("braess", "sis", "city", "rooms-crowded"):
            found = _anarchy(name)
            share = found.left / found.gap
            worst = max(worst, share)
            report.row(
                f"{name}: J of optimum, equilibrium (exploitability); price of anarchy",
                f"{found.optimum.value:.4f}, {found.equilibrium.value:.4f} "
                f"({found.equilibrium.exploitability:.2g}); {found.price:.2%}",
            )
            paid = found.under(found.tolls)
            report.row(
                f"{name}: optimum with tolls exploitable by; agents who pay come to",
                f"{share:.2g} of the gap; {paid.value:.4f}, {found.closed(paid):.1%} closed",
            )
    report.claim("exploitability with tolls, by gap", worst, 0.01, side="at most")


def crossing() -> tuple[Any, Any]:
    """The four rooms as nodes: all of the lower left room want into the upper right one.

    The more agents are in a cell, the more seldom one gets away from it, so that doors fill up.
    """
    grid = mf.Grid.from_map(mf.FOUR_ROOMS)
    ends = np.asarray(grid.cell_index(grid.free_cells[:, None] + np.array(MOVES)))
    after = jnp.asarray(np.where(ends < 0, np.arange(grid.n_cells)[:, None], ends))
    goal = jnp.asarray(1.0 * np.all(grid.centres > 6.0, axis=1))
    begin = np.all(grid.centres < np.array([5.0, 4.0]), axis=1)

    def motion(node: Any, action: Any, mu: Any) -> Any:
        free = 0.05 + 0.85 * jnp.exp(-30.0 * mu.here)
        stay = jnp.zeros_like(mu.mass).at[node].add(1.0 - free)
        return stay.at[after[node, action]].add(free)

    problem = mf.Problem(
        space=mf.Nodes(grid.n_cells, positions=grid.centres),
        actions=["up", "left", "stay", "right", "down"],
        reward=lambda node, action, mu: goal[node] - 0.01 * (action != 2),
        horizon=25,
        initial=begin / begin.sum(),
        pay_end=True,
    )
    return grid, mf.SimulatedSystem(problem, motion)


def doors(report: Report, given: argparse.Namespace) -> None:
    """Two ways through the four rooms."""
    with jax.enable_x64(True):
        grid, system = crossing()
        moves = mf.MoveFlow(*system.reveal())
        found = GAMES.anarchy(moves, rounds=ROUNDS)
        paid = found.under(found.tolls)
        flows = {
            "optimum": (moves.rollout(found.optimum.weights).mass, found.optimum.value),
            "equilibrium": (found.equilibrium.mass, found.equilibrium.value),
            "equilibrium with tolls": (paid.mass, paid.value),
        }
        first, second = (grid.index_at(*door) for door in ((5, 2), (2, 5)))
        for name, (mass, value) in flows.items():
            through = float(jnp.sum(mass[:, first])), float(jnp.sum(mass[:, second]))
            report.row(
                f"doors, {name}: J; steps that an agent stands in the lower, in the left door",
                f"{float(value):.4f}; {through[0]:.3f}, {through[1]:.3f}",
            )
        gains = float(found.equilibrium.exploitability), float(paid.exploitability)
        report.row("doors: exploitability without, with tolls", f"{gains[0]:.2g}, {gains[1]:.2g}")
        report.row("doors: price of anarchy", f"{found.price:.2%}")
        report.row("doors: closed by tolls", f"{found.closed(paid):.1%}")
        left = found.left / found.gap
        report.claim("doors: exploitability with tolls, by gap", left, 0.01, side="at most")
        if given.out is not None:
            _draw(given.out / "games", grid, flows, found.tolls, slice(5, 13), (15, 3.4))


TAXIS = mf.MirrorAscent(sweeps=200), GAMES.MirrorDescent(100)


def _fleet(start: float, count: int) -> tuple[Any, Any]:
    """The limit of many taxis, and what was found for some."""
    limit, motion = mf.make("manhattan", horizon=12, load=0.6, start=start).reveal()
    listed = limit.problem.actions.points(5)
    fleet = limit.of_problem(mf.fleet.for_fleet(limit.problem, count))
    found = GAMES.anarchy(mf.MoveFlow(fleet, motion, listed), *TAXIS, rounds=ROUNDS)
    return mf.MoveFlow(limit, motion, listed, interpolate=False), found


def _served(report: Report, name: str, found: Any) -> dict[str, tuple[Any, Any]]:
    """Rows of what taxis serve, with the claim; mass and J under each policy."""
    paid, moves = found.under(found.tolls), found.equilibrium.moves
    flows = {
        "optimum": (moves.rollout(found.optimum.weights).mass, found.optimum.value),
        "equilibrium": (found.equilibrium.mass, found.equilibrium.value),
        "equilibrium with tolls": (paid.mass, paid.value),
    }
    grid, trips = moves.flow.problem.grid, moves.flow.problem.trips
    for kind, (mass, value) in flows.items():
        chance = jnp.stack([trips.chances(grid, now, step) for step, now in enumerate(mass[:-1])])
        served = float(jnp.vdot(chance, mass[:-1]) / jnp.sum(trips.chance.demand))
        report.row(f"{name}, {kind}: J, passengers served", f"{value:.4f}, {served:.1%}")
    gains = f"{found.equilibrium.exploitability:.2g}, {paid.exploitability:.2g}"
    report.row(f"{name}: exploitability without, with tolls", gains)
    closed = f"{found.price:.2%}, {found.closed(paid):.1%}"
    report.row(f"{name}: price of anarchy, closed by tolls", closed)
    claim = f"{name}: exploitability with tolls, by gap"
    report.claim(claim, found.left / found.gap, 0.01, side="at most")
    return flows


def taxis(report: Report, given: argparse.Namespace) -> None:
    """Manhattan's fleet on a weekday's morning: drivers who think of their own fares."""
    with jax.enable_x64(True):
        _served(report, "2,000 taxis", _fleet(given.start, 2_000)[1])


def limit(report: Report, given: argparse.Namespace) -> None:
    """The same for infinitely many, with the plan and the tolls of a large fleet."""
    with jax.enable_x64(True):
        moves, found = _fleet(given.start, 100_000)
        flow, motion, plan = moves.flow, moves.motion, found.optimum
        left = GAMES.exploitability(
            GAMES.priced(flow, found.tolls), motion, plan.profile, moves.actions
        )
        plan = replace(plan, value=moves.rollout(plan.weights).value)
        found = replace(found, optimum=plan, equilibrium=TAXIS[1].solve(moves), left=left)
        flows = _served(report, "taxis in the limit", found)
        if given.out is not None:
            from mufield import viz

            problem, path = flow.problem, given.out / "games-manhattan"
            labels = viz.map_labels(problem.city)
            _draw(path, problem.grid, flows, found.tolls, slice(3, 12), (14, 6.5), labels)
        kinked = GAMES.anarchy(moves, *TAXIS, rounds=1)
        share = f"{kinked.left / kinked.gap:.0%} of the gap"
        report.row("taxis in the limit, its derivative as tolls: exploitability", share)


def _draw(
    path: Any, grid: Any, flows: Any, prices: Any, times: slice, size: Any, labels: Any = None
) -> None:
    """The population under each policy, a mean over some steps, and the tolls of that time."""
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    from mufield import viz

    labels = labels or viz.Labels()
    figure = Figure(figsize=size, layout="compressed")
    panels = figure.subplots(1, 4)
    shown = [np.asarray(mass[times]).mean(axis=0) for mass, _ in flows.values()]
    norm = Normalize(0.0, max(float(each.max()) for each in shown))
    for axes, mass, (name, (_, value)) in zip(panels[:3], shown, flows.items(), strict=True):
        title = f"{name}\nJ = {float(value):.3f}"
        last = axes is panels[2]
        viz.draw_field(axes, grid, mass, title=title, norm=norm, colour_bar=last, labels=labels)
    paid, used = np.asarray(prices.from_zero().prices[times]), np.asarray(prices.mass[times])
    mean = (paid * used).sum(axis=0) / np.maximum(used.sum(axis=0), 1e-9)
    price = replace(labels, mass="toll per step, in units of reward")
    viz.draw_field(panels[3], grid, mean, title="tolls\nat that time", labels=price)
    path.parent.mkdir(parents=True, exist_ok=True)
    viz.save_figure(figure, path, kinds=("png",))


def _quarters(grid: Any) -> np.ndarray:
    """Districts of the city: nine blocks of five by four cells."""
    x, y = np.floor(np.asarray(grid.centres).T / np.array([[5.0], [4.0]])).astype(int)
    return 3 * y + x


def projected(report: Report, given: argparse.Namespace) -> None:
    """Tolls of the city by district and hour."""
    with jax.enable_x64(True):
        found = _anarchy("city")
        grid, prices = found.optimum.moves.flow.problem.grid, found.tolls
        hours, high = np.arange(len(prices.prices)) // 4, float(jnp.max(prices.from_zero().prices))
        candidates = {
            "exact": prices,
            "9 districts, each step": prices.projected(_quarters(grid)),
            "9 districts, 4 steps an hour": prices.projected(_quarters(grid), hours),
            "the same, at most half of the highest": prices.projected(
                _quarters(grid), hours, most=high / 2
            ),
        }
        closed = {}
        for name, each in candidates.items():
            under = found.under(each)
            closed[name] = found.closed(under)
            report.row(
                f"city, {name}: closed, exploitability",
                f"{closed[name]:.1%}, {float(under.exploitability):.2g}",
            )
        tariff = prices.projected(_quarters(grid), hours).table(_quarters(grid), hours)
        for hour, row in enumerate(tariff):
            report.row(
                f"city, tariff of hour {hour} by district", " ".join(f"{p:.2f}" for p in row)
            )
    report.claim(
        "closed by 9 districts, each step", closed["9 districts, each step"], 0.5, side="at least"
    )


def obedience(report: Report, given: argparse.Namespace) -> None:
    """The city and Braess' network, if only some obey."""
    with jax.enable_x64(True):
        for name in ("city", "braess"):
            moves = _moves(name)
            plan = mf.MirrorAscent(sweeps=300).solve(moves)
            row = []
            for share in (0.0, 0.5, 0.7, 0.9, 1.0):
                followers = GAMES.Followers(plan.weights, share)
                found = GAMES.MirrorDescent(200).solve(moves, followers=followers)
                row.append(f"{share:.0%} {float(found.value):.3f}")
            report.row(f"{name}: J by share that obeys", ", ".join(row))


def speed(report: Report, given: argparse.Namespace) -> None:
    """One iteration of Munchausen mirror descent, without the exploitability there."""
    game, system, even = _rooms(40)
    theirs = munchausen.MunchausenMirrorDescent(game)
    began = time.perf_counter()
    theirs.iteration()
    there = time.perf_counter() - began
    moves, solver = mf.MoveFlow(*system.reveal()), GAMES.MirrorDescent(rate=0.01)
    state = solver.init(moves, jnp.tile(even.weights, (40, 1, 1)))
    jax.block_until_ready(solver.step(moves, state, 20))
    rounds = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(solver.step(moves, state, 20))
        rounds.append((time.perf_counter() - began) / 20)
    report.row("iteration with exploitability, ours", duration(min(rounds)))
    report.row("first iteration without it, OpenSpiel's", duration(there))
    report.claim("times as fast as OpenSpiel", there / min(rounds), 20.0, side="at least")


def learned(report: Report, given: argparse.Namespace) -> None:
    """Unknown motion."""
    worst = 0.0
    for name in given.systems.split(","):
        system = mf.make(name)
        listed = _listed(system.problem.actions, 5)
        planner = GAMES.EquilibriumPlanner(points=5)
        equilibrium = GAMES.MirrorDescent().solve(_moves(name))
        at_random = mf.random_policy(system.problem, points=5)
        first = GAMES.exploitability(*system.reveal(), at_random, listed)
        last = float(equilibrium.exploitability)
        for seed in range(given.seeds):
            shares: list[float] = []

            def watch(
                *row: Any, shares: Any = shares, system: Any = system, listed: Any = listed
            ) -> None:
                gain = GAMES.exploitability(*system.reveal(), row[1].profile, listed)
                shares.append((gain - last) / (first - last))  # noqa: B023 (called within the loop)

            learner = mf.M3UCRL(system.problem, planner=planner)
            settings = {"episodes": 10, "agents": 10, "progress": False}
            mf.learn(system, learner, seed=seed, watch=watch, **settings)
            worst = max(worst, shares[-1])
            report.row(
                f"{name}, seed {seed}: share of the way left", " ".join(f"{s:.1%}" for s in shares)
            )
    report.claim("share of the way left after ten episodes", worst, 0.05, side="at most")


if __name__ == "__main__":
    parser = options_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="of learning")
    parser.add_argument("--start", type=float, default=7.0, help="hour of the taxis' first step")
    parser.add_argument(
        "--systems", default="four-rooms,rooms-wind,rooms-crowded,hall-vortex", help="to learn"
    )
    sections = (equal, known, anarchy, doors, taxis, limit, projected, obedience, speed, learned)
    run_sections(
        "games",
        parser,
        {each.__name__: each for each in sections},
        quick=("equal", "known", "speed"),
    )
