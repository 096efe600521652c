"""Crowd modelling on a ring as OpenSpiel computes it, for comparisons with its code."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import mufield as mf


def crowd_line(places: int = 10, horizon: int = 10) -> mf.SimulatedSystem:
    """The system ``crowd-line`` with the moves charged as in OpenSpiel.

    A place and step are charged for the move by which a depth-first search first came there,
    instead of agents for their own moves. The uniform policy then earns 27.21585.
    """
    system = mf.make("crowd-line", places=places, horizon=horizon)
    near = 1 - np.abs(np.arange(places) - places // 2) / (places // 2)
    charged = _first_path_costs(places, horizon)

    def reward(node: Array, action: Array, mu: mf.MeanField) -> Array:
        paid = jnp.asarray(near, mu.mass.dtype)[node] - mf.log_mass(mu.here)
        return paid - jnp.asarray(charged, mu.mass.dtype)[mu.step, node]

    problem = system.problem.replace(reward=system.problem.lifted(reward))
    return mf.SimulatedSystem(problem, system.reveal()[1])


def _first_path_costs(places: int, horizon: int) -> np.ndarray:
    """The cost of the move by which a depth-first search first comes to a step and place."""
    costs = np.zeros((horizon + 1, places))
    seen: set[tuple[str, int, int]] = set()
    # Later entries come first, so everything is listed backwards.
    todo = [("decision", 0, place, 1) for place in reversed(range(places))]
    while todo:
        kind, step, place, action = todo.pop()
        if (kind, step, place) in seen or step == horizon:
            continue
        seen.add((kind, step, place))
        ends = [(place + hop) % places for hop in (1, 0, -1)]
        if kind == "decision":
            costs[step, place] = (action != 1) / places
            todo += [("noise", step, end, 2 - i) for i, end in enumerate(ends)]
        else:
            todo += [("decision", step + 1, end, action) for end in ends]
    return costs
