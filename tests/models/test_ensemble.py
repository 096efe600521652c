"""Deep ensembles: members, masks, priors, noise, and what may be compiled when."""

import dataclasses
import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.stats import norm
from toy import LINE, PLANE, left_out, toy_episode, toy_problem

from mufield import uniform
from mufield.models.base import predict_rows
from mufield.models.data import Transitions, buffer_size
from mufield.models.ensemble import DeepEnsemble, member_rows, train
from mufield.models.features import Rows
from mufield.models.networks import MemberPrior, log_normal_cdf, negative_log_likelihood
from mufield.policies.encoders import Unseen
from mufield.space.measure import mean_field_at

pytestmark = pytest.mark.slow

PROBLEM = toy_problem(PLANE, noise=0.1, horizon=20)
SMALL = DeepEnsemble(members=3, width=8, steps=60, batch_size=32, mu=Unseen())
"""Small and trained a little, because most tests ask what reaches the fit, not how good it is."""

KEY = jax.random.key(0)
PRIOR = MemberPrior(((0, 1), (2, 3), ()), 8, 2, 1.0, 0.4, 0.7, 0.3)


@pytest.fixture(scope="module")
def data():
    return episodes(3)


@pytest.fixture(scope="module")
def model(data):
    """Fitted once, for compiling takes longest."""
    return SMALL.fit(data, KEY)


@pytest.fixture(scope="module")
def prior():
    return SMALL.fit(Transitions.empty(PROBLEM), KEY)


def episodes(count, problem=PROBLEM):
    return Transitions.of(problem, [toy_episode(problem, seed) for seed in range(count)])


def same(first, second):
    """Whether two fits have the same members, bit for bit."""
    return eqx.tree_equal(first.members, second.members)


def error_of(model, data):
    """Root mean square error of the mean, noise included."""
    found = predict_rows(model, data)
    return float(np.sqrt(np.mean(found.error[found.observed] ** 2)))


@eqx.filter_jit
def predict(model, states, actions, mass):
    grid = model.features.grid

    def one(state, action):
        return model.predict(state, action, mean_field_at(grid, mass, state))

    return jax.vmap(one)(states, actions)


def anywhere(count=50, grid=PLANE):
    rng = np.random.default_rng(5)
    states = rng.uniform(0.1, 3.9, size=(count, grid.dim))
    actions = rng.uniform(-1, 1, size=(count, grid.dim))
    return jnp.asarray(states), jnp.asarray(actions), uniform(grid)


@pytest.mark.parametrize("learn_noise", [False, True])
def test_members_differ_and_learn(data, prior, learn_noise):
    model = dataclasses.replace(SMALL, learn_noise=learn_noise).fit(data, KEY)
    weights = np.asarray(model.members.mean_weight)
    for first in range(3):
        for second in range(first):
            assert np.abs(weights[first] - weights[second]).max() > 0.1
    assert (predict(model, *anywhere()).epistemic > 1e-3).all()
    assert error_of(model, data) < 0.5 * error_of(prior, data)


def test_members_see_targets_with_noise_of_their_own_or_weights_if_it_is_learned(data):
    known = SMALL.prepare(data).rows
    found = member_rows(SMALL, SMALL.prepare(data), KEY)
    np.testing.assert_array_equal(found.weight, np.broadcast_to(known.weight, found.weight.shape))
    extra = np.asarray(found.targets - known.targets)[np.asarray(found.weight) > 0]
    assert np.std(extra) == pytest.approx(0.1, rel=0.15)  # as of the problem
    family = dataclasses.replace(SMALL, learn_noise=True)
    found = member_rows(family, family.prepare(data), KEY)
    np.testing.assert_array_equal(
        found.targets, np.broadcast_to(known.targets, found.targets.shape)
    )
    drawn = np.asarray(found.weight)[np.asarray(found.weight) > 0]
    assert (np.mean(drawn), np.std(drawn)) == pytest.approx((1.0, 1.0), rel=0.3)


@pytest.fixture(params=["known noise", "learned noise", "all rows at once"], scope="module")
def variant(request):
    """Ways to train that treat rows and axes differently."""
    changes = {
        "known noise": {},
        "learned noise": {"learn_noise": True},
        "all rows at once": {"batch_size": buffer_size(0)},
    }
    return dataclasses.replace(SMALL, **changes[request.param])


