"""Limits of a problem: the usual ones, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mufield as mf
from mufield.constraints import Constraint

GRID = mf.Grid.from_map("....\n.#..\n....")
N = GRID.n_cells


def problem(*constraints, horizon=3):
    return mf.Problem(
        space=GRID,
        actions=mf.Box(-1.0, 1.0, dim=2),
        reward=lambda state, action, mu: -mf.log_mass(mu.here),
        horizon=horizon,
        initial=mf.point_mass(GRID, 0, 0),
        noise=0.3,
        max_move=1.0,
        constraints=constraints,
    )


def mass_of(seed):
    return jax.nn.softmax(2 * jax.random.normal(jax.random.key(seed), (N,)))


def test_margins_are_shares_of_the_limit():
    right = [bool(x > 2) for x in GRID.centres[:, 0]]
    limits = problem(
        mf.constraints.mass_at_most(GRID, [(3, 0), (3, 1)], 0.2),
        mf.constraints.mass_at_least(GRID, right, 0.1),
        mf.constraints.cells_at_most(GRID, 0.5),
        mf.constraints.entropy_at_least(GRID, 1.5),
    ).constraints
    mass = mass_of(0)
    found = np.asarray(limits(mass))
    inside = float(mass[GRID.index_at(3, 0)] + mass[GRID.index_at(3, 1)])
    assert limits.sizes == (1, 1, N, 1)
    assert found[0] == pytest.approx((0.2 - inside) / 0.2, rel=1e-5)
    east = float(mass[np.asarray(right)].sum())
    assert found[1] == pytest.approx((east - 0.1) / 0.1, rel=1e-4)
    np.testing.assert_allclose(found[2:-1], (0.5 - np.asarray(mass)) / 0.5, rtol=1e-4)
    assert found[-1] == pytest.approx((float(mf.entropy(mass)) - 1.5) / 1.5, rel=1e-4)


def test_a_region_can_be_cells_truth_values_or_a_function():
    cells = [(int(c[0]), int(c[1])) for c in GRID.free_cells if c[0] >= 2]
    ways = [cells, GRID.centres[:, 0] > 2, lambda state: state[0] > 2]
    values = [
        float(mf.constraints.mass_at_most(GRID, way, 0.4).function(mass_of(1))) for way in ways
    ]
    assert values[0] == pytest.approx(values[1]) == pytest.approx(values[2])


def test_limits_hold_at_the_named_steps_only():
    capped = problem(mf.constraints.cells_at_most(GRID, 0.5, name="cap", steps=(2,)))
    along = capped.margins(jnp.stack([mass_of(seed) for seed in range(4)]))
    margins = np.asarray(capped.constraints.worst(along))
    assert margins.shape == (3, 1)
    assert np.isinf(margins[[0, 2]]).all()
    assert np.isfinite(margins[1]).all()


def test_any_function_is_a_constraint():
    limits = problem(Constraint(lambda mass: 0.9 - mass[3])).constraints
    assert limits.names == ("constraint 1",)
    assert float(limits(mass_of(0))[0]) == pytest.approx(0.9 - float(mass_of(0)[3]), rel=1e-5)


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint(lambda mass: mass[:4].reshape(2, 2)), "a number or a vector"),
        (Constraint(lambda mass: jnp.sum(mass * jnp.nan)), "NaN or infinite"),
        (Constraint(lambda mass: jnp.sum(jnp.sqrt(mass - 1.0))), "NaN or infinite"),
        (Constraint(lambda mass: jnp.max(mass) - 0.1), "not concave"),
        (Constraint(lambda mass: jnp.sum(mass**2) - 0.1), "not concave"),
        (Constraint(lambda mass: mass["here"]), "could not be evaluated"),
        (Constraint(lambda mass: mass[0], steps=(0,)), "at least 1, got 0"),
        (Constraint(lambda mass: mass[0], steps=(4,)), "steps run from 1"),
        (Constraint(lambda mass: mass[0], steps=()), "at no step"),
        (Constraint(lambda mass: mass[0], steps=(-30,)), "at least 1, got -30"),
        (lambda mass: mass[0], r"give .* Constraint\(function\)"),
        (3.0, "must be of type Constraint"),
    ],
)
def test_what_cannot_be_a_limit_is_refused(constraint, words):
    with pytest.raises(mf.UserError, match=words):
        problem(constraint)


def test_a_single_step_needs_no_tuple():
    assert mf.constraints.mass_at_most(GRID, [(0, 0)], 0.5, steps=2).steps == (2,)


def test_a_constraint_must_be_a_function():
    with pytest.raises(mf.UserError, match="must be a function"):
        Constraint(3.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mf.constraints.mass_at_most(GRID, [(0, 0)], 0.0), "share of the population"),
        (lambda: mf.constraints.mass_at_most(GRID, np.zeros(N, bool), 0.5), "empty"),
        (lambda: mf.constraints.mass_at_most(GRID, [0.5, 1.5], 0.5), "cells as coordinates"),
        (lambda: mf.constraints.entropy_at_least(GRID, -1.0), "positive"),
        (lambda: mf.constraints.entropy_at_least(GRID, 99.0), "up to .*, got 99"),
    ],
)
def test_helpers_say_what_is_wrong(make, words):
    with pytest.raises(mf.UserError, match=words):
        make()


def test_a_rule_among_the_constraints_takes_the_place_of_the_usual_one():
    cap = mf.constraints.cells_at_most(GRID, 0.5)
    loose = problem(cap, mf.constraints.ConstraintRule(tolerance=0.05)).constraints
    assert loose.names == ("cells at most 0.5",)
    assert (loose.rule.tolerance, problem(cap).constraints.rule.tolerance) == (0.05, 1e-3)
    assert loose.lagrangian(loose.active(jnp.ones(1, bool)), jnp.ones(())).rule.tolerance == 0.05
    assert problem(mf.constraints.ConstraintRule()).constraints is None


def test_names_tell_limits_apart():
    with pytest.raises(mf.UserError, match="two constraints are called"):
        problem(mf.constraints.cells_at_most(GRID, 0.5), mf.constraints.cells_at_most(GRID, 0.5))
