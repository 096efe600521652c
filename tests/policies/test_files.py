"""Saved policies come back bit for bit; what is no sound policy is refused with a reason.

That damaged and foreign files are refused is tested with all other loaders.
"""

import dataclasses
import os
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_walls, walking_problem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mufield import Box, Grid, Profile, TablePolicy, as_profile
from mufield.errors import UserError
from mufield.io.policies import load_policy, read_info, save_policy
from mufield.io.sealed import read_sealed, write_sealed
from mufield.policies import uniform_policy
from mufield.policies.encoders import Here, Pooled, Seen, Unseen
from mufield.policies.network import NetworkPolicy, network_profile
from mufield.space.measure import mean_field_at

pytestmark = pytest.mark.slow

STEPS = 3
GRID = Grid.box(
    (-1.0, 0.1), (1.0, 0.7), (5, 4), periodic=(False, True), walls=random_walls((5, 4), 0.2, 1)
)
RNG = np.random.default_rng(0)


def table(*shape):
    return jnp.asarray(RNG.normal(size=shape))


def weights(*shape):
    return jnp.asarray(RNG.dirichlet(np.ones(shape[-1]), size=shape[:-1]))


def network(mu, depth=2):
    problem = walking_problem(GRID, horizon=STEPS)
    return network_profile(problem, jax.random.key(1), width=6, depth=depth, mu=mu)


def deterministic(*steps):
    return TablePolicy.deterministic(table(*steps, GRID.n_cells, 2))


def own_moves(*steps):
    return TablePolicy(table(*steps, GRID.n_cells, 4, 2), weights(*steps, 1, 4))


def mixed():
    """All steps share the moves, each has its own weights."""
    whole = TablePolicy.mixing(table(4, 2), weights(GRID.n_cells, 4))
    stacked = eqx.tree_at(lambda p: p.weights, whole, weights(STEPS, GRID.n_cells, 4))
    mask = eqx.tree_at(lambda p: (p.actions, p.weights), whole, (False, True))
    return Profile(*eqx.partition(stacked, mask), STEPS)


randomised = TablePolicy(table(STEPS, 1, 4, 2), weights(STEPS, GRID.n_cells, 4))
POLICIES = {
    "network that sees nothing": network(Unseen()),
    "network that sees all": network(Pooled(1)),
    "network that sees blocks": network(Pooled(2), depth=3),
    "one step's network": network(Pooled(1), depth=1).at(0),
    "network that sees its own cell": network(Here()),
    "own moves for each step": Profile.stacked(own_moves(STEPS), STEPS),
    "stationary network": Profile.stationary(network(Pooled(2)).at(1), 7),
    "table for each step": Profile.stacked(deterministic(STEPS), STEPS),
    "stationary table": Profile.stationary(deterministic(), STEPS),
    "table": deterministic(),
    "randomised for each step": Profile.stacked(randomised, STEPS),
    "randomised": Profile.stacked(randomised, STEPS).at(0),
    "uniform": uniform_policy(table(5, 2)),
    "stationary uniform": Profile.stationary(uniform_policy(table(5, 2)), STEPS),
}


