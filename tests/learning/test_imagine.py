import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import corridor, sure

from mufield.learning.imagine import OPTIMISM, Imagination
from mufield.planning.hallucinate import (
    HallucinatedMotion,
    control_points,
    hallucinated,
    joint_moves,
)
from mufield.space.measure import mean_field_at

KEY = jax.random.key(0)
STATE = jnp.array([2.5])
ACTION = jnp.array([0.5])


def mu():
    problem = corridor().problem
    return mean_field_at(problem.grid, problem.initial, STATE)


def test_eta_moves_the_aim_by_beta_standard_deviations():
    motion = HallucinatedMotion(sure(spread=0.1, beta=2.0), jnp.asarray(1.0), (1.0,), 1)
    for eta, wanted in ((0.0, 0.5), (1.0, 0.7), (-1.0, 0.3)):
        joint = jnp.array([0.5, eta])
        assert motion(STATE, joint, mu())[0] == pytest.approx(2.5 + wanted)


def test_motions_beyond_the_farthest_move_are_cut():
    motion = HallucinatedMotion(sure(spread=5.0), jnp.asarray(1.0), (1.0,), 1)
    assert motion(STATE, jnp.array([0.5, 1.0]), mu())[0] == pytest.approx(3.5)


def test_the_hallucinated_reward_ignores_eta():
    problem = corridor().problem
    joint = hallucinated(problem)
    assert joint.actions.dim == 2
    paid = [joint.reward(STATE, jnp.array([0.5, eta]), mu()) for eta in (-1.0, 0.3)]
    assert paid[0] == paid[1] == problem.reward(STATE, ACTION, mu())


def test_joint_moves_are_all_pairs_with_the_etas_of_an_action_together():
    joint = joint_moves(jnp.array([[1.0], [2.0]]), control_points(1, 3))
    np.testing.assert_allclose(joint, [[1, -1], [1, 0], [1, 1], [2, -1], [2, 0], [2, 1]])


def test_each_kind_of_optimism_imagines_its_own_world():
    model = sure(gain=0.5, spread=0.1)
    worlds = {kind: Imagination(corridor().problem, kind) for kind in OPTIMISM}
    assert [worlds[kind].controls for kind in OPTIMISM] == [1, 1, 0, 0, 0]
    _, greedy = worlds["greedy"].world(model, KEY)
    assert greedy(STATE, ACTION, mu())[0] == pytest.approx(2.75)
    _, drawn = worlds["thompson"].world(model, KEY)
    _, other = worlds["thompson"].world(model, jax.random.key(1))
    assert drawn(STATE, ACTION, mu())[0] != other(STATE, ACTION, mu())[0]
    flow, motion = worlds["bonus"].world(model, KEY)
    assert motion(STATE, ACTION, mu())[0] == pytest.approx(2.75)
    plain = corridor().problem.reward(STATE, ACTION, mu())
    # beta times the spread, in units of the farthest move.
    assert flow.problem.reward(STATE, ACTION, mu()) == pytest.approx(float(plain) + 0.2)


def test_the_imagined_noise_is_the_models_if_asked_for():
    class Quiet(type(sure())):
        def predict(self, state, action, mu):
            found = super().predict(state, action, mu)
            return eqx.tree_at(lambda p: p.aleatoric, found, jnp.full_like(state, 0.1))

    quiet = Quiet(jnp.asarray(2.0), jnp.asarray(1.0), jnp.asarray(0.1))
    problem = corridor().problem
    flow, _ = Imagination(problem, estimate_noise=True).world(quiet, KEY)
    np.testing.assert_allclose(flow.noise_std, [0.1], rtol=1e-6)
    flow, _ = Imagination(problem).world(quiet, KEY)
    np.testing.assert_allclose(flow.noise_std, [0.25], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kind": "hopeful"}, "optimism must be one of"), ({"optimism": -1.0}, "0 or more")],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Imagination(corridor().problem, **options)
