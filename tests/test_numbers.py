"""Numbers beyond sense are refused, with the remedy, before they cost time, memory or mass."""

import jax.numpy as jnp
import pytest
from helpers import walk, walking_problem

from mufield import Flow, Grid, SimulatedSystem, UserError
from mufield.learning.trouble import trouble

SMALL = Grid.box(0.0, 4.0, (4, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": 1e6}, "smaller than the space, which is 4 wide on axis 0"),
        ({"noise": 5.0}, "standard deviation of 5; check the units"),
        ({"max_move": 1e9}, r"got a max_move of 1e\+09; check the units"),
    ],
)
@pytest.mark.parametrize("periodic", [False, True])
def test_noise_and_moves_beyond_the_space_are_refused(options, message, periodic):
    grid = Grid.box(0.0, 4.0, (4, 4), periodic=periodic)
    with pytest.raises(UserError, match=message):
        walking_problem(grid, **options)
    assert walking_problem(grid, noise=3.0, max_move=8.0).max_move == (8.0, 8.0)


@pytest.mark.parametrize(
    ("grid", "options"),
    [
        (Grid.box(0.0, 40.0, (40, 40)), {"max_move": None}),
        (Grid.box(0.0, 300.0, (300, 300)), {"max_move": None}),
        (Grid.box(0.0, 4.0, (8, 8), periodic=True), {"noise": 3.9}),
        (Grid.box(0.0, 1e4, (1000, 1000)), {"max_move": 50.0}),
    ],
)
def test_windows_that_are_larger_than_sense_are_refused_with_the_remedy(grid, options):
    problem = walking_problem(grid, **options)
    with pytest.raises(UserError, match=r"give a smaller max_move .* less noise or larger cells"):
        Flow(problem)


def rewarded(reward, **options):
    problem = walking_problem(SMALL, horizon=2, **options)
    return problem.with_reward(reward)


def test_rewards_whose_sum_overflows_are_refused():
    most = float(jnp.finfo(jnp.result_type(float)).max)
    system = SimulatedSystem(rewarded(lambda state, action, mu: 0.9 * most), walk)
    with pytest.raises(UserError, match="sum of the rewards overflows"):
        system.evaluate(lambda state, mu, step: jnp.zeros(2))


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (lambda s, a, mu: jnp.where((s[0] > 3) & (mu.step == 1), jnp.nan, 0.0), "cell (3, 0), at"),
        (lambda s, a, mu: jnp.sqrt(1 - a[0] ** 2 - a[1] ** 2), "action [-1.0, -1.0]"),
        (lambda s, a, mu: jnp.sqrt(jnp.abs(a[0])), "no finite derivative by the action"),
        (lambda s, a, mu: jnp.sqrt(mu.here * (s[0] > 3)), "no finite derivative by mu"),
    ],
)
def test_the_cell_and_step_where_a_reward_is_to_blame_are_named(reward, words):
    found = trouble(rewarded(reward))
    assert found.startswith("the reward")
    assert words in found
    if "cell" in words:
        assert "at step 1" in found


def test_a_sound_reward_is_not_blamed():
    assert trouble(walking_problem(SMALL, horizon=2)) == ""