def test_masked_axes_have_no_influence_at_all(data, variant):
    data = left_out(data)
    assert 5 < (~data.observed).sum() < 60
    before = variant.fit(data, KEY)
    elsewhere = np.where(data.observed, data.next_states, 4.0 - data.next_states)
    assert same(variant.fit(dataclasses.replace(data, next_states=elsewhere), KEY), before)

    # The axes that were observed do matter, so equality above is no accident.
    elsewhere = np.where(data.observed, data.next_states + 1e-6, data.next_states)
    assert not same(variant.fit(dataclasses.replace(data, next_states=elsewhere), KEY), before)


def test_the_loss_is_the_density_where_seen_and_the_mass_beyond_the_wall_where_stopped():
    members = PRIOR.draw(1, KEY, jnp.dtype("float64"))
    member = jax.tree.map(lambda x: x[0], members)
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(6, 4)), rng.normal(size=(6, 2))
    side = np.array([[0, 0], [1, 0], [0, -1], [-1, 1], [0, 0], [1, -1]], dtype=float)
    weights = np.ones((6, 2))
    weights[4] = 0.0
    noise = np.array([0.3, 0.7])
    mean = np.asarray(member(jnp.asarray(inputs))[0])
    seen = norm.logpdf(targets, mean, noise) + 0.5 * np.log(2 * np.pi)
    above, below = norm.logsf(targets, mean, noise), norm.logcdf(targets, mean, noise)
    expected = -np.sum(weights * np.select([side == 0, side > 0], [seen, above], below))
    rows = Rows(*(jnp.asarray(part) for part in (inputs, targets, weights, side)))
    assert float(negative_log_likelihood(member, rows, jnp.asarray(noise))) == pytest.approx(
        expected
    )


def test_the_logarithm_of_the_normal_distribution_function_and_its_slope():
    x = np.linspace(-40, 10, 501)
    assert np.asarray(log_normal_cdf(jnp.asarray(x))) == pytest.approx(norm.logcdf(x), rel=1e-4)
    slope = jax.vmap(jax.grad(log_normal_cdf))(jnp.asarray(x))
    exact = np.exp(norm.logpdf(x) - norm.logcdf(x))
    assert np.asarray(slope) == pytest.approx(exact, rel=1e-3, abs=1e-12)
    single = log_normal_cdf(jnp.asarray(x, dtype=jnp.float32))
    assert np.asarray(single) == pytest.approx(norm.logcdf(x), rel=1e-4, abs=1e-6)


def test_walls_do_not_seem_to_push_agents_away():
    """Agents that want to stay, next to a wall: those that noise pushed into it count too."""
    problem = toy_problem(LINE, noise=0.3, horizon=100)
    start = np.full(100, 0.15)
    wanted = start + 0.3 * np.random.default_rng(0).normal(size=100)
    stopped = wanted < 0
    data = Transitions(
        problem=problem,
        states=start[:, None],
        actions=np.zeros((100, 1)),
        next_states=np.where(stopped, 1e-6, wanted)[:, None],
        observed=~stopped[:, None],
        mass=np.full((1, problem.grid.n_cells), 1.0 / problem.grid.n_cells),
        moment=np.zeros(100, dtype=np.int64),
        step=np.zeros(100, dtype=np.int64),
    )
    place = (jnp.array([[0.15]]), jnp.zeros((1, 1)), uniform(LINE))
    found = {
        censored: float(predict(SMALL.fit(rows, KEY), *place).mean[0, 0])
        for censored, rows in ((True, data), (False, left_out(data)))
    }
    assert found[True] == pytest.approx(0.15, abs=0.09)  # three standard errors
    assert found[False] > 0.25


def test_rows_that_only_fill_the_buffer_have_no_influence_at_all(data, variant):
    inputs = variant.prepare(data)
    count = len(data)
    assert inputs.rows.inputs.shape[0] > count
    before = train(variant, inputs, KEY)

    def spoiled(first):
        changed = inputs.rows.inputs.at[first:].set(0.7)
        return eqx.tree_at(lambda data: data.rows.inputs, inputs, changed)

    assert eqx.tree_equal(train(variant, spoiled(count), KEY), before)
    assert not eqx.tree_equal(train(variant, spoiled(count - 1), KEY), before)


@pytest.mark.parametrize("learn_noise", [False, True])
def test_without_data_the_prior_is_wide_and_finite(learn_noise):
    family = dataclasses.replace(SMALL, learn_noise=learn_noise, beta=2.0)
    model = family.fit(Transitions.empty(PROBLEM), KEY)
    found = predict(model, *anywhere())
    for part in (found.mean, found.epistemic, found.aleatoric):
        assert np.isfinite(part).all()
    # Of the order of the farthest move, which is 1 here.
    assert 0.4 < np.mean(found.epistemic) < 1.6
    assert np.min(found.epistemic) > 0.02
    assert float(model.beta) == 2.0


