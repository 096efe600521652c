"""The Gaussian processes' part of the models' speed benchmark.

1. Value-and-gradient of J over the swarm's 200 steps, with the model's mean plus half a band as
   the motion: with 4,000 transitions it takes at most 1.5 times as long as with 400, for
   five sets of data together. A single set may need more points than another and take longer.
2. Mean, standard deviation and their gradients for 1,000 points at 4,000 transitions, in single
   precision: at least 20 times faster than the fastest exact rival: scikit-learn, which has no
   gradients and is timed without them, or the textbook's formulas with gradients by hand, jitted
   in double precision. The mean is off by at most 1% of the exact standard deviation.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Report, Timing, duration, time_side_by_side
from scipy.linalg import cho_factor, cho_solve
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from threadpoolctl import threadpool_limits

import mufield
from mufield import AbstractSystem, Flow, Profile
from mufield.models.base import AbstractModel
from mufield.models.data import Transitions
from mufield.models.features import Rows
from mufield.models.gp import GaussianProcess
from mufield.models.kernels import SquaredExponential
from mufield.models.posterior import Posterior, safe_root
from mufield.planning.starts import SquashedTable

FEW, MANY = 400, 4000
QUERIES = 1000
SEEDS = (0, 1, 2, 3, 4)
COST_GROWTH = 1.5
FASTER_THAN_EXACT = 20.0
MEAN_ERROR = 0.01


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
        table = SquashedTable(raw, None, flow.problem.actions, 1)
        return flow.value(Profile.stacked(table, flow.problem.horizon), motion)

    return jax.value_and_grad(value)(raw)


def compare_sizes(report: Report, quick: bool) -> None:
    """Times a plan's gradient with few and with many transitions behind the model."""
    system = mufield.make("swarm")
    problem, flow = system.problem, Flow(system.problem)
    raw = jax.random.normal(jax.random.key(1), (problem.horizon, problem.grid.n_cells, 1))
    sides: dict[str, Callable[[], object]] = {}
    for seed in SEEDS:
        for rows in (FEW, MANY):
            model = GaussianProcess().fit(swarm_data(system, rows, seed), jax.random.key(2))
            sides[f"{seed} {rows}"] = partial(_wait, plan_gradient, flow, model, raw)
    times = time_side_by_side(sides, rounds=5 if quick else 30)
    total = {FEW: 0.0, MANY: 0.0}
    for seed in SEEDS:
        few, many = times[f"{seed} {FEW}"], times[f"{seed} {MANY}"]
        total[FEW] += few.best
        total[MANY] += many.best
        # How many points a model needs differs from data to data, and with it the time.
        report.row(
            f"GP, gradient of a plan, data {seed}: {FEW} transitions, {MANY}",
            f"{show(few)}, {show(many)}: {many.best / few.best:.2f} x",
        )
    report.claim(
        f"GP: time of plans' gradients with {MANY} over that with {FEW} transitions, "
        f"{len(SEEDS)} sets of data together",
        total[MANY] / total[FEW],
        COST_GROWTH,
        side="at most",
    )


def compare_with_exact(report: Report, quick: bool) -> None:
    """Times predictions with gradients against exact ones, and compares the means."""
    system = mufield.make("swarm")
    data = swarm_data(system, MANY)
    # One kernel that scikit-learn has too.
    family, key = GaussianProcess(prior=SquaredExponential(2.0, 0.5)), jax.random.key(2)
    model, rows = family.fit(data, key), family.rows(data)
    factor = family.settled(data, key)[1]
    rng = np.random.default_rng(3)
    chosen = rows.inputs[rng.integers(len(rows.inputs), size=QUERIES)]
    points = chosen + 0.1 * rng.normal(size=chosen.shape)

    kernel, noise = factor.kernel, float(factor.noise[0])
    with jax.enable_x64(True):
        exact = exact_predictor(kernel, noise, rows)
        points64 = jnp.asarray(points)
    regressor = scikit_learn(kernel, noise, rows)
    points32 = jnp.asarray(points, dtype=jnp.float32)

    def run_exact() -> tuple[jax.Array, ...]:
        with jax.enable_x64(True):
            found: tuple[jax.Array, ...] = jax.block_until_ready(exact(points64))
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
    times = time_side_by_side(sides, rounds=3 if quick else 10)
    report.row(f"GP, {QUERIES} points at {MANY} transitions", show(times["ours"]))
    for name in rivals:
        ratio = times[name].best / times["ours"].best
        report.row(f"  exact, {name}", f"{show(times[name])}, {ratio:.0f} x")

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


def show(timing: Timing) -> str:
    """Fastest and middle round."""
    return f"{duration(timing.best)} (median {duration(timing.median)})"


def main() -> None:
    """Runs the Gaussian processes' part alone."""
    report = Report("models, Gaussian processes")
    compare_sizes(report, quick=False)
    compare_with_exact(report, quick=False)
    report.show()


if __name__ == "__main__":
    main()
