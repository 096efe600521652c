"""The commands about runs; like all commands they import JAX only when they are called."""
