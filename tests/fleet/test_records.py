"""Records of trips: what is counted, what is left out, and what is refused."""

import gzip

import numpy as np
import pytest
from fleet import write
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

import mufield as mf

GRID = mf.Grid.box(0.0, (2.0, 2.0), (4, 4), walls=np.eye(4, dtype=bool))
CITY = mf.fleet.CityMap(-73.98, 40.75, 29.0, GRID)


def trips(count=40, seed=0, **changes):
    """Trips between random free cells, at seven and eight o'clock."""
    rng = np.random.default_rng(seed)
    ends = CITY.to_earth(GRID.centres[rng.integers(GRID.n_cells, size=2 * count)])
    rows = []
    for i, (begin, end) in enumerate(zip(ends[:count], ends[count:], strict=True)):
        rows.append(
            {
                "pickup_longitude": begin[0],
                "pickup_latitude": begin[1],
                "dropoff_longitude": end[0],
                "dropoff_latitude": end[1],
                "hour": 7 + i % 2,
                "weekday": i % 7,
                "fare": 8.0 + i % 3,
            }
        )
        rows[-1] |= changes
    return rows


def test_trips_become_a_problem(tmp_path):
    records = mf.fleet.read_trips(write(tmp_path / "trips.csv", trips()), monday=0)
    assert (len(records), records.notes) == (40, ())
    found = records.model(CITY, start=7.0, steps=6, bandwidth=0.0, prior_trips=0.0, smooth=False)
    assert found.notes == (
        "no trip begins in the hour before 7:00: where vehicles start is that of the trips of "
        "these steps",
    )
    np.testing.assert_allclose(found.matrix.sum(axis=1), 1.0)
    np.testing.assert_allclose(found.demand_per_vehicle(0.6).sum(axis=1).mean(), 0.6)
    # Without smoothing, rows are the shares of the trips from there.
    starts = GRID.index_of(CITY.to_plane(*records.pickup.T))
    ends = GRID.index_of(CITY.to_plane(*records.dropoff.T))
    cell = int(starts[0])
    shares = np.bincount(ends[starts == cell], minlength=GRID.n_cells) / (starts == cell).sum()
    np.testing.assert_allclose(found.matrix[cell], shares)
    np.testing.assert_allclose(found.fares[cell], records.fare[starts == cell].mean())
    smooth = records.model(CITY, start=7.0, steps=6)
    assert (smooth.matrix > 0).all()
    problem = mf.Problem(
        space=CITY,
        actions=mf.Box(-1.0, 1.0, dim=2),
        reward=lambda state, action, mu: 0.0,
        horizon=6,
        initial=smooth.ended,
        noise=0.1,
        trips=mf.fleet.Trips(
            mf.fleet.Passengers(GRID, smooth.demand_per_vehicle(0.6)), smooth.matrix
        ),
    )
    assert problem.city is CITY


def test_all_hours_of_a_day_hold_all_trips(tmp_path):
    records = mf.fleet.read_trips(write(tmp_path / "trips.csv", trips()), monday=0)
    day = records.model(CITY, start=0.0, steps=144)
    assert day.demand.sum() == pytest.approx(40.0)
    own = records.city(cell=500, turn=29, islands="keep")
    assert own.histogram(*records.dropoff.T)[1] == 0  # the map of all ends holds them


def test_days_are_chosen_and_counted(tmp_path):
    records = mf.fleet.read_trips(write(tmp_path / "trips.csv", trips()), monday=0)
    weekend = records.on((5, 6))
    assert set(weekend.weekday) == {5.0, 6.0}
    assert weekend.notes == (f"{40 - len(weekend)} of 40 trips are on other days",)
    with pytest.raises(mf.UserError, match=r"no trip is on one of the days \[9\]; there are 0, 1"):
        records.on([9])
    rows = [{k: v for k, v in row.items() if k != "weekday"} for row in trips()]
    with pytest.raises(mf.UserError, match="do not say on which day"):
        mf.fleet.read_trips(write(tmp_path / "trips.csv", rows)).on([0])


