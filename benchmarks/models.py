"""Models of the motion: how far their confidence can be trusted, and how fast they are.

- ``calibration``: in the four rooms and both swarms, models are fitted to episodes of a random
  policy. They are then asked about states and actions that they were not fitted to, where the true
  motion is known: *on policy*, those of ten more episodes of the same policy; *anywhere*, uniform
  over the space and the actions, with the population of some step of them. The figures are shares
  of the true motion, axis by axis, inside ``mean +- k * beta * epistemic`` for k = 1 and 2, with
  each family's default beta, and the beta that would hold 90% of both; means over seeds. The claim,
  for each family: at least 90% is inside the band in every row, on policy and anywhere.
- ``training``: all members of an ensemble are trained on 600 transitions of the four rooms in one
  compiled call, at least 4 times faster than a loop over members and steps around the jitted step
  of one member. Both see the same starts, targets and batches, and end with the same members up to
  rounding.
- ``growth``: value-and-gradient of J over the swarm's 200 steps, with a Gaussian process' mean plus
  half a band as the motion: with 4,000 transitions it takes at most 1.5 times as long as with
  400, for several sets of data together. A single set may need more points than another.
- ``exact``: mean, standard deviation and their gradients for 1,000 points at 4,000 transitions, in
  single precision: at least 20 times faster than the fastest exact rival: scikit-learn, which has
  no gradients and is timed without them, or the textbook's formulas with gradients by hand, jitted
  in double precision. The mean is off by at most 1% of the exact standard deviation.

Run ``python benchmarks/models.py [section ...]``; ``--quick`` has one seed of the four rooms, the
training and the exact rivals.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _report import Report, options_of, run_sections, time_side_by_side
from scipy.linalg import cho_factor, cho_solve
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from threadpoolctl import threadpool_limits

import mufield
from mufield import AbstractSystem, Flow, Profile
from mufield.models.base import AbstractModel, AbstractModelFamily
from mufield.models.data import Transitions
from mufield.models.ensemble import DeepEnsemble, EnsembleInputs, member_rows, train
from mufield.models.features import Rows
from mufield.models.gp import GaussianProcess
from mufield.models.kernels import SquaredExponential
from mufield.models.networks import Member, negative_log_likelihood
from mufield.models.posterior import Posterior, safe_root
from mufield.policies.encoders import AbstractEncoder, Here, Unseen
from mufield.policies.network import SquashedTable
from mufield.space.measure import mean_field_at

FASTER_THAN_LOOP = 4.0
EPISODES = 30
TRANSITIONS = 600
SAME_MEMBERS = 0.02
"""Rounding grows over five hundred steps, most where the sign of a gradient of zero flips."""

FEW, MANY = 400, 4000
QUERIES = 1000
COST_GROWTH = 1.5
FASTER_THAN_EXACT = 20.0
MEAN_ERROR = 0.01

KEY = jax.random.key(1)


# Calibration.


INSIDE = 0.9
ENVIRONMENTS = {"four-rooms": Unseen(), "swarm": Unseen(), "swarm-congested": Here()}
"""What the models see of the population: all that the true motion depends on."""

HELD_OUT = 10
ANYWHERE = 1000


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


def calibration(report: Report, options: argparse.Namespace) -> None:
    """Coverage of the true motion by both families."""
    episodes = (5,) if options.quick else (1, 5, 15, 30)
    report.row(
        "environment, episodes, model, default beta",
        "on policy: 1, 2 beta | anywhere: 1, 2 beta | beta for 90%",
    )
    least: dict[str, float] = {}
    for environment in list(ENVIRONMENTS)[: 1 if options.quick else None]:
        seeds = range(1 if options.quick else 5)
        worlds = [World.of(environment, seed, max(episodes)) for seed in seeds]
        for count in episodes:
            found = measure(report, environment, worlds, count)
            for name, kinds in found.items():
                lowest = min(share_inside(each, 1.0) for each in kinds.values())
                least[name] = min(lowest, least.get(name, 1.0))
    for name, lowest in least.items():
        report.claim(
            f"{name}: least share inside the band of any row",
            lowest,
            INSIDE,
            side="at least",
        )


# Training of ensembles.


class OneByOne(NamedTuple):
    """What each member starts from, and what it sees."""

    starts: list[Member]
    rows: list[Rows]
    batches: jax.Array


def prepare(family: DeepEnsemble, data: EnsembleInputs) -> OneByOne:
    """The same random draws that the package makes, taken apart."""
    start_key, member_key, batch_key = jax.random.split(KEY, 3)
    starts = family.prior(data).draw(family.members, start_key, data.rows.inputs.dtype)
    rows = member_rows(family, data, member_key)
    shape = (family.steps, family.batch_size)
    return OneByOne(
        starts=[jax.tree.map(lambda leaf, i=i: leaf[i], starts) for i in range(family.members)],
        rows=[
            rows._replace(targets=rows.targets[i], weight=rows.weight[i])
            for i in range(family.members)
        ],
        batches=jax.random.randint(batch_key, shape, 0, data.count),
    )


def step_of_one(family: DeepEnsemble, data: EnsembleInputs) -> tuple[Callable[..., Any], Any]:
    """One step of one member, and the optimiser's first state."""
    optimiser = optax.adam(optax.cosine_decay_schedule(family.learning_rate, family.steps))
    noise, prior = data.scaled_noise, family.prior(data)
    count = data.count.astype(data.rows.inputs.dtype)

    def loss(member: Member, anchor: Member, batch: Rows) -> jax.Array:
        total = negative_log_likelihood(member, batch, noise) * count / family.batch_size
        return (total + prior.negative_log_density(anchor, member)) / count

    def step(
        carry: tuple[Member, Any], anchor: Member, rows: Rows, chosen: jax.Array
    ) -> tuple[Member, Any]:
        member, state = carry
        gradient = jax.grad(loss)(member, anchor, rows.at(chosen))
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(member, updates), state

    return step, optimiser.init


