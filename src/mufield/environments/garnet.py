"""Random problems on nodes whose motion and reward depend on mu: mean-field Garnets."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..checks import whole_number
from ..errors import UserError
from ..space.nodes import Nodes
from ..systems import SimulatedSystem
from .games import on_nodes


def _probabilities(own: Array, crowd: Array, node: Array, action: Array, mu: Any) -> Array:
    """The successors' probabilities; ``crowd[node, action]`` has a row for each."""
    positive = jnp.maximum(own[node, action] + crowd[node, action] @ mu.mass, 0.0) + 1e-12
    return positive / jnp.sum(positive)


def _paid(own: Array, interaction: Array, node: Array, action: Array, mu: Any) -> Array:
    """The reward; ``interaction`` has a row for each node."""
    return own[node, action] + interaction[node] @ mu.mass


def garnet(
    *,
    states: int = 10,
    actions: int = 4,
    branching: int = 5,
    horizon: int = 20,
    seed: int = 0,
    coupling: str = "additive",
) -> SimulatedSystem:
    r"""A random problem, drawn as Bench-MFG draws its mean-field Garnets.

    Magnino and others, "Bench-MFG" (2026), class ``MFGarnet``: every node and action has
    ``branching`` random successors with probabilities P0 drawn from a Dirichlet distribution; with
    random numbers C, coefficients c and rho uniform in [0, 1] and intensities cut at zero,

    $$P \propto c_p P_0 + \rho_p C \mu \ \text{or}\ P_0 (c_p + \rho_p C \mu), \qquad
    r = c_r R_0(s, a) + \rho_r (M \mu)(s),$$

    with a symmetric M. Equal seeds give equal problems there, where successors are drawn with
    coarse random numbers, and here, where they are drawn with the probabilities themselves.

    Args:
        states: Number of nodes.
        actions: Number of actions.
        branching: Successors drawn for each node and action; some may coincide.
        horizon: Number of moves; all start evenly spread.
        seed: Which of the problems.
        coupling: ``"additive"`` or ``"multiplicative"``, the first or the second formula for P.
    """
    if coupling not in ("additive", "multiplicative"):
        raise UserError(f"the coupling must be additive or multiplicative, got {coupling!r}")
    rng = np.random.default_rng(whole_number(seed, "the seed", 0))
    own_p, mu_p, own_r, mu_r = (float(rng.uniform(0.0, 1.0)) for _ in range(4))
    base: Any = np.zeros((states, actions, states))
    for node in range(states):
        for action in range(actions):
            ends = rng.integers(0, states, size=(branching,))
            base[node, action, ends] = rng.dirichlet(np.ones(branching))
    crowd: Any = rng.normal(size=(states, actions, states, states)).astype(np.float32)
    crowd = mu_p * crowd.astype(float)
    crowd = crowd if coupling == "additive" else base[..., None] * crowd
    paid: Any = own_r * rng.normal(size=(states, actions))
    drawn: Any = mu_r * rng.normal(size=(states, states))
    # Numbers are arguments, so that all Garnets of a size share their compiled programs.
    own, crowd, paid, shared = (
        jnp.asarray(each, dtype=jnp.result_type(float))
        for each in (own_p * base, crowd, paid, 0.5 * (drawn + drawn.T))
    )
    reward, motion = eqx.Partial(_paid, paid, shared), eqx.Partial(_probabilities, own, crowd)
    return on_nodes(Nodes(states), actions, reward, motion, horizon, np.full(states, 1 / states))
