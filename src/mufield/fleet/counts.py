"""From counts of trips to demand rates, origin-destination matrices and mean fares, smoothed."""

import numpy as np
from jaxtyping import Float

from ..errors import number
from ..space.grid import Grid


def smoothing_kernel(grid: Grid, bandwidth: float = 0.35) -> Float[np.ndarray, "cells cells"]:
    """Gaussian weights between cells, with rows that sum to 1; the identity for bandwidth 0.

    The default, in kilometres, predicts Manhattan's left-out trips best.
    """
    if bandwidth < 1e-6:
        return np.eye(grid.n_cells)
    apart = np.sum(np.square(grid.centres[:, None] - grid.centres), axis=-1)
    weights = np.exp(-0.5 * apart / bandwidth**2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def rates_at(
    by_hour: Float[np.ndarray, "hours cells"],
    hours: Float[np.ndarray, "times"],
    smooth: bool = True,
) -> Float[np.ndarray, "times cells"]:
    """Trips per hour at times of the day, from counts by the hour.

    Counts are smoothed with the weights 1/4, 1/2, 1/4, and interpolated linearly between the
    middles of the hours; unless ``smooth``, each hour has its own count.
    """
    if not smooth:
        return np.asarray(by_hour[np.floor(hours).astype(int) % 24])
    hourly = (np.roll(by_hour, 1, 0) + 2 * by_hour + np.roll(by_hour, -1, 0)) / 4
    place = (hours - 0.5) % 24
    low = np.floor(place).astype(int)
    share = (place - low)[:, None]
    return np.asarray((1 - share) * hourly[low % 24] + share * hourly[(low + 1) % 24])


def destinations(
    counts: Float[np.ndarray, "*parts cells cells"],
    kernel: Float[np.ndarray, "cells cells"],
    prior: Float[np.ndarray, "*origins cells"],
    prior_trips: float = 3.0,
) -> Float[np.ndarray, "*parts cells cells"]:
    """The origin-destination matrix: probability of each destination, from counts of trips.

    Counts are smoothed over origins and destinations by the kernel, and ``prior_trips``
    pseudo-counts with the distribution ``prior`` are added to each origin. Where there is no trip
    at all, agents land where they are.
    """
    found = kernel.T @ counts @ kernel + prior_trips * prior / prior.sum(axis=-1, keepdims=True)
    total = found.sum(axis=-1, keepdims=True)
    return np.where(total > 1e-9, found / np.maximum(total, 1e-9), np.eye(len(kernel)))


def mean_fares(
    paid: Float[np.ndarray, "*parts cells"],
    trips: Float[np.ndarray, "*parts cells"],
    kernel: Float[np.ndarray, "cells cells"],
    prior_trips: float = 3.0,
) -> Float[np.ndarray, "*parts cells"]:
    """Mean fare by origin, from the total ``paid`` and the number of trips in each cell.

    Both are smoothed by the kernel; ``prior_trips`` trips at the mean fare of the city are added.
    """
    everywhere = paid.sum() / trips.sum()
    total = np.maximum(trips @ kernel + prior_trips, 1e-9)
    return np.asarray((paid @ kernel + prior_trips * everywhere) / total)


def trip_minutes(
    grid: Grid,
    counts: Float[np.ndarray, "cells cells"],
    kernel: Float[np.ndarray, "cells cells"],
    speed: float | None = None,
    minutes: Float[np.ndarray, "cells cells"] | None = None,
    prior_trips: float = 3.0,
) -> Float[np.ndarray, "cells cells"]:
    """How long trips take from each cell to each other: distance over speed, or from records.

    Distances are along the axes, and a third of a cell within one. Total ``minutes`` of the trips
    between two cells are smoothed as in `destinations`, with ``prior_trips`` trips of that distance
    at the mean speed of all records.
    """
    apart = np.sum(np.abs(grid.centres[:, None] - grid.centres), axis=-1)
    apart = np.where(apart > 0, apart, sum(grid.cell_size) / 3)
    if speed is not None:
        number(speed, "speed, in km/h,", 1e-3)
    if minutes is None:
        assert speed is not None
        return np.asarray(60 * apart / speed)
    pace = 60 / speed if speed is not None else minutes.sum() / np.sum(counts * apart)
    total, trips = kernel.T @ minutes @ kernel, kernel.T @ counts @ kernel
    prior = max(prior_trips, 1e-9)
    return np.asarray((total + prior * pace * apart) / (trips + prior))


def time_of_day(hour: float) -> str:
    """An hour of the day as clocks show it: 7.5 is 7:30."""
    minutes = round(60 * hour) % (24 * 60)
    return f"{minutes // 60}:{minutes % 60:02d}"