def test_the_prior_is_as_wide_as_asked_for(prior):
    quarter = dataclasses.replace(SMALL, prior_scale=0.25 * SMALL.prior_scale)
    narrow = quarter.fit(Transitions.empty(PROBLEM), KEY)
    wide = predict(prior, *anywhere()).epistemic
    assert np.asarray(predict(narrow, *anywhere()).epistemic) == pytest.approx(
        0.25 * np.asarray(wide)
    )


def test_twenty_transitions_are_enough_to_learn_something(prior):
    one, more = episodes(1), episodes(4)
    model = SMALL.fit(one, KEY)
    unseen = more.rows(np.arange(20, 80))
    assert len(one) == 20
    assert error_of(model, unseen) < 0.6 * error_of(prior, unseen)
    assert np.mean(predict(model, *anywhere()).epistemic) < 0.8 * np.mean(
        predict(prior, *anywhere()).epistemic
    )


def test_a_problem_without_noise_is_learned_too():
    problem = toy_problem(noise=0.0)
    data = episodes(3, problem)
    model = SMALL.fit(data, KEY)
    assert error_of(model, data) < 0.15
    assert (predict_rows(model, data).aleatoric == 0).all()


def test_predictions_can_be_differentiated(model):
    mass = uniform(PLANE)
    states, actions, _ = anywhere(5)

    def one(state, action):
        # The cell is found by a look-up without a derivative, so it stays where it is.
        mu = mean_field_at(PLANE, mass, jnp.array([0.5, 0.5]))
        found = model.predict(state, action, mu)
        return found.mean, found.epistemic

    check_grads(jax.jit(jax.vmap(one)), (states, actions), order=1, atol=1e-6, rtol=1e-6, eps=1e-7)


def test_members_that_agree_have_a_finite_derivative(model):
    alike = eqx.tree_at(
        lambda m: m.members,
        model,
        jax.tree.map(lambda leaf: jnp.repeat(leaf[:1], 3, axis=0), model.members),
    )
    mu = mean_field_at(PLANE, uniform(PLANE), jnp.array([0.5, 0.5]))

    def spread(state):
        return alike.predict(state, jnp.zeros(2), mu).epistemic.sum()

    value, slope = jax.value_and_grad(spread)(jnp.array([0.5, 0.5]))
    assert 0 <= value < 1e-6
    assert np.isfinite(slope).all()


def test_known_noise_is_reported_as_it_is(model):
    assert np.asarray(predict(model, *anywhere()).aleatoric) == pytest.approx(0.1)


@pytest.mark.parametrize("std", [0.1, 0.3])
def test_learned_noise_is_near_the_truth_with_enough_data(std):
    problem = toy_problem(LINE, noise=std, horizon=500)
    data = Transitions.of(problem, [toy_episode(problem, 0)])
    family = DeepEnsemble(members=3, width=16, learn_noise=True)
    # Away from the borders, where censoring takes the far side of the noise away.
    found = predict(family.fit(data, KEY), *anywhere(grid=LINE)).aleatoric
    assert np.mean(found) == pytest.approx(std, rel=0.2)


def test_the_same_key_gives_the_same_model_and_another_one_does_not(data, model):
    assert same(SMALL.fit(data, KEY), model)
    assert not same(SMALL.fit(data, jax.random.key(1)), model)


def compiled(caplog, action):
    """Names of what was compiled, or fetched from the cache of programs, during an action."""
    caplog.clear()
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        jax.block_until_ready(action())
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling")]


def test_nothing_is_compiled_again_while_the_data_stay_in_one_buffer(caplog):
    # Settings that no other test uses, so that the first fit has to compile.
    family = dataclasses.replace(SMALL, width=7, steps=2)
    problem = toy_problem(PLANE, horizon=buffer_size(0) // 2)
    one, two, three = (episodes(count, problem) for count in (1, 2, 3))
    assert any("train" in line for line in compiled(caplog, lambda: family.fit(one, KEY)))
    assert compiled(caplog, lambda: family.fit(two, KEY)) == []
    # The third one needs a larger buffer.
    assert any("train" in line for line in compiled(caplog, lambda: family.fit(three, KEY)))


def test_a_draw_is_the_motion_of_one_member(model):
    states, actions, mass = anywhere(4)
    drawn = set()
    for seed in range(12):
        motion = model.draw(jax.random.key(seed))
        ends = [
            motion(state, action, mean_field_at(PLANE, mass, state))
            for state, action in zip(states, actions, strict=True)
        ]
        drawn.add(np.stack(ends).tobytes())
    assert len(drawn) == 3


def test_beta_is_as_given(data):
    assert float(dataclasses.replace(SMALL, beta=1.5).fit(data, KEY).beta) == 1.5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"members": 1}, "members must be a whole number of at least 2, got 1"),
    ],
)
def test_bad_options_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        DeepEnsemble(**options)


