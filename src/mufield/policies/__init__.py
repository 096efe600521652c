"""Policies: what an agent does, seen from its own state and the population's distribution."""
