"""The paper's systems, by name."""