def test_dates_say_hour_and_day(tmp_path):
    rows = [{k: v for k, v in row.items() if k not in ("hour", "weekday")} for row in trips(4)]
    for row in rows:
        row["time"] = "2026-03-07 07:45:00"  # a Saturday
    for path in ("trips.csv", "trips.parquet"):
        records = mf.fleet.read_trips(write(tmp_path / path, rows))
        assert (set(records.hour), set(records.weekday)) == ({7.75}, {5.0})


UNREAD = "date_format reads, or Unix seconds if zone is given"


@pytest.mark.parametrize(
    ("begun", "ended", "options", "else_refused"),
    [
        ("2026-03-07 07:45:00", "2026-03-07 08:00", {}, ""),
        ("07/03/2026 07:45", "07/03/2026 08:00", {"date_format": "%d/%m/%Y %H:%M"}, UNREAD),
        ("1772865900", "1772866800", {"zone": "Europe/Paris"}, UNREAD),
        ("1772865900000", "1772866800000", {"zone": "Europe/Paris"}, UNREAD),
        ("2026-03-07T06:45:00Z", "2026-03-07T07:00:00+00:00", {"zone": "Europe/Paris"}, ""),
    ],
)
def test_times_are_those_of_the_citys_clock(tmp_path, begun, ended, options, else_refused):
    rows = [{"origin": "a", "destination": "b", "time": begun, "dropoff_time": ended}]
    path = write(tmp_path / "trips.csv", rows)
    records = mf.fleet.read_trips(path, **options)
    assert (records.hour.tolist(), records.weekday.tolist()) == ([7.75], [5.0])
    assert records.minutes.tolist() == [15.0]
    assert records.notes == ()
    if else_refused:
        with pytest.raises(mf.UserError, match=else_refused):
            mf.fleet.read_trips(path)
    elif options:
        assert "times have a zone" in mf.fleet.read_trips(path).notes[0]
    with pytest.raises(mf.UserError, match="expected a time zone such as Europe/Paris, got 'x'"):
        mf.fleet.read_trips(path, zone="x")


def test_omissions_are_counted_by_reason(tmp_path):
    rows = trips()
    rows[0]["pickup_latitude"] = ""
    rows[1]["dropoff_longitude"] = "nan"
    rows[2] |= {"pickup_longitude": 0.0, "pickup_latitude": 0.0}
    rows[3]["dropoff_latitude"] = 400.0
    rows[4]["hour"] = "soon"
    rows[5]["hour"] = 24
    rows[6]["weekday"] = ""
    rows[7]["fare"] = -3.0
    records = mf.fleet.read_trips(write(tmp_path / "trips.csv", rows), monday=0)
    assert len(records) == 32
    assert [note.partition(":")[0] for note in records.notes] == [
        "2 of 40 trips were left out, because a coordinate is missing or no number (decimals need "
        "a point)",
        "2 of 40 trips were left out, because a coordinate is none of the earth, or 0, 0",
        "2 of 40 trips were left out, because the time is none of these; an hour from 0 to below "
        "24 such as 7.25, a date and time such as 2026-03-01T08",
        "1 of 40 trips were left out, because the weekday is missing or no number",
        "1 of 40 trips were left out, because the fare is missing, no number or negative",
    ]
    assert records.notes[1].endswith("first in line 4")
    rows[8] |= {"pickup_longitude": -74.5}
    found = mf.fleet.read_trips(write(tmp_path / "trips.csv", rows)).model(CITY, start=7.0, steps=2)
    assert "1 of 32 trips are not on the map" in found.notes


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace("hour", "minute"), "expected a column time or hour"),
        (lambda text: text.replace("dropoff_l", "x"), "is missing among"),
        (lambda text: text[:-12], "expected 7 values .* the file may be cut short"),
        (lambda text: text.split("\n")[0], "expected at least one row"),
        (lambda text: "", "empty file"),
        (lambda text: text.replace("-73.", "-473."), "only 0 of 40 trips can be right"),
    ],
)
def test_files_that_cannot_be_right(tmp_path, spoil, message):
    path = write(tmp_path / "trips.csv", trips())
    path.write_text(spoil(path.read_text().replace("\r\n", "\n").strip()))
    with pytest.raises(mf.UserError, match=message):
        mf.fleet.read_trips(path)


