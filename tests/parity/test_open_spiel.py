"""The discrete four rooms equal OpenSpiel's game, cell by cell."""

import numpy as np
import pyspiel
import pytest
from open_spiel.python import policy as policies
from open_spiel.python.mfg.algorithms import distribution, policy_value
from open_spiel.python.mfg.games import factory

from mufield import entropy, make
from mufield.environments.four_rooms import uniform_legal


@pytest.mark.parametrize(("horizon", "intensity"), [(40, 1.0), (20, 0.0), (25, 0.35)])
def test_flow_and_value_under_the_uniform_policy(horizon, intensity):
    settings = factory.GAME_SETTINGS["crowd_modelling_2d_four_rooms"]
    game = pyspiel.load_game(
        "mfg_crowd_modelling_2d",
        {**settings, "horizon": horizon, "noise_intensity": intensity},
    )
    theirs = policies.UniformRandomPolicy(game)
    flow = distribution.DistributionPolicy(game, theirs)
    value = policy_value.PolicyValue(game, flow, theirs)(game.new_initial_state())

    system = make("discrete-rooms", horizon=horizon, noise_intensity=intensity, pay_end=False)
    grid = system.problem.grid
    rollout = system.evaluate(uniform_legal(grid))

    # Their map has a border of walls, so cells are counted from one; names are "(x, y, t)".
    for step in range(horizon):
        expected = [flow.value_str(f"({x + 1}, {y + 1}, {step})", 0.0) for x, y in grid.free_cells]
        assert np.asarray(rollout.mass[step]) == pytest.approx(np.array(expected), abs=1e-12)
    # Their first reward is taken before the distribution is known: uniform over 13 x 13 cells.
    assert float(rollout.value) + np.log(169) == pytest.approx(value, abs=1e-9)
    assert float(entropy(rollout.mass[:-1]).sum()) == pytest.approx(float(rollout.value))


def test_the_factory_setting_s_published_figures():
    system = make("discrete-rooms", horizon=40, noise_intensity=1.0, pay_end=False)
    value = float(system.evaluate(uniform_legal(system.problem.grid)).value)
    assert value == pytest.approx(139.0940289302, abs=1e-9)
