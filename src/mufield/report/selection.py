"""Which flows a file holds: all, unless the space is so large that the file would be, too."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_BYTES = 3_000_000
"""Of one run's flows; as text they take a third more."""

FEWEST_STEPS = 11
"""Steps of an episode below which rather fewer episodes are kept."""


@dataclass(frozen=True)
class Selection:
    """The flows of a run that are kept.

    Attributes:
        episodes: Numbers of the episodes.
        stride: Every so many of their steps.
    """

    episodes: tuple[int, ...]
    stride: int

    def note(self, count: int) -> str:
        """What people should know of it; empty if all is kept."""
        parts = []
        if self.episodes and len(self.episodes) < count:
            parts.append(f"{len(self.episodes)} of {count} episodes")
        if self.stride > 1:
            parts.append(f"one of {self.stride} steps")
        if not parts:
            return ""
        return f"To keep the file small, it shows {' and '.join(parts)}; mufield watch shows all."


def select(values: Sequence[float], horizon: int, bytes_of_step: int) -> Selection:
    """Chooses episodes and steps that fit.

    Args:
        values: J of each episode; the best one is kept in any case.
        horizon: Number of moves.
        bytes_of_step: What a step of an episode takes.
    """
    count = len(values)
    if count == 0:
        return Selection((), 1)
    room = max(MOST_BYTES // bytes_of_step, 2)
    steps = min(horizon + 1, max(room // count, FEWEST_STEPS), room)
    stride = math.ceil(horizon / max(steps - 1, 1))
    kept = min(count, max(1, room // (math.ceil(horizon / stride) + 1)))
    return Selection(_spread(values, kept), stride)


def _spread(values: Sequence[float], kept: int) -> tuple[int, ...]:
    """Numbers of episodes from the first to the last, the best one among them."""
    count = len(values)
    if kept >= count:
        return tuple(range(1, count + 1))
    best = values.index(max(values)) + 1
    others = max(kept - 1, 1)
    spread = {count - round(i * (count - 1) / max(others - 1, 1)) for i in range(others)}
    return tuple(sorted({best, *spread} if kept > 1 else {best}))
