"""Finite populations, simulated agent by agent."""
