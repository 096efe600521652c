"""Array aliases and axis letters, used in every signature.

Axes: ``cells`` are the free cells of a grid in their indexing order, ``dim`` the axes of the
state space (the paper's p), ``action_dim`` those of the action space (q), ``moves`` the points
of a randomised policy's support, ``steps`` the decisions h = 0..H-1, ``agents`` tracked agents.
"""

from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

Key = PRNGKeyArray
Scalar = Float[Array, ""]
State = Float[Array, "dim"]
States = Float[Array, "agents dim"]
Action = Float[Array, "action_dim"]
Mass = Float[Array, "cells"]
Masses = Float[Array, "steps_and_end cells"]
Stopped = Bool[Array, "dim"]
CellIndex = Int[Array, ""]
Target = Float[Array, "target"]
"""What a motion returns: where an agent aims, or on nodes the probabilities of its successors."""
Step = Int[ArrayLike, ""]

Margins = Float[Array, "*paths steps margins"]
"""How far inside its constraints the population is after each move, as a share of each limit.

With shocks the first axis are their paths."""