def cast(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def assert_same(got, wanted):
    assert type(got) is type(wanted)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert isinstance(a, jax.Array)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def forge(path, policy, change):
    """Saves a policy, then lets ``change(arrays, document)`` spoil what is in the file."""
    save_policy(path, policy)
    document, arrays = read_sealed(path, "policy")
    change(arrays, document)
    write_sealed(path, document, arrays, kind="policy")


def refusal(path):
    """The reason why a file is refused; it names the file."""
    with pytest.raises(UserError) as caught:
        load_policy(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", POLICIES)
def test_policies_come_back_bit_for_bit(tmp_path, name, dtype):
    policy = cast(POLICIES[name], dtype)
    save_policy(tmp_path / "policy.safetensors", policy)
    assert os.listdir(tmp_path) == ["policy.safetensors"]
    assert_same(load_policy(str(tmp_path / "policy.safetensors")), policy)


@pytest.mark.parametrize("name", POLICIES)
def test_agents_do_the_same_after_loading(tmp_path, name):
    policy = POLICIES[name]
    save_policy(tmp_path / "policy", policy)
    horizon = policy.horizon if isinstance(policy, Profile) else STEPS
    before, after = (as_profile(p, horizon) for p in (policy, load_policy(tmp_path / "policy")))
    rng = np.random.default_rng(2)
    mass = jnp.asarray(rng.dirichlet(np.ones(GRID.n_cells)))
    offsets = rng.uniform(-0.5, 0.5, size=(20, 2)) * GRID.cell_size
    states = jnp.asarray(GRID.centres[rng.integers(GRID.n_cells, size=20)] + offsets)

    def laws(policy):
        return jax.vmap(lambda state: policy.law(state, mean_field_at(GRID, mass, state)))(states)

    for step in (0, horizon - 1):
        assert eqx.tree_equal(laws(before.at(step)), laws(after.at(step)))


def test_a_profile_may_share_some_arrays_between_steps(tmp_path):
    profile = mixed()
    save_policy(tmp_path / "policy", profile)
    loaded = load_policy(tmp_path / "policy")
    assert_same(loaded, profile)
    assert loaded.at(1).weights.shape == (GRID.n_cells, 4)


def test_every_array_keeps_its_own_number_format(tmp_path):
    policy = POLICIES["randomised"]
    policy = eqx.tree_at(lambda p: p.weights, policy, policy.weights.astype("float32"))
    save_policy(tmp_path / "policy", policy)
    assert_same(load_policy(tmp_path / "policy"), policy)


@pytest.mark.parametrize("shape", [(1,), (9,), (3, 3), (2, 3, 4)])
def test_grids_of_every_dimension_come_back(tmp_path, shape):
    grid = Grid.box(-0.1, 1.3, shape, periodic=True, walls=random_walls(shape, 0.4, 2))
    policy = NetworkPolicy(
        from_state=table(4, 2 * grid.dim),
        from_mu=table(4, Pooled(2).size(grid)),
        bias=table(4),
        hidden=((table(7, 4), table(7)), (table(3, 7), table(3))),
        encoder=Pooled(2),
        grid=grid,
        box=Box((-1.0, 0.1, 1e-300), (1.0, 1 / 3, 1e300)),
    )
    save_policy(tmp_path / "policy", policy)
    assert_same(load_policy(tmp_path / "policy"), policy)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    max_leaves=5,
)


@given(info=st.dictionaries(st.text(), JSON))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_info_comes_back(tmp_path, info):
    save_policy(tmp_path / "policy", POLICIES["table"], info=info)
    assert read_info(tmp_path / "policy") == info


def test_info_is_empty_unless_given(tmp_path):
    save_policy(tmp_path / "policy", POLICIES["table"])
    assert read_info(tmp_path / "policy") == {}
    save_policy(tmp_path / "policy", POLICIES["table"], info={"sizes": (1, 2)})
    assert read_info(tmp_path / "policy") == {"sizes": [1, 2]}


def test_the_document_says_what_the_policy_is(tmp_path):
    save_policy(tmp_path / "policy", POLICIES["network that sees blocks"], info={"seed": 3})
    document, arrays = read_sealed(tmp_path / "policy", "policy")
    policy = document["policy"]
    assert arrays["hidden.2.0"].shape == (STEPS, 2, 6)
    assert (document["version"], policy["kind"]) == (2, "network")
    assert (document["horizon"], policy["widths"]) == (STEPS, [6, 6, 6])
    assert set(document["stacked"]) == set(arrays)
    assert policy["actions"] == {"lower": [-1.0, -1.0], "upper": [1.0, 1.0]}
    assert policy["mu"] == {"kind": "pooled", "cells": 2}


class OwnPolicy(TablePolicy):
    pass


def seen_as(mu):
    return dataclasses.replace(POLICIES["one step's network"], encoder=mu)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (lambda state, mu, step: state, "code is never stored.*TablePolicy"),
        (as_profile(lambda state, mu, step: state, STEPS), "code is never stored.*TablePolicy"),
        (None, "expected a TablePolicy, .*got NoneType"),
        (OwnPolicy(table(3, 1, 2), jnp.ones((1, 1))), "got OwnPolicy; code is never stored"),
        (seen_as(Seen(lambda state, mu: mu.here)), "mufield's own encoders"),
        (seen_as(Here()), "from_mu: expected the shape"),
        (cast(POLICIES["table"], "float16"), "actions: expected float32 or float64, got float16"),
        (deterministic(STEPS), r"actions: expected the shape \(\d+, 1, 2\), got"),
        (TablePolicy.deterministic(table(3, 2).at[0, 0].set(jnp.nan)), "must be finite"),
        (TablePolicy.mixing(table(2, 1), jnp.full((3, 2), 0.7)), "sum to 1"),
        (
            eqx.tree_at(lambda p: p.actions, POLICIES["randomised"], table(1, 3, 2)),
            "no sound policy|weights: expected the shape",
        ),
        (Profile(network(Pooled(1)).per_step, POLICIES["table"], 3), "cannot save"),
        (Profile(None, POLICIES["table"], 0), "the horizon of a profile"),
    ],
)
def test_what_cannot_be_read_back_is_not_written(tmp_path, policy, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        save_policy(tmp_path / "policy", policy)
    assert str(caught.value).startswith(f"cannot save the policy to {tmp_path / 'policy'}: ")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("value", [np.zeros(2), {1, 2}, float("nan"), float("inf"), "\ud800"])
def test_info_that_is_not_json_is_refused(tmp_path, value):
    with pytest.raises(ValueError, match="cannot save the policy"):
        save_policy(tmp_path / "policy", POLICIES["table"], info={"value": value})
    nested = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ValueError, match="cannot save the policy"):
        save_policy(tmp_path / "policy", POLICIES["table"], info={"value": nested})
    assert os.listdir(tmp_path) == []


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "policy"
    save_policy(path, POLICIES["table"])
    old = path.read_bytes()

    for error in (OSError(28, "disk full", "temporary", None, path), OSError("disk full")):

        def fail(*args, error=error):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fail)
            with pytest.raises(OSError, match="disk full") as caught:
                save_policy(path, POLICIES["uniform"])
        assert caught.value.filename == (error.errno and str(path))
        assert "None" not in str(caught.value)
    with pytest.raises(UserError, match="code"):
        save_policy(path, lambda state, mu, step: state)
    assert os.listdir(tmp_path) == ["policy"]
    assert path.read_bytes() == old


