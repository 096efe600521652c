"""The mean-field flow: how the population's distribution moves, and what it earns."""