def loop_over_steps(family: DeepEnsemble, data: EnsembleInputs) -> Callable[[], list[Member]]:
    """Members one after the other, each in a loop around its jitted step."""
    step, first_state = step_of_one(family, data)
    jitted, inputs = jax.jit(step), prepare(family, data)
    batches = list(inputs.batches)  # cut beforehand, or cutting would take most of the time

    def run() -> list[Member]:
        members = []
        for start, rows in zip(inputs.starts, inputs.rows, strict=True):
            carry = (start, first_state(start))
            for chosen in batches:
                carry = jitted(carry, start, rows, chosen)
            members.append(jax.block_until_ready(carry[0]))
        return members

    return run


def training(report: Report, options: argparse.Namespace) -> None:
    """Times the training of all members at once and of one at a time."""
    system = mufield.make("four-rooms")
    policy = mufield.random_policy(system.problem)
    keys = jax.random.split(jax.random.key(0), EPISODES)
    episodes = [system.run(policy, key) for key in keys]
    transitions = Transitions.of(system.problem, episodes)
    if len(transitions) != TRANSITIONS:
        sys.exit(f"expected {TRANSITIONS} transitions, got {len(transitions)}")
    family = DeepEnsemble()
    data = family.prepare(transitions)

    together, loop = partial(train, family, data, KEY), loop_over_steps(family, data)
    sides = {"together": lambda: jax.block_until_ready(together()), "loop": loop}
    times = time_side_by_side(sides, rounds=4 if options.quick else 7)
    ratio = times["loop"].best / times["together"].best
    report.row(
        f"ensemble, {family.members} members, {TRANSITIONS} transitions, {family.steps} steps",
        str(times["together"]),
    )
    report.row("  a loop over members and steps", f"{times['loop']}, {ratio:.1f} x")
    report.row("    relative difference of the members", f"{check_same(together(), loop):.1e}")
    name = "ensemble: fitting, times faster than one jitted member at a time"
    report.claim(name, ratio, FASTER_THAN_LOOP, side="at least")


def check_same(members: Member, rival: Callable[[], list[Member]]) -> float:
    """How far the members are apart; exits if that is more than rounding."""
    theirs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rival())
    pairs = zip(jax.tree.leaves(members), jax.tree.leaves(theirs), strict=True)
    gap = max(
        float(jnp.linalg.norm(ours - other) / (jnp.linalg.norm(other) + 1e-6))
        for ours, other in pairs
    )
    if not (np.isfinite(gap) and gap < SAME_MEMBERS):
        sys.exit(f"the members differ by {gap:.1e} from those that were trained one at a time")
    return gap


