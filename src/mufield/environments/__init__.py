"""The paper's systems, by name."""

from .registry import Entry, catalogue, make, register

__all__ = ["Entry", "catalogue", "make", "register"]
