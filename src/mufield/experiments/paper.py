"""The paper's own numbers."""

LEARNED = 77.86
"""J in the four rooms after 30 episodes."""

KNOWN = 78.26
"""J there with known motion."""

FULL_ENTROPY_AT = 14
"""Step at which that plan reaches the greatest entropy."""

BEST_EPISODE = 26
"""Of the run that the paper shows."""

PANELS = (3, 5, 8, 20)
"""Steps at which it shows that plan."""

TABLE_SIZES = {"standard": 10_400, "extended": 18_720}
"""Entries of the Q-tables."""

EARLY = 16
"""Step of the swarm from which learned and known flows are said to be nearly the same."""
