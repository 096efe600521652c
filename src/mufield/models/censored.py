r"""What moves that a wall stopped say about the motion.

Of such an axis all that is known is that the agent, noise included, aimed beyond the wall. With the
side $d = \pm 1$ and the wall at $t$, its likelihood is $\Phi(d (f - t) / \sqrt{\lambda})$.
Leaving these moves out would teach that walls push: the moves that reach no wall are those whose
noise pointed away from it. Expectation propagation replaces each likelihood by the Gaussian one
that gives the same mean and variance, given all other data.
"""

import numpy as np
from jaxtyping import Float, Int

from .base import Rows

ROUNDS = 8
"""Rounds of expectation propagation; after that the sites hardly change."""

DAMPING = 0.8
"""Share of every update that is taken, so that rounds in parallel settle."""

LEAST_WEIGHT = 1e-6
"""Sites that weigh less than this share of an observation are left out."""


def with_stopped_moves(
    rows: Rows,
    side: Int[np.ndarray, "rows outputs"],
    phi: Float[np.ndarray, "rows points"],
    noise: Float[np.ndarray, "outputs"],
) -> Rows:
    """The rows with a Gaussian observation for each axis that a wall stopped.

    Args:
        rows: Observed moves; where ``side`` is not zero their targets are where the wall is.
        side: Direction in which a wall stopped the agent; 0 if none did.
        phi: Coordinates of the rows, in which the function is linear, with independent standard
            normal weights.
        noise: Variance of the noise on each axis.
    """
    from scipy.linalg import cho_solve, solve_triangular  # slow to import
    from scipy.special import log_ndtr

    targets, weight = rows.targets.copy(), np.array(rows.weight, dtype=float)
    weight[side != 0] = 0.0
    for axis, variance in enumerate(noise):
        stopped = np.flatnonzero(side[:, axis])
        if not len(stopped):
            continue
        own, towards, wall = phi[stopped], side[stopped, axis], rows.targets[stopped, axis]
        share = weight[:, axis] / variance
        precision = np.eye(phi.shape[1]) + (phi.T * share) @ phi
        pulled = phi.T @ (share * rows.targets[:, axis])
        tau, nu = np.zeros(len(stopped)), np.zeros(len(stopped))
        for _ in range(ROUNDS):
            lower = np.linalg.cholesky(precision + (own.T * tau) @ own)
            mean = own @ cho_solve((lower, True), pulled + own.T @ nu)
            spread = np.sum(solve_triangular(lower, own.T, lower=True) ** 2, axis=0)
            # The belief without the site itself, then what the likelihood makes of it.
            cavity = 1 / np.maximum(1 / spread - tau, 1e-12)
            centre = cavity * (mean / spread - nu)
            total = np.sqrt(variance + cavity)
            z = towards * (centre - wall) / total
            ratio = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z))
            after = cavity - (cavity / total) ** 2 * ratio * (z + ratio)
            moved = centre + towards * cavity * ratio / total
            tau += DAMPING * (np.maximum(1 / after - 1 / cavity, 0.0) - tau)
            nu += DAMPING * (moved / after - centre / cavity - nu)
        kept = tau * variance > LEAST_WEIGHT
        weight[stopped, axis] = np.where(kept, tau * variance, 0.0)
        targets[stopped, axis] = np.where(kept, nu / np.where(kept, tau, 1.0), 0.0)
    return Rows(rows.inputs, targets, weight)
