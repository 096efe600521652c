"""How far the models' confidence can be trusted.

For the four rooms and both swarms, models are fitted to episodes of a random policy. They are then
asked about states and actions that they were not fitted to, where the true motion is known:

- *on policy*: those of ten more episodes of the same policy;
- *anywhere*: uniform over the space and the actions, with the population of some step of them.

The figures are shares of the true motion, axis by axis, inside ``mean +- k * beta * epistemic``
for k = 1 and 2, with each family's default beta, and the beta that would hold 90% of both. All
are means over seeds.

The claim, for each family: with the default beta at least 90% of the true motion is inside the
band in every row, on policy and anywhere.

Run ``python benchmarks/calibration.py``, with ``--quick`` for fewer seeds and episodes, and with
``--figures DIR`` for pictures.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Report
from scipy.stats import norm

import mufield
from mufield.models.base import AbstractModel, AbstractModelFamily
from mufield.models.data import Transitions
from mufield.models.ensemble import DeepEnsemble
from mufield.models.gp import GaussianProcess
from mufield.policies.encoders import AbstractEncoder, Here, Unseen
from mufield.space.measure import mean_field_at

INSIDE = 0.9
ENVIRONMENTS = {"four-rooms": Unseen(), "swarm": Unseen(), "swarm-congested": Here()}
"""What the models see of the population: all that the true motion depends on."""

EPISODES = (1, 5, 15, 30)
QUICK_EPISODES = (1, 5)
SEEDS, QUICK_SEEDS = 5, 2
HELD_OUT = 10
ANYWHERE = 1000
PICTURED = 5
"""Episodes that the models of the pictures have seen."""


def families(mu: AbstractEncoder) -> dict[str, AbstractModelFamily]:
    """The models, with their default settings."""
    return {
        "ensemble": DeepEnsemble(mu=mu),
        "GP": GaussianProcess(mu=mu),
    }


class Questions(NamedTuple):
    """Where models are asked for the motion."""

    states: jax.Array
    actions: jax.Array
    mass: jax.Array


@dataclass(frozen=True)
class World:
    """One seed's episodes, and what is asked after them."""

    system: mufield.SimulatedSystem
    episodes: list[mufield.Episode]
    questions: dict[str, Questions]

    @classmethod
    def of(cls, environment: str, seed: int, episodes: int) -> "World":
        """Runs the episodes."""
        system = mufield.make(environment)
        policy = mufield.random_policy(system.problem)
        keys = jax.random.split(jax.random.key(seed), HELD_OUT + episodes + 1)
        played = [system.run(policy, key) for key in keys[:-1]]
        more = played[:HELD_OUT]
        return cls(
            system=system,
            episodes=played[HELD_OUT:],
            questions={
                "on policy": Questions(
                    states=jnp.concatenate([episode.states[0] for episode in more]),
                    actions=jnp.concatenate([episode.actions[0] for episode in more]),
                    mass=jnp.concatenate([episode.mass[:-1] for episode in more]),
                ),
                "anywhere": anywhere(system.problem, more[0].mass[:-1], keys[-1]),
            },
        )

    def data(self, episodes: int) -> Transitions:
        """The transitions of the first episodes."""
        return Transitions.of(self.system.problem, self.episodes[:episodes])


def anywhere(problem: mufield.Problem, mass: jax.Array, key: jax.Array) -> Questions:
    """States and actions that are uniform, with the population of a random step."""
    place_key, action_key, step_key = jax.random.split(key, 3)
    grid, box = problem.grid, problem.actions
    return Questions(
        states=mufield.sample(grid, mufield.uniform(grid), place_key, ANYWHERE),
        actions=jax.random.uniform(
            action_key,
            (ANYWHERE, box.dim),
            minval=jnp.asarray(box.lower),
            maxval=jnp.asarray(box.upper),
        ),
        mass=mass[jax.random.randint(step_key, (ANYWHERE,), 0, len(mass))],
    )


