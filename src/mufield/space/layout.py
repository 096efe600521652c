"""Where pictures show the nodes of a graph."""

import numpy as np
from jaxtyping import Float, Int


def spring_layout(
    successors: Int[np.ndarray, "nodes slots"] | None, n: int, rounds: int = 100, most: int = 800
) -> Float[np.ndarray, "nodes 2"]:
    """A spring layout (Fruchterman and Reingold, 1991), from a circle.

    Without successors, and of more than ``most`` nodes, it is the circle.
    """
    angle = 2 * np.pi * np.arange(n) / n
    place = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if successors is None or n > most:
        return place
    joined = np.zeros((n, n), dtype=bool)
    here, slot = np.nonzero(successors >= 0)
    joined[here, successors[here, slot]] = True
    joined |= joined.T
    length = np.sqrt(4.0 / n)
    for heat in np.linspace(0.3, 0.0, rounds, endpoint=False):
        apart = place[:, None] - place
        distance = np.maximum(np.linalg.norm(apart, axis=-1), 1e-3)
        force = length**2 / distance**2 - joined * distance / length
        push = np.sum(apart * force[..., None], axis=1)
        size = np.maximum(np.linalg.norm(push, axis=1, keepdims=True), 1e-9)
        place = place + push / size * np.minimum(size, heat)
    return np.asarray(place - place.mean(axis=0))
