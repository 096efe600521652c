"""Random problems on nodes whose motion and reward depend on mu: mean-field Garnets."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..checks import whole_number
from ..problem import Problem
from ..space.measure import MeanField
from ..space.nodes import Nodes
from ..systems import SimulatedSystem


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
    rng = np.random.default_rng(whole_number(seed, "the seed", 0))
    own_p, mu_p, own_r, mu_r = (float(rng.uniform(0.0, 1.0)) for _ in range(4))
    base: Any = np.zeros((states, actions, states))
    for node in range(states):
        for action in range(actions):
            ends = rng.integers(0, states, size=(branching,))
            base[node, action, ends] = rng.dirichlet(np.ones(branching))
    couplings: Any = rng.normal(size=(states, actions, states, states)).astype(np.float32)
    rewards: Any = rng.normal(size=(states, actions))
    drawn = rng.normal(size=(states, states))
    interaction: Any = 0.5 * (drawn + drawn.T)
    dtype = jnp.result_type(float)
    base, couplings, rewards, interaction = (
        jnp.asarray(each, dtype=dtype) for each in (base, couplings, rewards, interaction)
    )

    def motion(node: Array, action: Array, mu: MeanField) -> Array:
        crowd = couplings[node, action] @ mu.mass
        if coupling == "additive":
            intensity = own_p * base[node, action] + mu_p * crowd
        else:
            intensity = base[node, action] * (own_p + mu_p * crowd)
        positive = jnp.maximum(intensity, 0.0) + 1e-12  # never all zero
        found: Array = positive / jnp.sum(positive)
        return found

    def reward(node: Array, action: Array, mu: MeanField) -> Array:
        paid: Array = own_r * rewards[node, action] + mu_r * interaction[node] @ mu.mass
        return paid

    problem = Problem(
        space=Nodes(states),
        actions=actions,
        reward=reward,
        horizon=horizon,
        initial=np.full(states, 1 / states),
    )
    return SimulatedSystem(problem, motion)