def test_saving_into_a_missing_directory_or_over_a_directory_fails(tmp_path):
    with pytest.raises(UserError, match="there is no directory"):
        save_policy(tmp_path / "missing" / "policy", POLICIES["table"])
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        save_policy(tmp_path / "folder", POLICIES["table"])
    assert os.listdir(tmp_path) == ["folder"]


def test_double_precision_is_not_lost_silently(tmp_path):
    path, policy = tmp_path / "policy", POLICIES["randomised for each step"]
    save_policy(path, policy)
    with jax.enable_x64(False):
        assert "jax_enable_x64" in (reason := refusal(path))
        assert "dtype='float32'" in reason
        with pytest.raises(ValueError, match="jax_enable_x64"):
            load_policy(path, dtype="float64")
        assert_same(load_policy(path, dtype="float32"), cast(policy, "float32"))
        save_policy(path, cast(policy, "float32"))
        assert_same(load_policy(path), cast(policy, "float32"))
    assert_same(load_policy(path, dtype="float64"), cast(cast(policy, "float32"), "float64"))


def test_conversion_refuses_what_does_not_fit(tmp_path):
    save_policy(tmp_path / "policy", TablePolicy.deterministic(jnp.full((3, 2), 1e300)))
    with pytest.raises(ValueError, match="range of float32"):
        load_policy(tmp_path / "policy", dtype="float32")
    with pytest.raises(ValueError, match="dtype must be"):
        load_policy(tmp_path / "policy", dtype="float16")


def test_a_missing_file_is_reported_with_its_path(tmp_path):
    assert "missing" in refusal(tmp_path / "nowhere")
    with pytest.raises(UserError, match="nowhere: it is missing"):
        read_info(tmp_path / "nowhere")
    assert "directory" in refusal(tmp_path)


def set_to(*keys, value):
    def change(arrays, document):
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


def drop(key):
    return lambda arrays, document: document.pop(key)


