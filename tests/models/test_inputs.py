"""What a motion looks at is found from data, by the evidence."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import PLANE, RING, toy_episode, toy_problem

from mufield.models.data import Transitions
from mufield.models.features import FeatureMap, Rows
from mufield.models.gp import GaussianProcess
from mufield.models.kernels import Structured
from mufield.models.likelihood import Limits, Search, _evidence, log_likelihood, most_likely
from mufield.policies.encoders import Around, Centre, Clock, Here, Joined, Unseen
from mufield.space.measure import MeanField, mean_field_at

KEY = jax.random.key(0)
PROBLEM = toy_problem(RING, noise=0.03, max_move=0.3)


def moves(drift, seed=0):
    """Moves of twelve agents by 0.2 of their action and a drift that ``drift(state, mu)`` tells."""
    data = Transitions.of(PROBLEM, [toy_episode(PROBLEM, seed, agents=12)])
    rng = np.random.default_rng(seed)
    drifts = data.map(lambda state, action, mu: jnp.atleast_1d(drift(state, mu)))
    ends = data.states + 0.2 * data.actions + drifts + 0.03 * rng.normal(size=data.states.shape)
    return replace(data, next_states=ends % 1.0, observed=np.ones_like(data.observed))


def meeting(state, mu):
    return 0.3 * mu.mass @ jnp.sin(2 * jnp.pi * mu.grid.centres[:, 0])


def ahead(state, mu):
    return -0.3 * mu.at((state + 1 / 8) % 1.0)


@pytest.mark.parametrize(
    ("drift", "kind"),
    [
        (lambda state, mu: 0.05 * jnp.sin(2 * jnp.pi * mu.step / 12), Clock),
        pytest.param(meeting, Centre, marks=pytest.mark.nightly),
        pytest.param(ahead, Around, marks=pytest.mark.nightly),
    ],
)
def test_an_input_is_found_where_the_motion_looks_at_it(drift, kind):
    model = GaussianProcess().fit(moves(drift), KEY)
    assert kind in {type(each) for each in model.features.mu.inputs}
    assert kind.words in model.finding
    fresh = moves(drift, seed=1)
    found = fresh.map(model.predict)
    truth = fresh.map(lambda s, a, mu: s + 0.2 * a + jnp.atleast_1d(drift(s, mu)))
    assert np.sqrt(np.mean((found.mean - truth) ** 2)) < 0.015  # half of the noise


def test_what_was_found_is_what_brought_as_much_evidence_as_the_search_asked_for():
    # The own cell's mass is seen without evidence, too, but that is no finding.
    data = moves(lambda state, mu: -0.3 * mu.here[None])
    found = {}
    for needed in (5.0, 1e4):
        model = GaussianProcess(search=Search(needed=needed)).fit(data, KEY)
        assert Here in {type(each) for each in model.features.mu.inputs}
        found[needed] = model.finding
    assert found == {5.0: Here.words, 1e4: ""}


def test_nothing_is_found_where_the_motion_looks_at_nothing():
    model = GaussianProcess().fit(moves(lambda state, mu: 0.05 * jnp.sin(2 * jnp.pi * state)), KEY)
    assert {type(each) for each in model.features.mu.inputs} <= {Here}
    assert model.finding == ""


def test_the_evidence_is_the_log_likelihood_up_to_a_constant():
    rows = Rows.of(FeatureMap(PROBLEM, Here()), moves(ahead))
    kernel = jax.tree.map(np.asarray, Structured()(FeatureMap(PROBLEM, Here())))
    found = most_likely(kernel, np.array([0.01]), rows, Limits(), KEY)
    leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(found.kernel)]
    with jax.enable_x64(True):
        kernel = jax.tree.map(jnp.asarray, found.kernel)
        matrix = np.asarray(kernel.matrix(*[jnp.asarray(found.sample.inputs)] * 2))
        for scale in (1.0, 3.0):
            vector = jnp.log(jnp.asarray(np.concatenate([*leaves, found.noise * scale])))
            inputs = (jnp.asarray(part) for part in found.sample[:3])
            value = float(log_likelihood(found.kernel, vector, *inputs)[0])
            ours = _evidence(matrix, found._replace(noise=found.noise * scale))
            constant = 0.5 * len(rows.inputs) * np.log(2 * np.pi)
            assert ours - constant == pytest.approx(value, rel=1e-9)


def test_encoders_of_one_agent():
    mass = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(16)))
    state = jnp.asarray(PLANE.centres[5])  # the cell (1, 1)
    mu = mean_field_at(PLANE, mass, state, 3)
    near = [PLANE.index_at(*cell) for cell in ((0, 1), (1, 0), (2, 1), (1, 2))]
    np.testing.assert_allclose(Around()(state, mu), jnp.log1p(16 * mass[jnp.asarray(near)]))
    centre = mass @ (jnp.asarray(PLANE.centres) / 2 - 1)
    np.testing.assert_allclose(Centre()(state, mu), centre, rtol=1e-12)
    assert float(Clock(6)(state, mu)[0]) == 0.0
    both = Joined((Clock(6), Unseen(), Here()))
    np.testing.assert_allclose(both(state, mu), [0.0, jnp.log1p(16 * mass[5])])
    corner = MeanField(mass, mass[0], PLANE)
    assert np.array_equal(Around()(jnp.asarray(PLANE.centres[0]), corner)[:2], [0.0, 0.0])
