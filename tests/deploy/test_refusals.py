"""Inputs that a policy must not get are refused, by the reader."""

import re

import numpy as np
import pytest
from cases import CASES, HORIZON, deployed, ring, rooms, stacked, stationary, table

import mufield as mf
from mufield.deploy.export import describe, random_inputs
from mufield.policies.base import AbstractPolicy, as_profile

SEEING = "network of blocks"


def inputs(case, agents=3):
    return random_inputs(CASES[case]("float64")[1], 1, agents, np.random.default_rng(0))


def test_the_reader_refuses_states_of_another_shape_or_place():
    policy, good = deployed("table by step"), inputs("table by step")
    assert policy.act(good.states, step=1).shape == (3, 2)
    assert policy.act(good.states[:0], step=1).shape == (0, 2)
    for states, message in (
        (good.states[:, :1], r"expected states of shape \(agents, 2\), got \(3, 1\)"),
        (good.states[0], r"got \(2,\)"),
        (good.states[None], r"got \(1, 3, 2\)"),
        (np.array([["a", "b"]]), "expected real numbers"),
        (good.states + 1j, "expected real numbers"),
        (np.where([[0], [1], [0]], np.nan, good.states), "row 1: expected finite numbers"),
        (good.states.astype(float) * 1e300, "row 0: expected a position in a free"),
        (np.where([[0], [1], [0]], 99.0, good.states), "row 1: expected a position in a free"),
        ([[-1.0, 3.1]], "in a wall or outside"),  # the lower left corner is a wall
    ):
        with pytest.raises(ValueError, match=message):
            policy.act(states, step=1)


def test_periodic_axes_wrap_and_others_do_not():
    policy = deployed("stationary table")
    state = np.array([[0.3, 0.4]])
    same = policy.act(state)
    np.testing.assert_allclose(policy.act(state + np.array([[5.0, 0.0]])), same)
    with pytest.raises(ValueError, match="outside"):
        policy.act(state + np.array([[0.0, 5.0]]))


def test_the_reader_refuses_what_is_no_distribution():
    policy, good = deployed(SEEING), inputs(SEEING)
    cells = policy.space.n_cells
    for mass, message in (
        (None, f"share in each of {cells} free cells, got none"),
        (good.mass[:-1], rf"expected masses of {cells} free cells, got \({cells - 1},\)"),
        (good.mass * 0.9, "sums to 1, got 0.9"),
        (good.mass - good.mass[0] - 1e-3, "of 0 or more"),
        (np.full(cells, np.nan), "finite"),
        (["x"] * cells, "real numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            policy.act(good.states, mass, step=1)
    # A mass that is not needed is looked at all the same.
    with pytest.raises(ValueError, match="sums to 1"):
        deployed("table by step").act(inputs("table by step").states, np.ones(11), step=0)


@pytest.mark.parametrize("step", [None, -1, HORIZON, np.int64(HORIZON), True])
def test_the_reader_refuses_steps_outside_the_horizon(step):
    with pytest.raises(ValueError, match=f"from 0 to {HORIZON - 1}, got {re.escape(repr(step))}"):
        deployed("table by step").act(inputs("table by step").states, step=step)


def test_a_stationary_policy_needs_no_step_but_knows_its_horizon():
    policy, states = deployed("stationary table"), inputs("stationary table").states
    last = np.int64(HORIZON - 1)
    np.testing.assert_array_equal(policy.act(states), policy.act(states, step=last))
    with pytest.raises(ValueError, match="expected a step"):
        policy.act(states, step=HORIZON)


class Unknown(AbstractPolicy):
    def law(self, state, mu):
        raise NotImplementedError


def test_policies_that_cannot_be_exported_are_refused_by_name():
    problem = rooms()
    for policy in (Unknown(), lambda state, mu, step: state):
        with pytest.raises(ValueError, match="expected a TablePolicy, a NetworkPolicy"):
            describe(as_profile(policy, HORIZON), problem)
    with pytest.raises(ValueError, match="the grid has 11"):
        describe(stationary(table(ring(), ())), problem)
    with pytest.raises(ValueError, match="another map"):
        describe(CASES["network of blocks"]("float64")[0], problem)
    outside = mf.TablePolicy.deterministic(table(problem).actions[..., 0, :] * 4)
    with pytest.raises(ValueError, match="is outside the box"):
        describe(stacked(outside), problem)