NETWORK = "network that sees blocks"


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("table", set_to("version", value=3), "newer mufield.*upgrade"),
        ("table", lambda a, d: (d.clear(), d.update(version=9)), "newer"),
        ("table", set_to("version", value=0), "version"),
        ("table", set_to("version", value="1"), "lacks version"),
        (
            "table",
            set_to("policy", "kind", value="os.system"),
            "no sound policy.*os.system",
        ),
        ("table", set_to("policy", "kind", value="network"), "no sound policy"),
        ("table", set_to("horizon", value=True), "the horizon of a profile"),
        ("table", set_to("horizon", value=0), "the horizon of a profile"),
        ("table", set_to("stacked", value=["actions"]), "expected a horizon"),
        ("table", set_to("stacked", value=["cells"]), "expected a horizon"),
        ("table", set_to("policy", "moves", value=10**30), "not what it describes"),
        ("table", set_to("policy", "unknown", value=1), "not what it describes"),
        ("table", drop("info"), "lacks info"),
        ("table for each step", set_to("stacked", value=["cells"]), "no sound policy.*cells"),
        ("table for each step", set_to("stacked", value=["actions"]), "weights: |no sound policy"),
        ("table for each step", set_to("horizon", value=10**12), "expected 1000000000000 slices"),
        ("table for each step", set_to("horizon", value=None), "expected a horizon"),
        (NETWORK, set_to("policy", "grid", "shape", value=[10**6] * 3), "walls for 10{18} cells"),
        (NETWORK, set_to("policy", "grid", "shape", value=[5, 3]), "expected walls for 15 cells"),
        (NETWORK, set_to("policy", "grid", "shape", value=[]), "walls for"),
        (NETWORK, set_to("policy", "grid", "walls", value="zz"), "no sound policy"),
        (NETWORK, set_to("policy", "grid", "walls", value="ffffff"), "no free cell"),
        (NETWORK, set_to("policy", "grid", "walls", value="ff0000"), "from_mu: expected"),
        (NETWORK, set_to("policy", "grid", "lower", value=[0.0]), "lower must have one value"),
        (NETWORK, set_to("policy", "grid", "upper", value=[-2.0, 1.0]), "lower to a higher"),
        (NETWORK, set_to("policy", "grid", "periodic", value=[1, 0]), "no sound pol|describes"),
        (NETWORK, set_to("policy", "grid", "periodic", value=[True, True]), "from_state: expected"),
        (NETWORK, set_to("policy", "actions", "lower", value=[2.0, 2.0]), "action box"),
        (
            NETWORK,
            set_to("policy", "actions", value={"lower": [0.0], "upper": [1.0]}),
            "hidden.2.0: exp",
        ),
        (NETWORK, set_to("policy", "actions", "lower", value=[]), "cannot use"),
        (NETWORK, set_to("policy", "actions", value={"lower": [], "upper": []}), "cannot use"),
        (NETWORK, set_to("policy", "mu", "kind", value="none"), "no sound policy.*cells"),
        (NETWORK, set_to("policy", "mu", "kind", value="eval"), "expected one of the encoders"),
        (NETWORK, set_to("policy", "mu", "cells", value=0), "the cells of a block"),
        (NETWORK, set_to("policy", "mu", "cells", value=1), "from_mu: expected"),
        (NETWORK, set_to("policy", "widths", value=[6, 5, 6]), "not what it describes"),
        (NETWORK, set_to("policy", "widths", value=[6, 6]), "not what it describes"),
        (NETWORK, set_to("policy", "widths", value=[]), "not what it describes"),
    ],
)
def test_wrong_descriptions_are_refused(tmp_path, name, change, reason):
    forge(tmp_path / "policy", POLICIES[name], change)
    with pytest.raises(ValueError, match=reason):
        load_policy(tmp_path / "policy")
    refusal(tmp_path / "policy")


def array(name, value):
    return lambda arrays, document: arrays.update({name: value})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a, d: a.pop("weights"), "no sound policy.*weights"),
        (array("extra", np.zeros(2)), "extra: expected the shape no array, got"),
        (array("actions", np.zeros((1, 4, 3))), "not what it describes"),
        (array("actions", np.zeros(8)), "at least 3 axes|no sound policy"),
        (array("actions", np.zeros((1, 4, 2), "int64")), "actions"),
        (array("actions", np.full((1, 4, 2), np.inf)), "actions must be finite"),
        (array("weights", np.full((GRID.n_cells, 4), np.nan)), "weights must be finite"),
        (array("weights", np.full((GRID.n_cells, 4), 0.3)), "sum to 1"),
        (array("weights", np.full((GRID.n_cells, 4), 1e308)), "sum to 1"),
        (array("weights", np.tile([-1.0, 2.0, 0.0, 0.0], (GRID.n_cells, 1))), "not be negative"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, change, reason):
    forge(tmp_path / "policy", POLICIES["randomised"], change)
    with pytest.raises(ValueError, match=reason):
        load_policy(tmp_path / "policy")
    refusal(tmp_path / "policy")


def test_long_lists_in_the_header_take_no_long_time(tmp_path):
    def change(arrays, document):
        names = [f"hidden.{i}.{j}" for i in range(30_000) for j in (0, 1)]
        document["policy"]["widths"] = [6] * 30_000
        document["stacked"] = [*document["stacked"], *names]

    forge(tmp_path / "policy", POLICIES[NETWORK], change)
    assert len(refusal(tmp_path / "policy")) < 1000


def test_nothing_is_left_open_or_locked(tmp_path):
    path = Path(tmp_path / "policy")
    save_policy(path, POLICIES["table"])
    loaded = load_policy(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert_same(loaded, POLICIES["table"])
    refusal(path)
