"""A demonstration: a population whose motion is unknown learns to spread over four rooms.

It learns by `ask` and `tell`, beside a policy that knows the motion and one that learns nothing.
`make demo` runs it; it leaves pictures and a film in demo/.

    python examples/demo.py --out demo
"""

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.table import Column, Table

import mufield as mf
from mufield import viz
from mufield.finite.system import FiniteSystem
from mufield.space.measure import entropy


class Played(NamedTuple):
    """What a policy leads to."""

    value: float
    mass: Float[np.ndarray, "steps_and_end cells"]
    mean_actions: Float[np.ndarray, "steps cells axes"]


def run(
    out: Path, *, episodes: int = 10, console: Console | None = None, **options: Any
) -> list[Path]:
    """Learns, compares with what is possible, and draws what happened.

    Args:
        out: Directory for the pictures; made if it does not exist.
        episodes: Episodes to learn from.
        console: Where everything is printed; standard output by default.
        options: Of the four rooms, such as ``horizon``.

    Returns:
        The files that were written.
    """
    console, began = console or Console(), time.perf_counter()
    console.print(
        "A population learns to spread over four rooms; how it moves is unknown. An episode is one "
        "run of all of it, of which one agent is tracked.",
        highlight=False,
    )
    system = mf.make("four-rooms", **options)
    profile, values = _learn(system, episodes, console)
    with _timed(console, "planning with known motion"):
        moves = mf.MoveFlow(*system.reveal(), system.problem.actions.points(9))
        best = mf.MirrorAscent(300, gap=0.05).solve(moves)
    with _timed(console, "evaluating"):
        profiles = {"uniform random": mf.random_policy(system.problem), "learned": profile}
        profiles["known motion"] = best.profile
        played = {name: _play(system, each) for name, each in profiles.items()}
        few = FiniteSystem.of(system, 1000).evaluate(profile, jax.random.key(0))
    with _timed(console, "drawing"):
        files = _draw(out, system, played, values)
    most, known = math.log(system.problem.grid.n_cells), played["known motion"].value
    table = Table(Column("policy", no_wrap=True))
    for column in ("total reward J", "of known motion", f"entropy at the end, of {most:.2f}"):
        table.add_column(column, justify="right")
    for name, each in played.items():
        spread = float(entropy(jnp.asarray(each.mass[-1])))
        table.add_row(name, f"{each.value:.2f}", f"{each.value / known:.1%}", f"{spread:.2f}")
    finite = float(few.rewards.sum())
    table.add_row("learned, 1,000 agents", f"{finite:.2f}", f"{finite / known:.1%}", "")
    console.print(table)
    console.print(f"No policy on these moves earns more than {float(best.upper):.2f}.")
    console.print(f"{time.perf_counter() - began:.0f} s in all", highlight=False)
    return files


def _learn(
    system: mf.SimulatedSystem, episodes: int, console: Console
) -> tuple[mf.Profile, Float[np.ndarray, "episodes 2"]]:
    """The loop of M3-UCRL; returns the policy to use, and J expected and realised."""
    learner = mf.M3UCRL(system.problem)
    state, values = learner.init(jax.random.key(0)), []
    for number in range(1, episodes + 1):
        with _timed(console, f"episode {number} of {episodes}") as notes:
            plan = learner.ask(state)
            episode = system.run(plan.profile, jax.random.key(number))
            values.append((float(plan.value), float(episode.value)))
            notes.append("J = {1:.2f}, the plan expected {0:.2f}".format(*values[-1]))
            state = learner.tell(state, episode, plan)
    with _timed(console, "choosing the policy to use"):
        best = learner.best(state)
    return best.profile, np.asarray(values)


def _play(system: mf.SimulatedSystem, policy: Any) -> Played:
    rollout = system.evaluate(policy)
    mass, actions = rollout.mass, system.reveal()[0].mean_actions(policy, rollout.mass)
    return Played(float(rollout.value), np.asarray(mass, float), np.asarray(actions, float))


def _draw(
    out: Path,
    system: mf.SimulatedSystem,
    played: dict[str, Played],
    values: Float[np.ndarray, "episodes 2"],
) -> list[Path]:
    grid, horizon = system.problem.grid, system.problem.horizon
    chosen = {name: played[name] for name in ("uniform random", "learned")}
    flows = [viz.NamedFlow(name, one.mass, one.mean_actions) for name, one in chosen.items()]
    learning = viz.curve_figure(
        {"realised": values[:, 1], "expected by the optimistic plan": values[:, 0]},
        x_label="episode",
        y_label="total reward J (nats)",
        reference={"planned with known motion": played["known motion"].value},
        first_x=1,
    )
    fields = viz.field_figure(grid, flows, sorted({0, horizon // 4, horizon // 2, horizon}))
    out.mkdir(parents=True, exist_ok=True)
    stills = {out / "learning.png": learning, out / "fields.png": fields}
    for path, figure in stills.items():
        figure.savefig(path, dpi=120)
    titles = [f"h = {step} of {horizon}" for step in range(horizon + 1)]
    return [viz.animate_flow(out / "film.mp4", grid, flows, titles=titles), *stills]


@contextmanager
def _timed(console: Console, what: str) -> Iterator[list[str]]:
    """Announces a step; afterwards says what was noted, and the seconds that it took."""
    console.print(f"{what} ... ", end="", highlight=False)
    began, notes = time.perf_counter(), list[str]()
    yield notes
    seconds = f"{time.perf_counter() - began:.1f} s"
    console.print("; ".join([*notes, seconds]), highlight=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="directory for the pictures")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--horizon", type=int, default=20)
    given = parser.parse_args()
    mf.enable_compilation_cache()
    for path in run(given.out, episodes=given.episodes, horizon=given.horizon):
        print(f"wrote {path}")
