"""The space that agents live in, distributions over it, and how an agent moves."""
