"""Small problems on nodes: a choice, two epidemics and the beach bar."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..problem import Problem
from ..space.measure import MeanField, log_mass
from ..space.nodes import Nodes
from ..systems import SimulatedSystem


class TableMotion(eqx.Module):
    """A motion on nodes that sees no mu: the probabilities of each node's and action's row."""

    table: Float[Array, "nodes actions slots"]

    def __init__(self, table: Any):
        self.table = jnp.asarray(np.asarray(table), dtype=jnp.result_type(float))

    def __call__(self, node: Array, action: Array, mu: MeanField) -> Float[Array, "slots"]:
        """The row."""
        return self.table[node, action]


def on_nodes(
    nodes: Nodes, actions: Any, reward: Any, motion: Any, horizon: int, initial: Any, **more: Any
) -> SimulatedSystem:
    """The system of a problem on nodes; ``more`` are further arguments of `Problem`."""
    problem = Problem(
        space=nodes, actions=actions, reward=reward, horizon=horizon, initial=initial, **more
    )
    return SimulatedSystem(problem, motion)


def go_where_chosen(node: Array, action: Array, mu: MeanField) -> Array:
    """Action i leads to node i + 1."""
    return jnp.zeros_like(mu.mass).at[action + 1].set(1.0)


def left_right() -> SimulatedSystem:
    """Left or right, at a cost that grows with those who chose the same; right costs double.

    Cui and Koeppl, "Approximately Solving Mean Field Games via Entropy-Regularized Deep
    Reinforcement Learning" (2021), as `mfglib.env.Environment.left_right` has it. The social
    optimum is -2/3, with two thirds on the left.
    """
    nodes = Nodes(["start", "left", "right"])

    def reward(node: Array, action: Array, mu: MeanField) -> Array:
        return -jnp.array([0.0, 1.0, 2.0])[node] * mu.here

    # All leave the first node, and are paid where they arrive.
    return on_nodes(
        nodes, ["left", "right"], reward, go_where_chosen, 1, np.eye(3)[0], pay_end=True
    )


def epidemic_sis(*, horizon: int = 51, infected: float = 0.6) -> SimulatedSystem:
    """Susceptible or infected: to go out, which may infect, or to keep one's distance, at a cost.

    Cui and Koeppl (2021), as `mfglib.env.Environment.susceptible_infected` has it, which counts one
    step less. The motion depends on mu.
    """
    nodes = Nodes(["susceptible", "infected"])

    def motion(node: Array, action: Array, mu: MeanField) -> Array:
        caught = jnp.where(action == 0, 0.9**2 * mu.mass[1], 0.0)
        ill = jnp.where(node == 1, 0.7, caught)
        return jnp.stack([1.0 - ill, ill])

    def reward(node: Array, action: Array, mu: MeanField) -> Array:
        return -1.0 * (node == 1) - 0.5 * (action == 1)

    initial = [1 - infected, infected]
    return on_nodes(nodes, ["out", "distance"], reward, motion, horizon, initial)


def epidemic_seir(
    *, horizon: int = 50, spreading: float = 0.8, infected: float = 0.05
) -> SimulatedSystem:
    """Susceptible, exposed, infected, recovered: agents choose how many contacts they have.

    The compartments of Kermack and McKendrick with an exposed stage, controlled by contacts as in
    Aurell, Carmona, Dayanikli and Lauriere, "Optimal Incentives to Mitigate Epidemics: A
    Stackelberg Mean Field Game Approach" (2022), here in steps of one day. The numbers are round
    and of no publication: an infection has probability ``spreading`` times contacts times the share
    of the infected, exposed agents fall ill with 0.2 and recover with 0.1 a day; being ill costs 1,
    and to have only a share c of one's contacts (1 - c)^2 / 2. The motion depends on mu.
    """
    nodes = Nodes(["susceptible", "exposed", "infected", "recovered"])
    contacts = jnp.array([1.0, 0.6, 0.2])
    after = np.array([[1, 0, 0, 0], [0, 0.8, 0.2, 0], [0, 0, 0.9, 0.1], [0, 0, 0, 1]], dtype=float)

    def motion(node: Array, action: Array, mu: MeanField) -> Array:
        caught = spreading * contacts[action] * mu.mass[2] * (node == 0)
        stay = jnp.asarray(after, mu.mass.dtype)[node]
        return stay * (1 - caught) + caught * jnp.eye(4)[1]

    def reward(node: Array, action: Array, mu: MeanField) -> Array:
        return -1.0 * (node == 2) - 0.5 * (1 - contacts[action]) ** 2

    initial = [1 - infected, 0.0, infected, 0.0]
    return on_nodes(nodes, ["all contacts", "some", "few"], reward, motion, horizon, initial)


def beach_bar(
    *, places: int = 20, bar: int | None = None, horizon: int = 15, still: float = 0.5
) -> SimulatedSystem:
    """Guests of a beach walk towards the bar, but away from crowds.

    Perrin, Perolat, Lauriere, Geist, Elie and Pietquin, "Fictitious Play for Mean Field Games"
    (2020), as `mfglib.env.Environment.beach_bar` has it, which counts one step less: after each
    move guests drift by one place to either side with probability (1 - still) / 2; distances to the
    bar go round the beach, moves end at its ends.
    """
    place = places // 2 if bar is None else bar
    beach: Any = np.arange(places)
    chances: Any = np.zeros((places, 3, places))
    for action in range(3):
        for drift, chance in ((-1, (1 - still) / 2), (0, still), (1, (1 - still) / 2)):
            end = np.clip(beach + action - 1 + drift, 0, places - 1)
            np.add.at(chances, (beach, action, end), chance)
    lists = [np.flatnonzero(row.any(axis=0)).tolist() for row in chances]
    nodes = Nodes(places, successors=lists, positions=np.stack([beach, 0 * beach], axis=1))
    rows = np.asarray(nodes.successors)[:, None]
    table = np.take_along_axis(chances, np.maximum(rows, 0), axis=2) * (rows >= 0)
    apart = np.abs(beach - place)
    away = jnp.asarray(np.minimum(apart, places - apart), dtype=jnp.result_type(float))

    def reward(node: Array, action: Array, mu: MeanField) -> Array:
        moved = jnp.where(action != 1, 1 / places, 0.0)
        return -away[node] - moved - log_mass(mu.here, 1e-20)

    motion, evenly = TableMotion(table), np.full(places, 1 / places)
    return on_nodes(nodes, ["left", "stay", "right"], reward, motion, horizon, evenly)
