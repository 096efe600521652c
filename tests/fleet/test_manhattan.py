"""Manhattan's taxis: what ships, and what it becomes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mufield as mf
from mufield.finite.system import FiniteSystem
from mufield.fleet.manhattan import DATA, trip_table

TAXIS = mf.make("manhattan", horizon=3)


def test_the_data_are_small_and_look_like_manhattan():
    assert DATA.stat().st_size < 300_000
    table = trip_table()
    grid = table.city.grid
    assert grid.n_cells == 185
    np.testing.assert_allclose(table.journeys.sum(axis=-1), 1.0)
    assert table.journeys.min() > 0
    assert 5 < table.fares.min() < 15 < table.fares.max() < 60
    # Times Square is among the busiest cells, the middle of the Hudson a wall.
    busy = table.city.grid.index_of(table.city.to_plane([-73.9855], [40.758]))[0]
    assert (table.pickups.sum(axis=(0, 1)) > table.pickups.sum(axis=(0, 1))[busy]).sum() < 20
    assert grid.index_of(table.city.to_plane([-74.02], [40.76]))[0] < 0
    # Most people travel a few kilometres.
    apart = np.linalg.norm(grid.centres[:, None] - grid.centres, axis=-1)
    mean = np.einsum("k,kj,kj", table.pickups[0, 8], table.journeys[0, 1], apart)
    assert 1.5 < mean / table.pickups[0, 8].sum() < 4.0


def test_options_change_what_they_name():
    wanted = TAXIS.problem.trips.chance.demand
    assert float(wanted.sum()) == pytest.approx(0.6 * 3, rel=1e-5)
    heavier = mf.make("manhattan", horizon=3, load=0.9).problem.trips.chance.demand
    np.testing.assert_allclose(heavier, 1.5 * wanted, rtol=1e-5)
    weekend = mf.make("manhattan", horizon=3, day="weekend", start=23.75)
    assert float(jnp.abs(weekend.problem.trips.chance.demand - wanted).sum()) > 0.5
    fares = mf.make("manhattan", horizon=3, reward="fares").problem.reward
    mean = float(jnp.sum(fares.pay * wanted) / wanted.sum())
    assert 8 < mean < 20
    np.testing.assert_allclose(fares.cost, 0.05 * mean, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"day": "monday"}, "day must be one of weekday, weekend"),
        ({"reward": "tips"}, "reward must be one of served, fares"),
        ({"load": 0.0}, "load must be one finite number"),
        ({"start": 24}, "start, an hour of the day, must be"),
        ({"congestion": -1.0}, "congestion must be one finite number"),
        ({"horizon": 0}, "horizon must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(mf.UserError, match=words):
        mf.make("manhattan", **options)


def test_avenues_are_faster_and_midtown_rush_hours_and_crowds_slower():
    _, motion = TAXIS.reveal()
    grid = TAXIS.problem.grid

    def speed(state, action, here=0.0, step=0, law=motion):
        mu = mf.MeanField(TAXIS.problem.initial, jnp.asarray(here), grid, step)
        place = jnp.asarray(state)
        return float(jnp.linalg.norm(law(place, jnp.asarray(action), mu) - place))

    uptown, midtown, along, across = (2.9, 13.0), (2.9, 7.4), (0.0, 1.0), (1.0, 0.0)
    assert 0.5 < speed(uptown, across) < speed(uptown, along) < 1.0
    assert speed(midtown, along) < 0.65 * speed(uptown, along)
    assert speed(uptown, along, here=0.1) == pytest.approx(speed(uptown, along) / 2, rel=1e-5)
    assert speed(uptown, along, step=8) < speed(uptown, along)
    _, sunday = mf.make("manhattan", horizon=3, day="weekend").reveal()
    assert speed(uptown, along, law=sunday) == pytest.approx(1.0, rel=1e-3)


def test_mass_is_kept_and_a_plan_beats_staying():
    stay = TAXIS.evaluate(lambda state, mu, step: jnp.zeros(2))
    np.testing.assert_allclose(stay.mass.sum(axis=1), 1.0, atol=1e-5)
    assert float(stay.value) < float(TAXIS.problem.trips.chance.demand.sum())
    moves = mf.MoveFlow(*TAXIS.reveal(), TAXIS.problem.actions.points(3))
    plan = mf.MirrorAscent(sweeps=20, bound=False).solve(moves)
    assert float(plan.value) > 1.05 * float(stay.value)


def test_vehicles_of_a_fleet_are_carried_off_as_in_the_limit():
    fleet = FiniteSystem.of(TAXIS, 3000, centred=True)
    episode = fleet.run(lambda state, mu, step: jnp.zeros(2), jax.random.key(0), agents=3000)
    limit = TAXIS.evaluate(lambda state, mu, step: jnp.zeros(2))
    assert float(episode.carried.mean()) == pytest.approx(float(limit.value) / 3, rel=0.08)
