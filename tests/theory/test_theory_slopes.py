"""Lipschitz constants: bounds that are kept and nearly reached, estimates that are found."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walking_problem
from hypothesis import given
from hypothesis import strategies as st

import mufield as mf
from mufield import Grid, Profile, TablePolicy
from mufield.models.data import Transitions
from mufield.models.features import FeatureMap
from mufield.models.kernels import (
    Linear,
    Matern32,
    Matern52,
    Select,
    SquaredExponential,
    covariances,
)
from mufield.models.priors import Steered
from mufield.policies import network_profile
from mufield.space.measure import MeanField
from mufield.space.transport import wasserstein
from mufield.theory.bounds import Constant
from mufield.theory.kernel_metric import feature_slopes, kernel_bounds
from mufield.theory.lipschitz import (
    Sites,
    between_cells,
    policy_slope,
    sites_of,
    steepest,
    unbounded_in_empty_cells,
)
from mufield.theory.verdicts import value_range

pytestmark = pytest.mark.slow

RING = Grid.box(0.0, 1.0, 12, periodic=True)
ROOM = Grid.box(0.0, 3.0, (4, 3))


def joint(own, size):
    """A kernel of state and action times one of mu, if it is seen."""
    kernel = SquaredExponential(jnp.full(own, 0.8), 0.6)
    if own == size:
        return kernel
    of_mu = Select(SquaredExponential(1.5), tuple(range(own, size)))
    return Select(kernel, tuple(range(own))) * of_mu


KERNELS = {
    "squared exponential": lambda f: SquaredExponential(jnp.linspace(0.5, 2.0, f.size), 0.7),
    "matern 3/2": lambda f: Matern32(jnp.linspace(0.5, 2.0, f.size), 0.7),
    "matern 5/2": lambda f: Matern52(1.3, 0.7),
    "linear": lambda f: Linear(0.4, 0.1),
    "joint": lambda f: joint(f.own_size, f.size),
    "steered": Steered(),
}


def features_and_points(grid, mu, seed=0, count=24):
    problem = walking_problem(grid, horizon=3)
    features = FeatureMap(problem, mu)
    rng = np.random.default_rng(seed)
    states = grid.centres[rng.integers(grid.n_cells, size=count)]
    actions = rng.uniform(-1, 1, size=(count, grid.dim))
    masses = rng.dirichlet(np.full(grid.n_cells, 0.3), size=count)
    return features, states, actions, masses


def vectors(features, states, actions, masses):
    return np.asarray(_vectors(features, *map(jnp.asarray, (states, actions, masses))))


@eqx.filter_jit
def _vectors(features, states, actions, masses):
    def one(state, action, mass):
        here = mass[features.grid.index_of(state)]
        return features(state, action, MeanField(mass=mass, here=here, grid=features.grid))

    return jax.vmap(one)(states, actions, masses)


@eqx.filter_jit
def squared_metric(kernel, xs, ys):
    return jax.vmap(lambda x, y: kernel(x, x) + kernel(y, y) - 2 * kernel(x, y))(xs, ys)


def metric(kernel, xs, ys):
    found = squared_metric(kernel, jnp.asarray(xs), jnp.asarray(ys))
    return np.sqrt(np.maximum(np.asarray(found), 0.0))


@pytest.mark.parametrize(
    "mu",
    [mf.policies.Unseen(), mf.policies.Here(), mf.policies.MeanEmbedding(), mf.policies.Pooled()],
    ids=str,
)
@pytest.mark.parametrize("grid", [RING, ROOM], ids=["ring", "room"])
def test_the_kernel_metric_keeps_to_its_constant(grid, mu):
    """Assumption Kernel: d_k(z, z') <= L_d d(z, z'), and each of its parts on its own."""
    features, states, actions, masses = features_and_points(grid, mu)
    other = np.random.default_rng(1).permutation(len(states))
    base = vectors(features, states, actions, masses)
    places = jnp.asarray(states), jnp.asarray(states[other])
    between = zip(masses, masses[other], strict=True)
    moved = {
        "state": (
            vectors(features, states[other], actions, masses),
            np.linalg.norm(np.asarray(grid.displacement(*places)), axis=-1),
        ),
        "action": (
            vectors(features, states, actions[other], masses),
            np.linalg.norm(actions - actions[other], axis=-1),
        ),
        "mu": (
            vectors(features, states, actions, masses[other]),
            np.asarray([wasserstein(grid, *pair) for pair in between]),
        ),
    }
    for name, make in KERNELS.items():
        kernel = make(features)
        slopes = feature_slopes(features).metric_slopes(kernel)
        for part, (new, distance) in moved.items():
            allowed = slopes[part] * distance
            assert np.all(metric(kernel, base, new) <= allowed + 1e-6), (name, part)


@pytest.mark.parametrize("name", ["squared exponential", "matern 3/2", "matern 5/2", "linear"])
def test_near_by_the_constant_is_reached(name):
    features = features_and_points(ROOM, mf.policies.Unseen())[0]
    kernel = KERNELS[name](features)
    found = feature_slopes(features)
    for blocks in (found.state, found.action):
        steepest_block = max(blocks, key=lambda b: kernel_bounds(kernel, (b,), found.reach).slope)
        x = np.zeros(features.size)
        y = x.copy()
        y[steepest_block.features[0]] += 1e-3 * steepest_block.slope
        reached = metric(kernel, x[None], y[None])[0] / 1e-3
        assert reached == pytest.approx(kernel_bounds(kernel, blocks, found.reach).slope, rel=1e-3)


def test_mass_that_enters_an_empty_cell_reaches_the_constant_of_the_local_mass():
    features = features_and_points(RING, mf.policies.Here())[0]
    kernel = SquaredExponential(0.5)
    mass = np.zeros((2, 12))
    mass[:, 1] = 1.0
    mass[1, :2] += [1e-6, -1e-6]
    near = vectors(features, RING.centres[[0, 0]], np.zeros((2, 1)), mass)
    reached = metric(kernel, near[:1], near[1:])[0] / wasserstein(RING, *mass)
    slope = feature_slopes(features).metric_slopes(kernel)["mu"]
    assert slope == pytest.approx(reached, rel=1e-3)


def test_the_greatest_variance_is_reached_at_the_border():
    features = features_and_points(ROOM, mf.policies.Unseen())[0]
    kernel = Steered()(features) * Linear(0.3, 0.2)
    reach = feature_slopes(features).reach
    corner = jnp.ones(features.size)
    assert float(kernel(corner, corner)) == pytest.approx(kernel_bounds(kernel, (), reach).variance)


def test_unknown_kernels_and_functions_of_mu_are_said_to_be_unknown():
    class Strange(SquaredExponential.__mro__[2]):  # AbstractKernel
        def __call__(self, x, y):
            return jnp.exp(-jnp.sum(jnp.abs(x - y)))

    with pytest.raises(NotImplementedError, match="Strange; give L_f"):
        kernel_bounds(Select(Strange(), (0,)), (), np.ones(2))
    problem = walking_problem(RING, horizon=2)
    with pytest.raises(NotImplementedError, match="your function of mu"):
        feature_slopes(FeatureMap(problem, mf.policies.Seen(lambda state, mu: mu.here)))
    with pytest.raises(NotImplementedError, match="logarithm of mu"):
        feature_slopes(FeatureMap(problem, mf.policies.LogHere()))


@given(seed=st.integers(0, 10**6), noise=st.floats(0.01, 5.0), count=st.integers(0, 8))
def test_posterior_deviations_move_no_faster_than_the_kernel_metric(seed, noise, count):
    """Lemma sigmaLipschitz, for one output."""
    rng = np.random.default_rng(seed)
    kernel = SquaredExponential(0.3)
    seen, at = rng.uniform(size=(count, 1)), rng.uniform(size=(2, 1))
    k = covariances(kernel, seen, at)
    inner = covariances(kernel, seen, seen) + noise * np.eye(count)
    variance = 1.0 - np.sum(k * np.linalg.solve(inner, k), axis=0)
    deviation = np.sqrt(np.maximum(variance, 0.0))
    assert abs(deviation[0] - deviation[1]) <= metric(kernel, at[:1], at[1:])[0] + 1e-9


def test_the_lemma_is_nearly_reached_and_lacks_the_root_of_p_for_p_outputs():
    kernel = SquaredExponential(0.3)
    seen, at = np.array([[0.5]]), np.array([[0.5], [0.55]])
    k = covariances(kernel, seen, at)
    deviation = np.sqrt(1.0 - np.sum(k**2, axis=0) / (1 + 1e-6))
    moved, allowed = abs(np.diff(deviation)[0]), metric(kernel, at[:1], at[1:])[0]
    assert 0.95 * allowed < moved <= allowed
    assert np.linalg.norm([moved, moved]) > allowed


@given(seed=st.integers(0, 10**6))
def test_functions_of_a_known_norm_keep_to_it(seed):
    """|f(z) - f(z')| <= B d_k(z, z')."""
    rng = np.random.default_rng(seed)
    kernel = SquaredExponential(0.3)
    centres, at = rng.uniform(size=(5, 1)), rng.uniform(size=(2, 1))
    weights = rng.normal(size=5)
    norm = np.sqrt(weights @ covariances(kernel, centres, centres) @ weights)
    values = weights @ covariances(kernel, centres, at)
    assert abs(values[0] - values[1]) <= norm * metric(kernel, at[:1], at[1:])[0] + 1e-9


def sites(grid, count=5, seed=0):
    rng = np.random.default_rng(seed)
    return Sites(
        grid.centres[rng.integers(grid.n_cells, size=count)],
        rng.uniform(-1, 1, size=(count, grid.dim)),
        rng.dirichlet(np.ones(grid.n_cells), size=count),
    )


def test_slopes_of_linear_functions_are_found_in_each_argument():
    problem, where = walking_problem(ROOM, horizon=2), sites(ROOM)
    centres = jnp.asarray(ROOM.centres)
    assert steepest(problem, lambda s, a, mu: 3 * s[0] - 4 * s[1], where) == pytest.approx(5)
    assert steepest(problem, lambda s, a, mu: a @ jnp.array([[0.0, 2.0], [1.0, 0.0]]), where) == (
        pytest.approx(2)
    )
    by_mu = steepest(problem, lambda s, a, mu: 7 * jnp.vdot(mu.mass, centres[:, 0]), where)
    assert by_mu == pytest.approx(7)


def test_steps_from_cell_to_cell_have_a_slope():
    problem = walking_problem(ROOM, horizon=2)
    found = steepest(problem, lambda s, a, mu: jnp.where(s[0] > 1.5, 2.0, 0.0), sites(ROOM))
    assert found == pytest.approx(2.0 / 0.75)


def test_points_of_a_ring_are_compared_the_shorter_way_round():
    problem, where = walking_problem(RING, horizon=2, max_move=0.2), sites(RING)
    turned = lambda s, a, mu: (s + 0.3 * a) % 1.0  # noqa: E731
    assert steepest(problem, turned, where, wrapped=True) == pytest.approx(1.0)
    assert steepest(problem, turned, where) > 5


def test_the_logarithm_of_mu_is_seen_to_have_no_bound():
    problem = walking_problem(RING, horizon=2, max_move=0.2)
    assert unbounded_in_empty_cells(problem, problem.reward)
    assert not unbounded_in_empty_cells(problem, lambda s, a, mu: mu.density_here**2)


def test_sites_are_points_of_the_run():
    problem = walking_problem(RING, horizon=2, max_move=0.2)
    with pytest.raises(ValueError, match="at least one transition"):
        sites_of(Transitions.empty(problem))


def flow_mass(problem):
    return jnp.broadcast_to(problem.initial, (problem.horizon + 1, problem.grid.n_cells))


def test_the_slope_of_a_table_is_that_of_its_steepest_pair():
    problem = walking_problem(RING, horizon=2, max_move=0.2)
    table = jnp.zeros((2, 12, 1)).at[1, 3, 0].set(0.5)
    profile = Profile.stacked(TablePolicy.deterministic(table), 2)
    found = policy_slope(problem, profile, flow_mass(problem))
    assert (found.value, found.source) == (pytest.approx(0.5 * 12), "bound")


def test_the_slope_of_a_randomised_policy_is_that_of_its_law_in_w1():
    problem = walking_problem(RING, horizon=1, max_move=0.2)
    # Between cells 0 and 1 a tenth of the weight goes from one end to the other, whose mean the
    # third action makes good.
    weights = np.tile([0.3, 0.4, 0.3], (12, 1))
    weights[0] = [0.4, 0.2, 0.4]
    actions = jnp.asarray([[-1.0], [0.0], [1.0]])
    policy = TablePolicy.mixing(actions, jnp.asarray(weights)[None])
    found = policy_slope(problem, Profile.stacked(policy, 1), flow_mass(problem))
    assert (found.value, found.source) == (pytest.approx(0.2 * 12), "bound")


def test_a_network_keeps_to_its_own_bound_and_one_that_sees_mu_is_an_estimate():
    problem = walking_problem(RING, horizon=2, max_move=0.2)
    blind = network_profile(problem, jax.random.key(0), width=4, depth=1)
    found = policy_slope(problem, blind, flow_mass(problem))
    limit = float(blind.join(blind.per_step).lipschitz())
    assert 0 < found.value <= limit
    assert found.source == "bound"
    seeing = network_profile(problem, jax.random.key(0), width=4, depth=1, mu=mf.policies.Pooled(1))
    assert policy_slope(problem, seeing, flow_mass(problem)).source == "estimate"


def test_distances_between_cells():
    assert between_cells(RING, RING.centres) > between_cells(RING, RING.centres, wrapped=True)
    with pytest.raises(ValueError, match="0 or more"):
        Constant(-1.0, "given")


def test_the_range_of_j_is_that_between_one_cell_and_all():
    problem = walking_problem(RING, horizon=3, max_move=0.2)
    # The entropy of a density: from one cell to evenly spread, three times.
    found = value_range(problem, np.asarray(flow_mass(problem)))
    assert found == pytest.approx(3 * np.log(12), rel=1e-6)