def test_gzipped_files_and_other_names(tmp_path):
    path = write(tmp_path / "trips.csv", trips())
    packed = tmp_path / "trips.csv.gz"
    text = path.read_bytes().replace(b"pickup_longitude", b"x")
    packed.write_bytes(gzip.compress(text))
    assert len(mf.fleet.read_trips(packed, {"pickup_longitude": "x"})) == 40
    with pytest.raises(mf.UserError, match="no column lon is used"):
        mf.fleet.read_trips(packed, {"lon": "x"})
    with pytest.raises(mf.UserError, match="but y is missing"):
        mf.fleet.read_trips(packed, {"pickup_longitude": "x", "fare": "y"})
    packed.write_bytes(packed.read_bytes()[:-30])
    with pytest.raises(mf.UserError, match="cannot be unpacked"):
        mf.fleet.read_trips(packed, {"pickup_longitude": "x"})


def test_hours_without_trips_are_refused(tmp_path):
    records = mf.fleet.read_trips(write(tmp_path / "trips.csv", trips()), monday=0)
    with pytest.raises(mf.UserError, match="no trip begins between 15"):
        records.model(CITY, start=15.0, steps=3)
    with pytest.raises(mf.UserError, match="an hour of the day, must be"):
        records.model(CITY, start=25.0, steps=3)


def test_numbers_of_weekdays_may_begin_with_sunday(tmp_path):
    path = write(tmp_path / "trips.csv", [row | {"weekday": row["weekday"] + 1} for row in trips()])
    records = mf.fleet.read_trips(path)
    assert records.notes[-1].startswith("weekdays have the file's own numbers, 1 to 7")
    sunday_first = mf.fleet.read_trips(path, monday=2)
    assert sunday_first.notes == ()
    np.testing.assert_array_equal(sunday_first.weekday, (records.weekday - 2) % 7)


def test_notes_say_what_smoothing_over_hours_changes(tmp_path):
    records = mf.fleet.read_trips(write(tmp_path / "trips.csv", trips()), monday=0)
    plain = records.model(CITY, start=7.0, steps=12, smooth=False)
    assert plain.demand.sum() == pytest.approx(40.0)  # as the records have
    smooth = records.model(CITY, start=7.0, steps=12)
    assert smooth.demand.sum() == pytest.approx(27.5)
    assert "40 trips begin in these steps, the demand is 28" in smooth.notes[0]
    after = records.model(CITY, start=9.0, steps=6)
    assert any(note.startswith("no trip begins in the hours from 9:00") for note in after.notes)


def centres(cells):
    """Longitude and latitude of cells of 500 m, three points each."""
    places = np.repeat(np.array(cells, dtype=float), 3, axis=0)
    return mf.fleet.CityMap(-73.98, 40.75, 29.0, GRID).to_earth(0.5 * places + 0.25).T


def test_islands_are_named_and_left_out_or_joined():
    street = [(0, 0), (1, 0), (2, 0), (2, 1)]
    islands = [(5, 1), (8, 3), (1, 3), (2, 4)]  # the last two touch at a corner only
    options = {"cell": 500, "turn": 29, "origin": (-73.98, 40.75), "size": (4500, 2500)}
    where = centres(street + islands)
    dropped = mf.fleet.CityMap.of_traffic(*where, **options)
    assert dropped.grid.free_cells.tolist() == [list(cell) for cell in street]
    islanders, where_it_is = dropped.notes
    assert islanders == (
        "4 of 8 free cells, with 12 of 24 points, are 4 islands that no vehicle can drive to: they "
        "were left out; islands='join' connects them"
    )
    assert where_it_is.startswith("the map's 4 cells are on 4.5 by 2.5 km around longitude -73.95,")
    kept = mf.fleet.CityMap.of_traffic(*where, islands="keep", **options)
    assert (kept.grid.n_cells, len(kept.notes)) == (8, 2)
    joined = mf.fleet.CityMap.of_traffic(*where, islands="join", **options)
    assert ndimage.label(~joined.grid.walls)[1] == 1
    assert (~joined.grid.walls >= ~kept.grid.walls).all()
    added = joined.grid.n_cells - 8
    assert f"{added} cells without traffic were made free" in joined.notes[0]
    assert added <= 9  # of lines that are as short as can be
    whole = mf.fleet.CityMap.of_traffic(*centres(street), **options)
    assert len(whole.notes) == 1
    with pytest.raises(mf.UserError, match="islands must be drop, join or keep, got 'sink'"):
        mf.fleet.CityMap.of_traffic(*where, islands="sink", **options)
    with pytest.raises(mf.UserError, match=r"15 of 24 points, are 5 islands .* take larger cells"):
        mf.fleet.CityMap.of_traffic(*centres([*street[:3], *islands, (6, 4)]), **options)


