"""Algorithms from the literature to compare with."""
