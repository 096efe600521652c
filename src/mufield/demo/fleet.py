"""The demonstration of a fleet: Manhattan's taxis learn a morning."""

import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .. import viz
from ..baselines.fleet import stay, towards_demand
from ..finite.system import FiniteSystem
from ..fleet.manhattan import STEPS_PER_HOUR, manhattan, trip_table
from ..fleet.passengers import Passengers
from ..flow.moves import MoveFlow
from ..flow.rollout import Rollout
from ..learning.m3ucrl import M3UCRL
from ..planning.mirror import MirrorAscent, MirrorPlanner
from ..policies.base import Profile
from ..systems import SimulatedSystem


class Outcome(NamedTuple):
    """What a policy leads to: the flow, and the share of passengers served at each step."""

    profile: Profile
    rollout: Rollout
    served: Float[np.ndarray, "steps"]
    total: float


def run(
    out: Path,
    *,
    episodes: int = 4,
    agents: int = 50,
    horizon: int = 12,
    console: Console | None = None,
) -> list[Path]:
    """Learns how taxis drive on a weekday's morning, compares, and draws what happened.

    Args:
        out: Directory for the pictures; made if it does not exist.
        episodes: Mornings to learn from.
        agents: Vehicles that are tracked in each.
        horizon: Steps of ten minutes.
        console: Where tables are printed; standard output by default.

    Returns:
        The files that were written.
    """
    console = console or Console()
    out.mkdir(parents=True, exist_ok=True)
    start = 7.0  # o'clock
    system = manhattan(horizon=horizon, load=0.6, start=start)
    learned_name = f"learned in {episodes} morning{'s' if episodes > 1 else ''}"
    console.print(
        f"Manhattan's taxis from {viz.clock(start)}: passengers are those of public records, how "
        "vehicles get on in traffic is invented, and unknown to the learner."
    )
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("learning", total=episodes + 1)
        profiles = {
            "stay where passengers left": stay(system.problem),
            "go towards demand": towards_demand(system.problem),
        }
        profiles[learned_name] = _learned(system, episodes, agents, console, bar, task)
        profiles["plan with known traffic"] = _known(system)
        bar.advance(task)
    outcomes = {name: _outcome(system, profile) for name, profile in profiles.items()}
    files = _draw(out, system, start, outcomes, learned_name)
    _print_outcomes(console, system, outcomes, learned_name)
    return files


def _learned(
    system: SimulatedSystem,
    episodes: int,
    agents: int,
    console: Console,
    bar: Progress,
    task: object,
) -> Profile:
    learner = M3UCRL(system.problem, planner=MirrorPlanner(points=5, sweeps=40))
    state = learner.init(jax.random.key(0))
    table = Table("morning", title=f"What was learned from {agents} tracked vehicles")
    for name in ("J expected", "J realised", "served", "seconds"):
        table.add_column(name, justify="right")
    profile = None
    for number in range(1, episodes + 1):
        began = time.perf_counter()
        plan = learner.ask(state)
        episode = system.run(plan.profile, jax.random.key(number), agents=agents)
        profile = plan.profile
        table.add_row(
            str(number),
            f"{float(plan.value):.2f}",
            f"{float(episode.value):.2f}",
            f"{_served(system, np.asarray(episode.mass, dtype=float))[1]:.1%}",
            f"{time.perf_counter() - began:.0f}",
        )
        if number < episodes:
            state = learner.tell(state, episode, plan)
        bar.advance(task)  # type: ignore[arg-type]
    console.print(table)
    assert profile is not None
    return profile


def _known(system: SimulatedSystem) -> Profile:
    flow, motion = system.reveal()
    moves = MoveFlow(flow, motion, system.problem.actions.points(5))
    return MirrorAscent(80, bound=False).solve(moves).profile


def _demand(system: SimulatedSystem) -> Float[np.ndarray, "steps cells"]:
    assert system.problem.trips is not None
    chance = system.problem.trips.chance
    assert isinstance(chance, Passengers)
    return np.asarray(chance.demand, dtype=float)


