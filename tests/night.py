"""Sizes of tests: every law runs with every change, and at full size at night."""

import os

NIGHT = os.environ.get("MUFIELD_NIGHT") == "1"
"""Whether everything runs at full size; `make test-all` sets it."""


def at_night(full, quick):
    """A number or a list for the night, or the shorter one for every change."""
    return full if NIGHT else quick