def test_training_that_diverges_says_so(data):
    with pytest.raises(FloatingPointError, match="learning rate of 1e\\+200; lower it"):
        dataclasses.replace(SMALL, learning_rate=1e200).fit(data, KEY)


def drawn(**changes):
    """Many members, with a feature of mu behind two each of state and action."""
    prior = PRIOR._replace(parts=((0, 1), (2, 3), (4,)), width=32, **changes)
    return prior.draw(50, KEY, jnp.dtype("float64"))


def means(members, features):
    return np.asarray(jax.vmap(lambda member: member(features)[0])(members))


def test_without_curvature_members_are_linear_and_with_nothing_else_they_are_plain_networks():
    line = jnp.linspace(-1.0, 1.0, 21)[:, None] * jnp.ones((1, 5))

    def bends(curvature):
        values = means(drawn(curvature=curvature), line)
        return np.std(np.diff(values, 2, axis=1)), np.std(values[:, -1])

    assert bends(0.0)[0] < 1e-3 < 0.01 < bends(1.0)[0]
    # The spread at the border of the features is the same, within the draws.
    spreads = [bends(curvature)[1] for curvature in (0.0, 0.4, 1.0)]
    assert max(spreads) < 2.5 * min(spreads)


def test_the_bilinear_part_is_a_field_times_the_action():
    rest, go = jnp.array([[0.5, -0.5, 0.0, 0.0, 0.0]]), jnp.array([[0.5, -0.5, 1.0, 0.0, 0.0]])
    bilinear, free = drawn(curvature=1.0, bilinear=1.0), drawn(curvature=1.0, bilinear=0.0)
    assert np.std(means(bilinear, rest)) < 0.2 < 0.3 < np.std(means(free, rest))
    assert np.std(means(bilinear, go)) > 0.3


def test_before_data_mu_changes_what_its_share_says():
    empty, full = jnp.array([[0.5, 0.5, 1.0, 0.0, 0.0]]), jnp.array([[0.5, 0.5, 1.0, 0.0, 1.0]])
    little, some, much = (
        np.std(means(drawn(mu_share=share), full) - means(drawn(mu_share=share), empty))
        for share in (0.0, 0.3, 1.0)
    )
    assert little < 0.01 < 0.03 < some < 0.5 * much


def turned(states, actions):
    """Actions turned and slowed by place, which sums of units learn slowly."""
    angle, speed = 0.8 * np.sin(1.5 * states[:, 0]), 0.6 + 0.3 * np.cos(1.5 * states[:, 1])
    across, up = actions.T
    first = np.cos(angle) * across - np.sin(angle) * up
    return speed[:, None] * np.stack([first, np.sin(angle) * across + np.cos(angle) * up], axis=1)


@pytest.mark.nightly
def test_the_band_covers_a_motion_that_is_a_field_times_the_action():
    rng = np.random.default_rng(3)
    count = 250
    states, actions = rng.uniform(1, 3, (count, 2)), rng.uniform(-1, 1, (count, 2))
    data = Transitions(
        problem=PROBLEM,
        states=states,
        actions=actions,
        next_states=states + turned(states, actions) + 0.1 * rng.normal(size=(count, 2)),
        observed=np.ones((count, 2), dtype=bool),
        mass=np.full((1, PLANE.n_cells), 1.0 / PLANE.n_cells),
        moment=np.zeros(count, dtype=np.int64),
        step=np.zeros(count, dtype=np.int64),
    )
    asked = anywhere(400)
    truth = np.asarray(asked[0]) + turned(*map(np.asarray, asked[:2]))

    def judged(bilinear):
        model = DeepEnsemble(bilinear=bilinear).fit(data, KEY)
        found = predict(model, *asked)
        error = np.abs(truth - found.mean)
        return np.sqrt(np.mean(error**2)), np.mean(error <= model.beta * found.epistemic)

    (error, inside), (plain, _) = judged(DeepEnsemble().bilinear), judged(0.0)
    assert inside > 0.95
    assert error < 0.9 * plain


@pytest.mark.parametrize("name", ["curvature", "bilinear", "mu_share"])
@pytest.mark.parametrize("value", [-0.1, 1.5])
def test_shares_are_between_zero_and_one(name, value):
    with pytest.raises(ValueError, match=f"{name} must be one finite number from 0 to 1"):
        DeepEnsemble(**{name: value})