def _served(
    system: SimulatedSystem, mass: Float[np.ndarray, "steps_and_end cells"]
) -> tuple[Float[np.ndarray, "steps"], float]:
    """Share of passengers served at each step, and in all."""
    wanted = _demand(system)
    served = np.minimum(mass[:-1], wanted)
    return served.sum(axis=1) / wanted.sum(axis=1), float(served.sum() / wanted.sum())


def _outcome(system: SimulatedSystem, profile: Profile) -> Outcome:
    rollout = system.evaluate(profile)
    return Outcome(profile, rollout, *_served(system, np.asarray(rollout.mass, dtype=float)))


def _draw(
    out: Path,
    system: SimulatedSystem,
    start: float,
    outcomes: dict[str, Outcome],
    learned_name: str,
) -> list[Path]:
    problem, city = system.problem, trip_table().city
    steps = problem.horizon
    hours = start + np.arange(steps + 1) / STEPS_PER_HOUR
    last, end = steps - 1, viz.clock(hours[-2])
    wanted = _demand(system)
    masses = {name: np.asarray(one.rollout.mass, dtype=float) for name, one in outcomes.items()}
    learned = outcomes[learned_name]
    drive = np.asarray(system.mean_actions(learned.profile, learned.rollout.mass))
    middle = steps // 2
    # Names on the maps.
    places = {
        "Central Park": (-73.9665, 40.7812),
        "Midtown": (-73.9840, 40.7549),
        "Downtown": (-74.0050, 40.7150),
        "Hudson": (-73.9958, 40.7772),
        "East River": (-73.9627, 40.7376),
    }
    figures = {
        "served": viz.served_figure(
            hours[:-1],
            {f"{name}: {one.total:.0%} in all": one.served for name, one in outcomes.items()},
            title="Passengers served on a weekday's morning",
        ),
        "fleet": viz.map_figure(
            city,
            [
                viz.MapPanel(f"passengers at {end}", wanted[last]),
                viz.MapPanel(
                    f"vehicles at {end},\nif all stay", masses["stay where passengers left"][last]
                ),
                viz.MapPanel(f"vehicles at {end},\nlearned", masses[learned_name][last]),
            ],
            places=places,
        ),
        "moves": viz.map_figure(
            city,
            [
                viz.MapPanel(f"passengers at {viz.clock(hours[middle])}", wanted[middle]),
                viz.MapPanel(
                    f"vehicles at {viz.clock(hours[middle])},\nand where empty ones drive",
                    masses[learned_name][middle],
                    drive[middle],
                ),
            ],
            places=places,
        ),
    }
    stills = [out / f"{name}.png" for name in figures]
    for path, figure in zip(stills, figures.values(), strict=True):
        figure.savefig(path, dpi=110)
    film = viz.animate_flow(
        out / "fleet.mp4",
        city.grid,
        [
            viz.NamedFlow("all stay", masses["stay where passengers left"]),
            viz.NamedFlow("learned", masses[learned_name], drive),
        ],
        titles=[f"vehicles at {viz.clock(h)} (arrows: mean drive of empty ones)" for h in hours],
        labels=viz.map_labels(city),
    )
    return [film, *stills]


def _print_outcomes(
    console: Console, system: SimulatedSystem, outcomes: dict[str, Outcome], learned_name: str
) -> None:
    known = float(outcomes["plan with known traffic"].rollout.value)
    vehicles = 1000
    few = FiniteSystem.of(system, vehicles)
    real = float(few.evaluate(outcomes[learned_name].profile, jax.random.key(0)).rewards.sum())
    table = Table("policy", title="Passengers of a vehicle, minus the cost of driving empty: J")
    for name in ("J", "served", "of the plan with known traffic"):
        table.add_column(name, justify="right")
    for name, one in outcomes.items():
        value = float(one.rollout.value)
        table.add_row(name, f"{value:.2f}", f"{one.total:.1%}", f"{value / known:.1%}")
    table.add_row(
        f"{learned_name}, {vehicles:,} vehicles", f"{real:.2f}", "", f"{real / known:.1%}"
    )
    console.print(table)
