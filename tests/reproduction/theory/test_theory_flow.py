"""Lemmas MFFlowW1Bound, regretOptBound and episodeRegretSquareBound, step by step."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_worlds import RING, constants, flow_on, jumping, shifted

from mufield import Grid
from mufield.policies import ActionLaw
from mufield.space.measure import wasserstein
from reproduction.theory.bounds import (
    Constants,
    episode_bound,
    flow_bound,
    gap_bound,
    grid_stretch,
    logs,
    power,
    regret_bound,
)

pytestmark = pytest.mark.slow

SLACK = 1e-6


def stated(known, beta, deviations):
    """Lemma MFFlowW1Bound as the paper states it, for h = 1, ..., H."""
    powers = known.growth(beta) ** np.arange(len(deviations))
    return 2 * known.stretch * beta * powers * np.cumsum(deviations)


@given(seed=st.integers(0, 10**6), beta=st.floats(0.1, 3.0))
def test_flows_stay_as_near_as_the_lemma_says(seed, beta):
    twin = jumping(seed, beta)
    distances, deviations, gap = twin.played()
    known = twin.known()
    bound = flow_bound(known, beta, deviations)
    assert np.all(logs(distances) <= bound + SLACK)
    assert np.all(bound[1:] <= np.log(stated(known, beta, deviations)) + SLACK)
    # The chain of lemmas from the distances to the regret.
    from_distances = gap_bound(known, logs(distances[:-1]))
    assert math.log(max(abs(gap), 1e-300)) <= from_distances + SLACK
    assert from_distances <= gap_bound(known, bound[:-1]) + SLACK
    from_deviations = gap_bound(known, np.log(stated(known, beta, deviations))[:-1])
    assert from_deviations <= episode_bound(known, beta, deviations, paid=4) + SLACK


def test_in_a_world_that_is_only_shifted_lemma_and_gap_are_equalities():
    twin = shifted()
    distances, deviations, gap = twin.played()
    known = twin.known()
    bound = flow_bound(known, float(twin.beta), deviations)
    np.testing.assert_allclose(np.exp(bound[1:]), distances[1:], rtol=1e-3)
    # All of the paid distributions count, and the first is the same in both worlds.
    np.testing.assert_allclose(math.exp(gap_bound(known, logs(distances[:-1]))), gap, rtol=1e-3)


@pytest.mark.parametrize("name", ["motion", "spread", "policy"])
def test_with_any_constant_a_tenth_smaller_the_lemma_would_be_false(name):
    twin = shifted()
    distances, deviations, _ = twin.played()
    known = twin.known()
    smaller = dataclasses.replace(known, **{name: 0.9 * getattr(known, name)})
    bound = flow_bound(smaller, float(twin.beta), deviations)
    assert np.any(logs(distances) > bound + 10 * SLACK)


def test_with_beta_a_tenth_smaller_or_without_the_first_step_the_lemma_would_be_false():
    twin = shifted()
    distances, deviations, _ = twin.played()
    narrow = flow_bound(twin.known(), 0.9 * float(twin.beta), deviations)
    assert logs(distances)[1] > narrow[1]
    # Sec. 5 prints the sum from i = 1.
    late = flow_bound(twin.known(), float(twin.beta), np.where(np.arange(3) == 0, 0.0, deviations))
    assert logs(distances)[1] > late[1]


def test_the_bound_of_the_flow_by_hand():
    known, deviations = constants(motion=0.5, spread=0.1, policy=1.0), np.array([0.2, 0.1, 0.3])
    step = 2 * (1 + 1.0) * (0.5 + 2 * 2.0 * 0.1)
    assert known.step_growth(2.0) == pytest.approx(step)
    assert known.growth(2.0) == pytest.approx(1 + step)
    after = [2 * 2.0 * 0.2]
    for deviation in (0.1, 0.3):
        after.append(step * after[-1] + 2 * 2.0 * deviation)
    bound = flow_bound(known, 2.0, deviations)
    np.testing.assert_allclose(np.exp(bound), [0.0, *after])


def test_the_regret_of_an_episode_by_hand():
    known = constants(motion=0.5, spread=0.1, policy=1.0, reward=0.3, stretch=1.2)
    growth = 1 + 1.2 * 2 * (1 + 1.0) * (0.5 + 2 * 2.0 * 0.1)
    expected = 4 * 1.2 * 2.0 * 0.3 * (1 + 1.0) * growth**2 * 3 * (0.2 + 0.1 + 0.3)
    found = episode_bound(known, 2.0, np.array([0.2, 0.1, 0.3]), paid=3)
    assert math.exp(found) == pytest.approx(expected)


@given(seed=st.integers(0, 10**6), episodes=st.integers(1, 6), steps=st.integers(1, 6))
def test_theorem_main_is_no_less_than_its_episodes_and_equal_if_all_are_alike(
    seed, episodes, steps
):
    """Cauchy-Schwarz over episodes, Jensen over steps."""
    known = constants(motion=0.5, spread=0.1, policy=1.0)
    deviations = np.random.default_rng(seed).uniform(size=(episodes, steps))
    for some, alike in ((deviations, False), (np.full_like(deviations, 0.3), True)):
        each = [episode_bound(known, 2.0, row, paid=steps) for row in some]
        complexity = math.log(np.sum(some**2))
        main = regret_bound(known, 2.0, complexity, episodes, paid=steps)
        total = float(np.logaddexp.reduce(each))
        assert total <= main + 1e-9
        assert not alike or total == pytest.approx(main, abs=1e-9)


def test_the_theorem_for_gaussian_processes_has_the_papers_form():
    """4 sqrt(2 e p) beta L_r (1 + L_pi) L-bar^(H-1) H^2 sqrt(T gamma)."""
    known = constants(motion=0.5, spread=0.1, policy=1.0, reward=0.3)
    p, horizon, episodes, gamma = 2, 5, 7, 11.0
    complexity = math.log(2 * math.e * p * horizon * gamma)
    found = regret_bound(known, 2.0, complexity, episodes, paid=horizon)
    expected = 4 * math.sqrt(2 * math.e * p) * 2.0 * 0.3 * 2.0 * known.growth(2.0) ** 4
    expected *= horizon**2 * math.sqrt(episodes * gamma)
    assert math.exp(found) == pytest.approx(expected)


def test_step_2_of_the_printed_proof_fails_for_imagined_motions_that_jump():
    """It claims a Lipschitz constant of Phi(., f~) in mu, though f~ need not be continuous."""
    flow = flow_on(RING, 4, 0.06, 0.15)
    beta, sigma = 1.0, 0.1
    middle = RING.n_cells // 2

    def jumping(s, a, mu):
        return s + beta * sigma * jnp.where(s > RING.centres[middle, 0] - 1e-3, 1.0, -1.0)

    law = ActionLaw(actions=jnp.zeros((24, 1, 1)), weights=jnp.ones((24, 1)))
    left, right = (jnp.zeros(24).at[k].set(1.0) for k in (middle - 1, middle))
    before = wasserstein(RING, left, right)
    after = wasserstein(RING, *(flow.step(mass, law, jumping) for mass in (left, right)))
    # Eqs. 8.1.4 and 8.1.5 with L_f = 1, L_sigma = 0 and L_pi = 0.
    assert after > 5 * before


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 2.0])
def test_the_grid_stretches_landings_by_kappa_at_most(ratio):
    grid = Grid.box(0.0, 30.0, 30)
    flow = flow_on(grid, 1, ratio, 1.0)
    law = ActionLaw(actions=jnp.zeros((30, 1, 1)), weights=jnp.ones((30, 1)))
    mass = jnp.zeros(30).at[15].set(1.0)
    land = jax.jit(jax.vmap(lambda x: flow.step(mass, law, lambda s, a, mu: s + x)))
    starts = np.linspace(0.0, 1.0, 21)
    kappa = grid_stretch([ratio], [1.0])
    worst = {}
    for shift in (0.01, 0.3, 1.0):
        pairs = zip(
            *(np.asarray(land(jnp.asarray(x))) for x in (starts, starts + shift)), strict=True
        )
        worst[shift] = max(wasserstein(grid, *pair) for pair in pairs) / shift
    assert max(worst.values()) <= kappa * (1 + 1e-6)
    assert worst[0.01] >= 0.99 * kappa


def test_kappa_is_one_for_wide_noise_and_infinite_without_noise():
    assert grid_stretch([1.0], [1.0]) == pytest.approx(1.0, abs=1e-8)
    assert grid_stretch([0.25], [1.0]) == pytest.approx(1.597, abs=1e-3)
    assert grid_stretch([1.0], [0.01]) == 1.0
    assert grid_stretch([1.0, 1.0], [1.0, 1.0]) == pytest.approx(math.sqrt(2), abs=1e-6)
    assert grid_stretch([1.0, 0.0], [1.0, 1.0]) == math.inf


def test_after_one_step_only_kappa_is_needed():
    bound = flow_bound(Constants(stretch=1.2), 2.0, np.array([0.2, 0.1]))
    assert math.exp(bound[1]) == pytest.approx(2 * 1.2 * 2.0 * 0.2)
    assert bound[2] == math.inf


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"L_x": 1.0}, "no constant 'L_x'; there are L_f"),
        ({"L_f": "much"}, "L_f must be .*number.*, got .*much"),
        ({"L_r": -1.0}, "L_r must be one finite number from 0 to inf, got -1.0"),
    ],
)
def test_senseless_constants_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        Constants.given(given, 1.0)


def test_powers_of_ten():
    found = [power(x) for x in (math.inf, -math.inf, 0.0, 1000.0)]
    assert found == ["infinite", "0", "1", "10^434.3"]


def test_bounds_beyond_all_numbers_stay_logarithms():
    known = constants(policy=50.0)
    bound = flow_bound(known, 3.0, np.full(200, 0.01))
    assert np.isfinite(bound[1:]).all()
    assert bound[-1] > 800
    assert 800 < episode_bound(known, 3.0, np.full(200, 0.01), paid=200) < math.inf
    endless = flow_bound(constants(stretch=math.inf), 3.0, np.full(3, 0.01))
    assert np.all(endless[1:] == math.inf)
    certain = flow_bound(constants(), 3.0, np.zeros(3))
    assert np.all(certain == -math.inf)
