"""Transitions: what is refused, what is kept, and how buffers grow."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import PLANE, toy_episode, toy_problem

from mufield.models.data import Transitions, buffer_size

PROBLEM = toy_problem(horizon=5)
EPISODE = toy_episode(PROBLEM, seed=0, agents=2)


def spoiled(name, where, value):
    return dataclasses.replace(EPISODE, **{name: getattr(EPISODE, name).at[where].set(value)})


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "where", "said"),
    [
        ("states", (1, 3, 0), "states must be finite, but is NaN or infinite at agent 1, step 3"),
        ("actions", (0, 4, 1), "actions must be finite, but is NaN or infinite at agent 0, step 4"),
        (
            "next_states",
            (1, 0, 1),
            "next_states must be finite, but is NaN or infinite at agent 1, step 0",
        ),
        ("mass", (2, 7), "mass must be finite, but is NaN or infinite at row 2"),
        ("rewards", (4,), "rewards must be finite, but is NaN or infinite at row 4"),
    ],
)
def test_numbers_that_are_not_finite_are_refused_and_their_row_is_named(name, where, said, value):
    with pytest.raises(ValueError, match=said):
        Transitions.empty(PROBLEM).append(spoiled(name, where, value))


def test_an_episode_of_another_length_is_refused():
    with pytest.raises(ValueError, match="has 5 steps, but the problem's horizon is 20"):
        Transitions.empty(toy_problem(horizon=20)).append(EPISODE)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("actions", jnp.zeros((2, 5, 3)), r"actions must have shape \(2, 5, 2\)"),
        ("next_states", jnp.zeros((1, 5, 2)), r"next_states must have shape \(2, 5, 2\)"),
        ("mass", jnp.ones((6, 3)) / 3, r"mass must have shape \(6, 16\), got \(6, 3\)"),
        ("rewards", jnp.zeros(6), r"rewards must have shape \(5,\), got \(6,\)"),
    ],
)
def test_wrong_shapes_are_refused_with_the_expected_one(name, values, said):
    # Around the constructor, whose own check of shapes users do not have.
    wrong = dataclasses.replace(EPISODE)
    object.__setattr__(wrong, name, values)
    with pytest.raises(ValueError, match=said):
        Transitions.empty(PROBLEM).append(wrong)


def test_distributions_that_do_not_sum_to_one_are_refused():
    with pytest.raises(ValueError, match=r"must sum to 1, but sums to 1\.5 at index 2"):
        Transitions.empty(PROBLEM).append(spoiled("mass", (2, 0), EPISODE.mass[2, 0] + 0.5))


def test_negative_masses_are_refused_also_where_the_sum_is_right():
    least = EPISODE.mass[1, 0]
    shifted = EPISODE.mass.at[1, 0].set(-0.2).at[1, 1].add(0.2 + least)
    with pytest.raises(ValueError, match="must not be negative"):
        Transitions.empty(PROBLEM).append(dataclasses.replace(EPISODE, mass=shifted))


def test_every_move_keeps_the_distribution_of_its_moment():
    other = toy_episode(PROBLEM, seed=1)
    data = Transitions.of(PROBLEM, [EPISODE, other])
    assert len(data) == 2 * 5 + 5
    assert len(data.mass) == 2 * 5  # nobody moves from the last distribution
    for agent in range(2):
        for step in range(5):
            row = 5 * agent + step
            assert np.array_equal(data.states[row], EPISODE.states[agent, step])
            assert np.array_equal(data.actions[row], EPISODE.actions[agent, step])
            assert np.array_equal(data.next_states[row], EPISODE.next_states[agent, step])
            assert np.array_equal(data.mass[data.moment[row]], EPISODE.mass[step])
    assert np.array_equal(data.mass[data.moment[10:]], other.mass[:5])


def test_axes_that_a_wall_stopped_are_not_observed():
    data = Transitions.of(PROBLEM, [EPISODE])
    assert np.array_equal(data.observed, ~np.asarray(EPISODE.stopped).reshape(10, 2))
    assert not data.observed.all()  # or the line above would say nothing


def test_stopped_axes_know_on_which_side_the_wall_was():
    data = Transitions.of(PROBLEM, [EPISODE])
    assert not data.side[data.observed].any()
    low, high = np.asarray(PROBLEM.grid.lower), np.asarray(PROBLEM.grid.upper)
    at_low, at_high = np.isclose(data.next_states, low), np.isclose(data.next_states, high)
    assert (at_low & ~data.observed).any()  # or the lines below would say little
    assert (at_high & ~data.observed).any()
    assert (data.side[at_low & ~data.observed] == -1).all()
    assert (data.side[at_high & ~data.observed] == 1).all()


def test_an_agent_that_rests_inside_its_cell_was_stopped_on_no_known_side():
    data = Transitions.of(PROBLEM, [EPISODE])
    centres = np.minimum(np.floor(data.next_states), 3.0) + 0.5
    moved = dataclasses.replace(data, next_states=centres, observed=np.zeros_like(data.observed))
    assert not moved.side.any()


def test_some_rows_keep_their_moments():
    data = Transitions.of(PROBLEM, [EPISODE])
    some = data.rows(np.array([7, 2]))
    assert len(some) == 2
    assert np.array_equal(some.states, data.states[[7, 2]])
    assert np.array_equal(some.mass[some.moment], data.mass[data.moment[[7, 2]]])


@pytest.mark.parametrize(("filled", "doublings"), [(0.0, 0), (1.0, 0), (1.01, 1), (5.0, 3)])
def test_buffers_double(filled, doublings):
    assert buffer_size(int(filled * 256)) == 256 * 2**doublings
    assert buffer_size(int(filled * 100), 100, 4) == 100 * 4 ** ((doublings + 1) // 2)


@given(st.integers(0, 10**6))
def test_a_buffer_holds_its_rows_and_is_never_more_than_half_empty(count):
    size = buffer_size(count)
    assert size >= count
    assert size == 256 or size < 2 * count


def test_a_function_of_one_agent_is_mapped_over_all_rows_with_their_mu_and_step():
    data = Transitions.of(PROBLEM, [EPISODE])
    found = data.map(lambda state, action, mu: (state + action, mu.mass, mu.here, mu.step))
    assert found[0] == pytest.approx(data.states + data.actions)
    assert found[1] == pytest.approx(data.mass[data.moment])
    cells = PLANE.index_of(data.states)
    assert found[2] == pytest.approx(data.mass[data.moment, cells])
    assert np.array_equal(found[3], data.step)
    assert all(isinstance(part, np.ndarray) and part.dtype == float for part in found)


def test_padding_is_legal_and_no_transitions_give_no_rows():
    seen = []

    def note(state, action, mu):
        jax.debug.callback(lambda *each: seen.append(each), state, action, mu.mass)
        return state

    assert Transitions.empty(PROBLEM).map(note).shape == (0, 2)
    jax.effects_barrier()
    assert len(seen) == 256
    for state, action, mass in seen:
        assert PLANE.index_of(np.asarray(state)) >= 0
        assert PROBLEM.actions.contains(action)
        assert mass.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("noise", [0.1, (0.1, 0.3)])
def test_the_noise_is_what_the_problem_says(noise):
    problem = toy_problem(PLANE, noise=noise)
    assert np.array_equal(Transitions.empty(problem).noise_std, np.broadcast_to(noise, 2))
