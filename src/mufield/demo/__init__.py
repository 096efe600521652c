"""Demonstrations: a population that spreads over four rooms, and a fleet of taxis."""

from .rooms import run as run