@eqx.filter_jit
def answers(
    model: AbstractModel, motion: Any, grid: mufield.Grid, asked: Questions
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """True displacements, predicted ones, and their epistemic standard deviations."""

    def one(state: jax.Array, action: jax.Array, mass: jax.Array) -> tuple[jax.Array, ...]:
        mu = mean_field_at(grid, mass, state)
        found = model.predict(state, action, mu)
        return motion(state, action, mu) - state, found.mean - state, found.epistemic

    return jax.vmap(one)(*asked)


def scores(model: AbstractModel, world: World) -> dict[str, np.ndarray]:
    """Size of the mean's error in units of the band, for every question and axis."""
    system = world.system
    # All questions at once, because compiling takes longer than answering.
    asked = Questions(*map(jnp.concatenate, zip(*world.questions.values(), strict=True)))
    truth, mean, spread = answers(model, system.reveal()[1], system.problem.grid, asked)
    error = np.abs(np.asarray(truth, dtype=float) - np.asarray(mean, dtype=float))
    band = float(model.beta) * np.asarray(spread, dtype=float)
    sizes = [len(part.states) for part in world.questions.values()]
    parts = np.split(error / np.maximum(band, 1e-30), np.cumsum(sizes)[:-1])
    return {kind: part.ravel() for kind, part in zip(world.questions, parts, strict=True)}


def measure(
    report: Report, environment: str, worlds: list[World], episodes: int
) -> dict[str, dict[str, list[np.ndarray]]]:
    """Fits every family on every seed, and adds a row for each; returns all scores."""
    found: dict[str, dict[str, list[np.ndarray]]] = {}
    for name, family in families(ENVIRONMENTS[environment]).items():
        found[name] = {kind: [] for kind in worlds[0].questions}
        for seed, world in enumerate(worlds):
            model = family.fit(world.data(episodes), jax.random.key(1000 + seed))
            beta = float(model.beta)
            for kind, part in scores(model, world).items():
                found[name][kind].append(part)
        shares, needed = [], []
        for each in found[name].values():
            shares.append(f"{share_inside(each, 1.0):7.1%} {share_inside(each, 2.0):7.1%}")
            needed.append(beta * np.mean([np.quantile(part, INSIDE) for part in each]))
        label = f"{environment}, {episodes}, {name}, {beta:g}"
        report.row(label, f"{' | '.join(shares)} | {max(needed):4.2f}")
    return found


def share_inside(each: list[np.ndarray], band: float) -> float:
    """Share of the scores inside a band, averaged over the seeds."""
    return float(np.mean([np.mean(part <= band) for part in each]))


def draw_calibration(
    path: Path, environment: str, found: dict[str, dict[str, list[np.ndarray]]]
) -> None:
    """Expected against observed coverage of the true motion, all seeds together."""
    from mufield.viz.calibration import calibration_figure

    levels = np.linspace(0.05, 0.95, 19)
    curves = {}
    for name, kinds in found.items():
        beta = default_beta(families(Unseen())[name])
        for kind, each in kinds.items():
            inside = np.concatenate(each)[:, None] * beta <= norm.ppf(0.5 + levels / 2)
            curves[f"{name}, {kind}"] = (levels, inside.mean(axis=0))
    figure = calibration_figure(
        curves,
        title=f"{environment}: the true motion after {PICTURED} episodes",
        x_label="expected coverage by the epistemic spread",
    )
    figure.savefig(path / f"calibration-{environment}.png", dpi=150)


def default_beta(family: Any) -> float:
    """The number that the family multiplies the spread with."""
    return float(family.beta)


def draw_slice(path: Path, environment: str, world: World) -> None:
    """Mean and band of both families along one line, beside the truth and moves near it."""
    from mufield.viz.calibration import slice_figure

    system, data = world.system, world.data(PICTURED)
    line, asked, near = line_through(environment, world, data)
    panels = {}
    for name, family in families(ENVIRONMENTS[environment]).items():
        model = family.fit(data, jax.random.key(1000))
        truth, mean, spread = answers(model, system.reveal()[1], system.problem.grid, asked)
        half = float(model.beta) * np.asarray(spread)[:, 0]
        panels[f"{name}, beta = {float(model.beta):g}"] = (np.asarray(mean)[:, 0], half)
    rooms = environment == "four-rooms"
    figure = slice_figure(
        line,
        np.asarray(truth)[:, 0],
        panels,
        points=near,
        x_label="x, at y = 2.5, through a door" if rooms else "action, at s = 0.5",
        y_label="displacement along x for the action (0.5, 0)" if rooms else "displacement",
        title=f"{environment}: after {PICTURED} episodes",
    )
    figure.savefig(path / f"slice-{environment}.png", dpi=150)


def line_through(
    environment: str, world: World, data: Transitions
) -> tuple[np.ndarray, Questions, tuple[np.ndarray, np.ndarray] | None]:
    """A line, the questions along it, and the moves near it."""
    mass = world.questions["anywhere"].mass[0]
    count = 200
    if environment == "four-rooms":
        line = np.linspace(0.01, 10.99, count)
        states = np.stack([line, np.full(count, 2.5)], axis=1)
        actions = np.tile([0.5, 0.0], (count, 1))
        # The truth does not depend on y; the action's first axis must be about the line's.
        chosen = (np.abs(data.actions[:, 0] - 0.5) < 0.25) & data.observed[:, 0]
        moved = data.next_states[chosen, 0] - data.states[chosen, 0]
        near = (data.states[chosen, 0], moved)
    else:
        box = world.system.problem.actions
        line = np.linspace(box.lower[0], box.upper[0], count)
        states, actions = np.full((count, 1), 0.5), line[:, None]
        near = None  # noise twice as large as the farthest move would hide the band
    dtype = mass.dtype
    asked = Questions(
        jnp.asarray(states, dtype), jnp.asarray(actions, dtype), jnp.tile(mass, (count, 1))
    )
    return line, asked, near


def main() -> None:
    """Measures all rows, and draws if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="save pictures here")
    options = parser.parse_args()
    episodes = QUICK_EPISODES if options.quick else EPISODES
    if options.figures:
        options.figures.mkdir(parents=True, exist_ok=True)

    report = Report("calibration")
    report.row(
        "environment, episodes, model, default beta",
        "on policy: 1, 2 beta | anywhere: 1, 2 beta | beta for 90%",
    )
    least: dict[str, float] = {}
    for environment in ENVIRONMENTS:
        seeds = range(QUICK_SEEDS if options.quick else SEEDS)
        worlds = [World.of(environment, seed, max(episodes)) for seed in seeds]
        for count in episodes:
            found = measure(report, environment, worlds, count)
            for name, kinds in found.items():
                lowest = min(share_inside(each, 1.0) for each in kinds.values())
                least[name] = min(lowest, least.get(name, 1.0))
            if options.figures and count == PICTURED:
                draw_calibration(options.figures, environment, found)
                draw_slice(options.figures, environment, worlds[0])
    for name, lowest in least.items():
        report.claim(
            f"{name}: least share inside the band of any row",
            lowest,
            INSIDE,
            side="at least",
        )
    report.show()


if __name__ == "__main__":
    main()