def test_exchanged_coordinates_of_a_real_place_can_be_seen_in_the_notes():
    lisbon = np.random.default_rng(0).normal((-9.14, 38.72), 0.004, (200, 2)).T
    right, wrong = (
        mf.fleet.CityMap.of_traffic(*each, cell=2000) for each in (lisbon, lisbon[::-1])
    )
    assert "around longitude -9.129, latitude 38.72; if the city is not there" in right.notes[-1]
    assert "around longitude 38.7" in wrong.notes[-1]


def test_a_stray_point_does_not_widen_the_map():
    street = [(0, 0), (1, 0), (2, 0), (2, 1)]
    far = mf.fleet.CityMap.of_traffic(*centres([*street, (150, 200)]), cell=500, turn=29)
    assert max(far.grid.shape) <= 3
    states = far.to_plane(*centres(street))
    assert (np.asarray(far.grid.index_of(states)) >= 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": 0.001}, "cells of 0.001 m, more than 4,000,000; take larger cells"),
        ({"cell": "a"}, "the edge of a cell, in metres, must be real numbers, got 'a'"),
        ({"cell": 500, "turn": np.inf}, "turn, in degrees, must be one finite number"),
        ({"cell": 500, "origin": (1,)}, "origin, longitude and latitude, must have one value"),
        ({"cell": 500, "size": "a"}, "size, in metres, must be real numbers"),
        ({"cell": 500, "least": 1.5}, "must be a whole number of at least 1"),
    ],
)
def test_maps_that_cannot_be(options, message):
    with pytest.raises(mf.UserError, match=message):
        mf.fleet.CityMap.of_traffic(*centres([(0, 0), (3, 4)]), **options)
    with pytest.raises(mf.UserError, match="longitude and latitude seem to be exchanged"):
        mf.fleet.CityMap.of_traffic(*centres([(0, 0), (3, 4)])[::-1], cell=500)


@pytest.mark.parametrize(
    ("option", "value"),
    [("minutes", np.inf), ("bandwidth", 1e300), ("prior_trips", np.inf), ("steps", 10**9)],
)
def test_models_that_cannot_be(tmp_path, option, value):
    records = mf.fleet.read_trips(write(tmp_path / "trips.csv", trips()), monday=0)
    with pytest.raises(mf.UserError, match=option if option != "steps" else "at most 10,000 steps"):
        records.model(CITY, **{"start": 7.0, "steps": 4, option: value})
    with pytest.raises(mf.UserError, match="the load must be one finite number"):
        records.model(CITY, start=7.0, steps=4).demand_per_vehicle(np.inf)


@settings(max_examples=30, deadline=None)
@given(
    bandwidth=st.sampled_from([0.0, 0.2, 1.0]),
    prior_trips=st.sampled_from([0.0, 3.0]),
    seed=st.integers(0, 9),
)
def test_destinations_are_always_distributions(tmp_path_factory, bandwidth, prior_trips, seed):
    path = tmp_path_factory.mktemp("trips") / "trips.csv"
    records = mf.fleet.read_trips(write(path, trips(5, seed)))
    found = records.model(CITY, start=7.0, steps=3, bandwidth=bandwidth, prior_trips=prior_trips)
    np.testing.assert_allclose(found.matrix.sum(axis=1), 1.0, atol=1e-9)
    assert (found.matrix >= 0).all()
    assert found.ended.sum() == pytest.approx(1.0)
    mf.fleet.Trips(lambda state, mu: 0.5, found.matrix)