def swarm_data(system: AbstractSystem, rows: int, seed: int = 0) -> Transitions:
    """Transitions of agents that act at random, all in one episode."""
    problem = system.problem
    policy = mufield.random_policy(problem)
    agents = rows // problem.horizon
    return Transitions.of(problem, [system.run(policy, jax.random.key(seed), agents=agents)])


@eqx.filter_jit
def plan_gradient(flow: Flow, model: AbstractModel, raw: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Value and gradient of a plan where agents go as far as half the band lets them."""

    def motion(state: jax.Array, action: jax.Array, mu: mufield.MeanField) -> jax.Array:
        found = model.predict(state, action, mu)
        return found.mean + 0.5 * model.beta * found.epistemic

    def value(raw: jax.Array) -> jax.Array:
        table = SquashedTable(raw, flow.problem.actions)
        return flow.value(Profile.stacked(table, flow.problem.horizon), motion)

    return jax.value_and_grad(value)(raw)


def growth(report: Report, options: argparse.Namespace) -> None:
    """Times a plan's gradient with few and with many transitions behind the model."""
    system = mufield.make("swarm")
    problem, flow = system.problem, Flow(system.problem)
    raw = jax.random.normal(jax.random.key(1), (problem.horizon, problem.grid.n_cells, 1))
    sides: dict[str, Callable[[], object]] = {}
    seeds = range(5)
    for seed in seeds:
        for rows in (FEW, MANY):
            model = GaussianProcess().fit(swarm_data(system, rows, seed), jax.random.key(2))
            sides[f"{seed} {rows}"] = partial(_wait, plan_gradient, flow, model, raw)
    times = time_side_by_side(sides, rounds=30)
    total = {FEW: 0.0, MANY: 0.0}
    for seed in seeds:
        few, many = times[f"{seed} {FEW}"], times[f"{seed} {MANY}"]
        total[FEW] += few.best
        total[MANY] += many.best
        # How many points a model needs differs from data to data, and with it the time.
        report.row(
            f"GP, gradient of a plan, data {seed}: {FEW} transitions, {MANY}",
            f"{few}, {many}: {many.best / few.best:.2f} x",
        )
    report.claim(
        f"GP: time of plans' gradients with {MANY} over that with {FEW} transitions, "
        f"{len(seeds)} sets of data together",
        total[MANY] / total[FEW],
        COST_GROWTH,
        side="at most",
    )


def exact(report: Report, options: argparse.Namespace) -> None:
    """Times predictions with gradients against exact ones, and compares the means."""
    system = mufield.make("swarm")
    data = swarm_data(system, MANY)
    # One kernel that scikit-learn has too.
    family, key = GaussianProcess(prior=SquaredExponential(2.0, 0.5)), jax.random.key(2)
    model, (features, _, factor, _) = family.fit(data, key), family.solve(data, key)
    rows = Rows.of(features, data)
    rng = np.random.default_rng(3)
    chosen = rows.inputs[rng.integers(len(rows.inputs), size=QUERIES)]
    points = chosen + 0.1 * rng.normal(size=chosen.shape)

    kernel, noise = factor.kernel, float(factor.noise[0])
    with jax.enable_x64(True):
        predict = exact_predictor(kernel, noise, rows)
        points64 = jnp.asarray(points)
    regressor = scikit_learn(kernel, noise, rows)
    points32 = jnp.asarray(points, dtype=jnp.float32)

    def run_exact() -> tuple[jax.Array, ...]:
        with jax.enable_x64(True):
            found: tuple[jax.Array, ...] = jax.block_until_ready(predict(points64))
        return found

    def run_scikit_learn(threads: int) -> object:
        with threadpool_limits(threads):
            return regressor.predict(points, return_std=True)

    rivals: dict[str, Callable[[], object]] = {
        "jitted": run_exact,
        "scikit-learn, one thread": partial(run_scikit_learn, 1),
        "scikit-learn, all cores": partial(run_scikit_learn, os.cpu_count() or 1),
    }
    sides = {
        "ours": partial(_wait, with_gradients, model, points32),
        **rivals,
    }
    times = time_side_by_side(sides, rounds=2 if options.quick else 10)
    report.row(f"GP, {QUERIES} points at {MANY} transitions", str(times["ours"]))
    for name in rivals:
        ratio = times[name].best / times["ours"].best
        report.row(f"  exact, {name}", f"{times[name]}, {ratio:.0f} x")

    ours = [np.asarray(part, dtype=float) for part in with_gradients(model, points32)]
    theirs = [np.asarray(part) for part in run_exact()]
    mean, std = regressor.predict(points, return_std=True)
    # The rivals agree with each other, or the comparison means nothing.
    np.testing.assert_allclose(theirs[0], mean, atol=1e-6)
    np.testing.assert_allclose(theirs[1], std, atol=1e-6)
    slope = [np.abs(ours[i] - theirs[i]).max() / np.abs(theirs[i]).max() for i in (2, 3)]
    report.row("  gradients of mean, of std: largest relative error", f"{max(slope):.1e}")
    report.claim(
        f"GP: predictions with gradients at {MANY} transitions, times faster than exact ones",
        min(times[name].best for name in rivals) / times["ours"].best,
        FASTER_THAN_EXACT,
        side="at least",
    )
    report.claim(
        "GP: largest error of the mean, in standard deviations",
        float(np.max(np.abs(ours[0] - theirs[0]) / theirs[1])),
        MEAN_ERROR,
        side="at most",
    )


@eqx.filter_jit
def with_gradients(model: Posterior, points: jax.Array) -> tuple[jax.Array, ...]:
    """Mean, standard deviation and their gradients at feature vectors."""

    def one(z: jax.Array) -> tuple[jax.Array, ...]:
        def both(z: jax.Array) -> tuple[jax.Array, jax.Array]:
            mean, variance = model.process(z)
            return mean[0], safe_root(variance)[0]

        (mean, std), pull_back = jax.vjp(both, z)
        unit, zero = jnp.ones_like(mean), jnp.zeros_like(mean)
        return mean, std, pull_back((unit, zero))[0], pull_back((zero, unit))[0]

    return jax.vmap(one)(points)


def exact_predictor(
    kernel: SquaredExponential, noise: float, rows: Rows
) -> Callable[[jax.Array], tuple[jax.Array, ...]]:
    """The textbook's formulas in double precision, with gradients by hand, all points at once."""
    scale, variance = jnp.asarray(kernel.length_scale), float(kernel.variance)
    inputs = jnp.asarray(rows.inputs) / scale
    squared = jnp.sum((inputs[:, None] - inputs[None]) ** 2, axis=-1)
    gram = np.asarray(variance * jnp.exp(-0.5 * squared)) + noise * np.eye(len(inputs))
    factor = cho_factor(gram, lower=True)
    alpha = jnp.asarray(cho_solve(factor, rows.targets[:, 0]))
    inverse = jnp.asarray(cho_solve(factor, np.eye(len(inputs))))

    @jax.jit
    def predict(points: jax.Array) -> tuple[jax.Array, ...]:
        z = points / scale
        apart = jnp.sum(z**2, axis=1)[:, None] + jnp.sum(inputs**2, axis=1) - 2 * z @ inputs.T
        k = variance * jnp.exp(-0.5 * apart)
        solved = k @ inverse
        std = jnp.sqrt(variance - jnp.sum(solved * k, axis=1))

        def slope(weights: jax.Array) -> jax.Array:
            """Gradient of a sum of ``weights * k`` by the points."""
            each = weights * k
            return (each @ inputs - jnp.sum(each, axis=1)[:, None] * z) / scale

        return k @ alpha, std, slope(alpha[None]), -slope(solved) / std[:, None]

    return predict


def scikit_learn(kernel: SquaredExponential, noise: float, rows: Rows) -> GaussianProcessRegressor:
    """The same process in scikit-learn."""
    covariance = ConstantKernel(float(kernel.variance)) * RBF(np.asarray(kernel.length_scale))
    regressor = GaussianProcessRegressor(covariance, alpha=noise, optimizer=None)
    return regressor.fit(rows.inputs, rows.targets[:, 0])


def _wait(function: Callable[..., object], *arguments: object) -> object:
    return jax.block_until_ready(function(*arguments))


def main() -> None:
    sections = {
        "calibration": calibration,
        "training": training,
        "growth": growth,
        "exact": exact,
    }
    quick = ("calibration", "training", "exact")
    run_sections("models", options_of(__doc__), sections, quick=quick)


if __name__ == "__main__":
    main()
