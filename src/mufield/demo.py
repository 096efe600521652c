"""Two demonstrations: a population spreads over four rooms, Manhattan's taxis learn a morning.

Both learn by `ask` and `tell`, beside policies that know the motion, or that learn nothing.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.table import Column, Table

from . import viz
from .environments.four_rooms import four_rooms
from .finite.system import FiniteSystem
from .fleet.baselines import stay, towards_demand
from .fleet.manhattan import STEPS_PER_HOUR, manhattan, trip_table
from .fleet.passengers import Passengers
from .flow.moves import MoveFlow
from .learning.m3ucrl import M3UCRL
from .planning.mirror import MirrorAscent, MirrorPlanner
from .policies.base import Profile
from .policies.tables import random_policy
from .space.measure import entropy
from .systems import SimulatedSystem

Masses = Float[np.ndarray, "steps_and_end cells"]


class Played(NamedTuple):
    """What a policy leads to."""

    value: float
    mass: Masses
    mean_actions: Float[np.ndarray, "steps cells axes"]


class Pictures(NamedTuple):
    """Figures by the names of their files, and what a film needs."""

    figures: dict[str, Any]
    flows: list[viz.NamedFlow]
    titles: list[str]
    labels: viz.Labels = viz.Labels()


@dataclass(frozen=True, kw_only=True, eq=False)
class Story:
    """What differs between the demonstrations.

    Attributes:
        about: Says what is shown.
        episodes, agents: Episodes to learn from, and agents that are tracked in each.
        planner, ascent: Plan for the learner, and with known motion for comparison.
        others: Policies that learn nothing, by name.
        merit, measure: Name of a figure of merit besides J, and its text for a flow.
        draw: Draws flows by the names of policies, and J expected and realised by episode.
    """

    about: str
    system: SimulatedSystem
    episodes: int
    agents: int
    planner: MirrorPlanner
    ascent: MirrorAscent
    others: Mapping[str, Any]
    merit: str
    measure: Callable[[Masses], str]
    draw: Callable[[dict[str, Played], Float[np.ndarray, "episodes 2"]], Pictures]


def run(
    what: str,
    out: Path,
    *,
    episodes: int | None = None,
    console: Console | None = None,
    **options: Any,
) -> list[Path]:
    """Learns, compares with what is possible, and draws what happened.

    Args:
        what: ``"rooms"`` or ``"fleet"``.
        out: Directory for the pictures; made if it does not exist.
        episodes: Episodes to learn from; by default 10 in the rooms, 4 of the fleet.
        console: Where everything is printed; standard output by default.
        options: Of the environment, such as ``horizon``.

    Returns:
        The files that were written.
    """
    console, began = console or Console(), time.perf_counter()
    with _timed(console, "setting up"):
        story = {"rooms": _rooms, "fleet": _fleet}[what](**options)
    system = story.system
    console.print(story.about, highlight=False)
    profile, values = _learn(story, episodes or story.episodes, console)
    with _timed(console, "planning with known motion"):
        moves = MoveFlow(*system.reveal(), system.problem.actions.points(story.planner.points))
        best = story.ascent.solve(moves)
    with _timed(console, "evaluating"):
        profiles = {**story.others, "learned": profile, "known motion": best.profile}
        played = {name: _play(system, each) for name, each in profiles.items()}
        few = FiniteSystem.of(system, 1000).evaluate(profile, jax.random.key(0))
    with _timed(console, "drawing"):
        files = _save(out, system, story.draw(played, values))
    table = Table(Column("policy", no_wrap=True))
    for column in ("total reward J", "of known motion", story.merit):
        table.add_column(column, justify="right")
    known = played["known motion"].value
    for name, each in played.items():
        row = f"{each.value:.2f}", f"{each.value / known:.1%}", story.measure(each.mass)
        table.add_row(name, *row)
    finite = float(few.rewards.sum())
    table.add_row("learned, 1,000 agents", f"{finite:.2f}", f"{finite / known:.1%}", "")
    console.print(table)
    if math.isfinite(best.upper):
        console.print(f"No policy on these moves earns more than {float(best.upper):.2f}.")
    console.print(f"{time.perf_counter() - began:.0f} s in all", highlight=False)
    return files


def _learn(
    story: Story, episodes: int, console: Console
) -> tuple[Profile, Float[np.ndarray, "episodes 2"]]:
    """The loop of M3-UCRL; returns the last policy, and J expected and realised."""
    learner = M3UCRL(story.system.problem, planner=story.planner)
    state, values = learner.init(jax.random.key(0)), []
    for number in range(1, episodes + 1):
        with _timed(console, f"episode {number} of {episodes}") as notes:
            plan = learner.ask(state)
            episode = story.system.run(plan.profile, jax.random.key(number), agents=story.agents)
            values.append((float(plan.value), float(episode.value)))
            notes.append("J = {1:.2f}, the plan expected {0:.2f}".format(*values[-1]))
            state = learner.tell(state, episode, plan)
    return plan.profile, np.asarray(values)


def _play(system: SimulatedSystem, policy: Any) -> Played:
    rollout = system.evaluate(policy)
    mass, actions = rollout.mass, system.reveal()[0].mean_actions(policy, rollout.mass)
    return Played(float(rollout.value), np.asarray(mass, float), np.asarray(actions, float))


def _save(out: Path, system: SimulatedSystem, made: Pictures) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    stills = [out / f"{name}.png" for name in made.figures]
    for path, figure in zip(stills, made.figures.values(), strict=True):
        figure.savefig(path, dpi=120)
    grid, film = system.problem.grid, out / "film.mp4"
    film = viz.animate_flow(film, grid, made.flows, titles=made.titles, labels=made.labels)
    return [film, *stills]


@contextmanager
def _timed(console: Console, what: str) -> Iterator[list[str]]:
    """Announces a step; afterwards says what was noted, and the seconds that it took."""
    console.print(f"{what} ... ", end="", highlight=False)
    began, notes = time.perf_counter(), list[str]()
    yield notes
    seconds = f"{time.perf_counter() - began:.1f} s"
    console.print("; ".join([*notes, seconds]), highlight=False)


def _rooms(**options: Any) -> Story:
    system = four_rooms(**options)
    problem = system.problem
    grid, horizon = problem.grid, problem.horizon
    looks = sorted({0, horizon // 4, horizon // 2, horizon})

    def draw(played: dict[str, Played], values: Float[np.ndarray, "episodes 2"]) -> Pictures:
        chosen = {name: played[name] for name in ("uniform random", "learned")}
        flows = [viz.NamedFlow(n, one.mass, one.mean_actions) for n, one in chosen.items()]
        figures = {
            "learning": viz.curve_figure(
                {"realised": values[:, 1], "expected by the optimistic plan": values[:, 0]},
                x_label="episode",
                y_label="total reward J (nats)",
                reference={"planned with known motion": played["known motion"].value},
                first_x=1,
            ),
            "fields": viz.field_figure(grid, flows, looks),
        }
        return Pictures(figures, flows, [f"h = {h} of {horizon}" for h in range(horizon + 1)])

    return Story(
        about="A population learns to spread over four rooms; how it moves is unknown. An episode "
        "is one run of all of it, of which one agent is tracked.",
        system=system,
        planner=MirrorPlanner(),
        ascent=MirrorAscent(300, bracket=0.05),
        others={"uniform random": random_policy(problem)},
        episodes=10,
        agents=1,
        merit=f"entropy at the end, of {math.log(grid.n_cells):.2f}",
        measure=lambda mass: f"{float(entropy(jnp.asarray(mass[-1]))):.2f}",
        draw=draw,
    )


def _fleet(*, horizon: int = 12, start: float = 7.0, **options: Any) -> Story:
    system = manhattan(horizon=horizon, load=0.6, start=start, **options)
    problem, city = system.problem, trip_table().city
    chance = getattr(problem.trips, "chance", None)
    assert isinstance(chance, Passengers)
    demand = np.asarray(chance.demand, dtype=float)
    hours = start + np.arange(horizon + 1) / STEPS_PER_HOUR
    staying = "stay where passengers left"

    def served(mass: Masses) -> Float[np.ndarray, "steps cells"]:
        return np.asarray(np.minimum(mass[:-1], demand))

    def draw(played: dict[str, Played], values: Float[np.ndarray, "episodes 2"]) -> Pictures:
        learned, idle = played["learned"], played[staying]
        h, at = horizon // 2, f"at {viz.clock(hours[horizon // 2])}"
        panels = [
            viz.MapPanel(f"passengers {at}", demand[h]),
            viz.MapPanel(f"vehicles {at},\nif all stay", idle.mass[h]),
            viz.MapPanel(f"vehicles {at}, learned", learned.mass[h], learned.mean_actions[h]),
        ]
        shares = {n: served(p.mass).sum(1) / demand.sum(1) for n, p in played.items()}
        figures = {
            "served": viz.served_figure(hours[:-1], shares, title="A weekday's morning"),
            "fleet": viz.map_figure(city, panels),
        }
        moving = viz.NamedFlow("learned", learned.mass, learned.mean_actions)
        titles = [f"vehicles at {viz.clock(h)} (arrows: mean drive of empty ones)" for h in hours]
        flows = [viz.NamedFlow("all stay", idle.mass), moving]
        return Pictures(figures, flows, titles, viz.map_labels(city))

    return Story(
        about=f"Manhattan's taxis from {viz.clock(start)}: passengers are those of public records; "
        "how vehicles get on in traffic is invented, and unknown to the learner.",
        system=system,
        planner=MirrorPlanner(points=5, sweeps=40),
        ascent=MirrorAscent(80, bound=False),
        others={staying: stay(problem), "go towards demand": towards_demand(problem)},
        episodes=4,
        agents=50,
        merit="passengers served",
        measure=lambda mass: f"{served(mass).sum() / demand.sum():.1%}",
        draw=draw,
    )
