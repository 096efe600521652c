"""The data of a run as the learner takes them, and as its files hold them."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..episode import Episode
from ..models.data import Transitions
from ..problem import Problem
from .files import RunFiles
from .layout import LAYOUT, Record


def history_of(store: RunFiles, problem: Problem) -> tuple[Transitions, tuple[int, ...]]:
    """The data that the next plan of a run knows, and their number after each episode."""
    data, ends = Transitions.empty(problem), list[int]()
    for number in range(1, store.episodes + 2):
        for log in store.logs:
            if log["since"] == number:
                data = data.join(to_transitions(log, problem))
        if number <= store.episodes:
            data = data.append(to_episode(store.records[number - 1]))
            ends.append(len(data))
    return data, tuple(ends)


def to_transitions(log: Record, problem: Problem) -> Transitions:
    """A log as learners take it."""
    return Transitions(problem=problem, **dict[str, Any](log.arrays))


def to_episode(record: Record) -> Episode:
    """The observed episode as learners take it."""
    return Episode(**{name: jnp.asarray(array) for name, array in record.arrays.items()})


def observed_arrays(episode: Episode) -> dict[str, np.ndarray]:
    """An episode's arrays as a record keeps them."""
    found = {name: getattr(episode, name) for name in (*LAYOUT.observed, *LAYOUT.sometimes)}
    return {name: np.asarray(array) for name, array in found.items() if array is not None}


def logged_arrays(data: Transitions) -> dict[str, np.ndarray]:
    """A log's arrays as a record keeps them."""
    arrays = {name: getattr(data, name) for name in LAYOUT.logged}
    return arrays if data.earned is None else arrays | {"earned": data.earned}
