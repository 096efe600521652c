"""Finitely many agents: the population as a simulation of all of them."""
