"""Problems of the field on nodes: choices, epidemics, cyber security, the beach bar, Garnets."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import UserError, number, whole_number
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


def _go_where_chosen(node: Array, action: Array, mu: MeanField) -> Array:
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
        nodes, ["left", "right"], reward, _go_where_chosen, 1, np.eye(3)[0], pay_end=True
    )


def rock_paper_scissors() -> SimulatedSystem:
    """Rock, paper or scissors; the reward is a difference of those beaten and those beating.

    Shapley's generalised game (1964), from Cui and Koeppl (2021), as
    `mfglib.env.Environment.rock_paper_scissors` has it. The social optimum is 1, half of the
    population with paper and half with scissors; the reward is not concave in mu.
    """
    nodes = Nodes(["start", "rock", "paper", "scissors"])
    payoff = np.array([[0, 0, 0, 0], [0, 0, -1, 2], [0, 4, 0, -2], [0, -3, 6, 0]], dtype=float)

    def reward(node: Array, action: Array, mu: MeanField) -> Array:
        return jnp.asarray(payoff, mu.mass.dtype)[node] @ mu.mass

    objects = ["rock", "paper", "scissors"]
    return on_nodes(nodes, objects, reward, _go_where_chosen, 1, np.eye(4)[0], pay_end=True)


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


def cyber_security(*, horizon: int = 40, step: float = 0.25) -> SimulatedSystem:
    """Computers, defended or not, susceptible or infected; owners may switch the defence.

    Kolokoltsov and Bensoussan, "Mean-Field-Game Model for Botnet Defense in Cyber-Security" (2016),
    with the numbers and the time, 10, of the example in Carmona and Delarue, "Probabilistic Theory
    of Mean Field Games" I (2018), Sec. 7.2.3, as github.com/alexbstl/meanfield-cybersecurity has
    them: infections by hackers (rates 0.6 times 0.4 and 0.3) and by other computers (0.4 of
    defended, 0.3 of undefended ones), recovery (0.5, 0.4), switching (0.8), costs of defence (0.3)
    and of infection (0.5). Rates become probabilities of Euler steps of length ``step``; all four
    states start alike. The motion depends on mu.
    """
    number(step, "the length of a step", 1e-9, 0.4)  # else rates would make no sense
    nodes = Nodes(["DI", "DS", "UI", "US"])
    recovery = np.array([0.5, 0.0, 0.4, 0.0])
    hackers = 0.6 * np.array([0.0, 0.4, 0.0, 0.3])
    contagion = np.array([0.0, 0.4, 0.0, 0.3])

    def motion(node: Array, action: Array, mu: MeanField) -> Array:
        caught = hackers + contagion * (mu.mass[0] + mu.mass[2])
        health = step * (jnp.asarray(recovery) + caught)[node]
        switch = step * 0.8 * (action == 1)
        other, across = node ^ 1, node ^ 2
        after = jnp.zeros(4).at[other].add(health).at[across].add(switch)
        return after.at[node].add(1.0 - health - switch)

    def reward(node: Array, action: Array, mu: MeanField) -> Array:
        return -step * (0.3 * (node < 2) + 0.5 * (node % 2 == 0))

    return on_nodes(nodes, ["keep", "switch"], reward, motion, horizon, np.full(4, 0.25))


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
