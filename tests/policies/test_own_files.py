"""Policies of the user's own classes in files: arrays and settings, never code."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mufield as mf
from mufield.deploy.export import describe
from mufield.policies import base


@pytest.fixture
def towards(monkeypatch):
    monkeypatch.setattr(base, "OWN_POLICIES", base.OWN_POLICIES)
    ran = []

    @mf.policies.saved_as("towards")
    class Towards(mf.policies.AbstractPolicy):
        point: jax.Array
        weights: jax.Array
        name: str = eqx.field(static=True, default="home")
        gains: tuple[float, ...] = eqx.field(static=True, default=(0.5, 0.25))

        def __check_init__(self):
            ran.append("constructor")

        def law(self, state, mu):
            aim = jnp.asarray(self.gains) * self.weights * (self.point - state)
            return mf.policies.ActionLaw.certain(jnp.tanh(aim))

    yield Towards, ran
    del base.OWN_POLICIES["towards"]


def test_a_registered_class_comes_back_as_it_was(towards, tmp_path):
    kind, ran = towards
    rooms = mf.make("four-rooms", horizon=3)
    policy = kind(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]), name="work")
    point = jnp.arange(6.0).reshape(3, 2)
    stacked = mf.Profile.stacked(kind(point, jnp.ones((3, 2))), 3)
    for each in (policy, stacked, mf.as_profile(policy, 3)):
        mf.save_policy(tmp_path / "own.policy", each, info={"by": "me"})
        ran.clear()
        back = mf.load_policy(tmp_path / "own.policy")
        assert ran == []  # nothing of the class runs
        assert jax.tree.structure(back) == jax.tree.structure(each)
        for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(each), strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(
        rooms.evaluate(back).value, rooms.evaluate(mf.as_profile(policy, 3)).value
    )


def test_a_class_that_the_program_did_not_register_is_refused(towards, tmp_path):
    kind, _ = towards
    path = tmp_path / "own.policy"
    mf.save_policy(path, kind(jnp.zeros(2), jnp.ones(2)))
    del base.OWN_POLICIES["towards"]
    with pytest.raises(mf.UserError, match="registered as 'towards', got none; import the module"):
        mf.load_policy(path)

    @mf.policies.saved_as("towards")
    class Other(mf.policies.AbstractPolicy):
        point: jax.Array

        def law(self, state, mu):
            return mf.policies.ActionLaw.certain(self.point)

    with pytest.raises(mf.UserError, match="expected the fields of Other"):
        mf.load_policy(path)


def test_what_files_cannot_hold_is_refused(towards, tmp_path):
    kind, _ = towards
    with pytest.raises(mf.UserError, match="static fields must hold only what JSON can"):
        mf.save_policy(tmp_path / "own.policy", kind(jnp.zeros(2), jnp.ones(2), name=print))
    with pytest.raises(mf.UserError, match="NaN"):
        mf.save_policy(tmp_path / "own.policy", kind(jnp.full(2, jnp.nan), jnp.ones(2)))
    assert not list(tmp_path.iterdir())
    problem = mf.make("four-rooms", horizon=3).problem
    profile = mf.as_profile(kind(jnp.zeros(2), jnp.ones(2)), 3)
    with pytest.raises(mf.UserError, match="readers know tables and networks, got a Towards"):
        describe(profile, problem)
