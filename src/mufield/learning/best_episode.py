"""Which episode was the best: the one definition, for runs in memory and on disk. No JAX.

Only episodes that began as the problem says can be compared by what they earned: from elsewhere
even a bad policy may earn more.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Earned(NamedTuple):
    """What an episode earned, and the share of its population that began elsewhere, if any did."""

    value: float
    elsewhere: float | None = None


def best_episode(episodes: Sequence[Earned]) -> int:
    """Index of the episode with the highest J of those that began as the problem says.

    If none did, of all; of several with the same J, the first.
    """
    home = [i for i, each in enumerate(episodes) if each.elsewhere is None]
    return max(home or range(len(episodes)), key=lambda i: episodes[i].value)


def began_elsewhere(
    initial: Float[np.ndarray, "cells"],
    planned: Float[np.ndarray, "cells"],
    observed: Float[np.ndarray, "cells"],
    agents: int,
) -> float | None:
    """Share of the population that did not begin as the problem says; None if that may be chance.

    Args:
        initial: The problem's initial distribution.
        planned: Where the plan expected the population at first; not finite if nothing did.
        observed: Where it was.
        agents: Number of agents that were tracked, at most as many as there were.
    """
    if np.isfinite(planned).all():
        share = share_apart(initial, planned)
        if share > 1e-4:  # two distributions that were given are alike below that
            return share
    return share_beyond_chance(initial, observed, agents)


def share_apart(one: Float[np.ndarray, "cells"], other: Float[np.ndarray, "cells"]) -> float:
    """Share of the population that is elsewhere in one distribution than in the other."""
    return 0.5 * float(np.abs(one - other).sum())


def share_beyond_chance(
    expected: Float[np.ndarray, "cells"], observed: Float[np.ndarray, "cells"], agents: int | None
) -> float | None:
    """Share of agents elsewhere than expected; None if it is small or may be chance.

    ``agents`` is None if ``observed`` is exact.
    """
    # Even the right agents differ from their distribution, by about this much in each cell.
    chance = 0.0
    if agents is not None:
        chance = float(np.sqrt(2 / math.pi * expected * (1 - expected) / agents).sum()) / 2
    nowhere = float(observed[expected <= 0].sum())  # chance leads nobody there
    share = share_apart(expected, observed)
    matters = 0.1
    return share if share > matters + 2 * chance or nowhere > matters else None
