"""Problems on nodes that others compare methods on, for comparisons with their code.

Importing this file registers them: ``mufield train braess --import benchmarks/field.py``. They are
OpenSpiel's games of crowds and of routing, Shapley's game, botnet defence, and random problems.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mufield import (
    Grid,
    MeanField,
    MoveSet,
    NeighbourNoise,
    Nodes,
    SimulatedSystem,
    UserError,
    log_mass,
    register,
)
from mufield.checks import number, whole_number
from mufield.environments.four_rooms import MOVES
from mufield.environments.games import TableMotion, go_where_chosen, on_nodes

FIELD = (
    *("left-right", "rock-paper-scissors", "beach-bar", "sis", "seir", "cyber-security"),
    *("crowd-line", "crowd-square", "braess", "garnet"),
)
"""Names of the problems of the field; four of them are in the package."""


@register("rock-paper-scissors", "nodes: Shapley's game (MFGLib)")
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
    return on_nodes(nodes, objects, reward, go_where_chosen, 1, np.eye(4)[0], pay_end=True)


@register("cyber-security", "nodes: botnet defence; depends on mu")
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


@register("crowd-line", "nodes: crowd modelling on a ring (OpenSpiel)")
def crowd_line(*, places: int = 10, horizon: int = 10, first_path: bool = False) -> SimulatedSystem:
    """Crowd modelling on a ring: near the middle is good, crowds and moves are not.

    Perrin and others (2020), as OpenSpiel's game ``python_mfg_crowd_modelling`` has it: after each
    move an even random one; the reward is 1 - |x - m| / m - log mu(x), minus 1 / places for a move
    other than staying. There a move is paid for at the next decision, so that the last one is free,
    here too. The uniform policy earns 27.42585.

    Args:
        places: Number of places.
        horizon: Number of moves.
        first_path: Whether a place and step are charged for the move by which a depth-first search
            first came there, instead of agents for their own moves: OpenSpiel's values are such,
            and the uniform policy then earns its 27.21585.
    """
    ring = np.arange(places)
    nodes = Nodes(places, successors=np.stack([(ring + d) % places for d in range(-2, 3)], axis=1))
    table = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]) / 3

    near = 1 - np.abs(ring - places // 2) / (places // 2)
    charged = _first_path_costs(places, horizon)

    def reward(node: Array, action: Array, mu: MeanField) -> Array:
        paid = (action != 1) & (jnp.asarray(mu.step) < horizon - 1)
        cost = jnp.where(paid, 1 / places, 0.0)
        if first_path:
            cost = jnp.asarray(charged, mu.mass.dtype)[mu.step, node]
        return jnp.asarray(near, mu.mass.dtype)[node] - cost - log_mass(mu.here)

    motion = TableMotion(np.broadcast_to(table, (places, 3, 5)))
    evenly = np.full(places, 1 / places)
    return on_nodes(nodes, ["left", "stay", "right"], reward, motion, horizon, evenly)


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


@register("crowd-square", "nodes: crowd modelling in two dimensions (OpenSpiel)")
def crowd_square(
    *, drawing: str = "\n".join(["." * 10] * 10), horizon: int = 10, noise: float = 1.0
) -> SimulatedSystem:
    """Crowd modelling in two dimensions: agents leave a corner and avoid crowds.

    OpenSpiel's game ``mfg_crowd_modelling_2d`` with ``only_distribution_reward``: five moves, of
    which those into walls are not available, then with probability ``noise`` one more, drawn evenly
    from those that lead into no wall; the reward is -log mu. There the first reward is taken at an
    even distribution over the whole box, here at the true one. Without walls the map is a torus.

    Args:
        drawing: The map, as of `Grid.from_map`.
        horizon: Number of moves.
        noise: Probability of a random move.
    """
    grid = Grid.from_map(drawing, periodic=True)
    ends = grid.cell_index(grid.free_cells[:, None] + np.array(MOVES))
    push, near = NeighbourNoise(noise).weights(grid), grid.neighbours
    # In the order of the moves that lead there, so that nodes are alike where there are no walls.
    lists = [list(dict.fromkeys(near[row[row >= 0]].ravel().tolist())) for row in near]
    lists = [[end for end in row if end >= 0] for row in lists]
    nodes = Nodes(grid.n_cells, successors=lists, positions=grid.centres)
    table = np.zeros((grid.n_cells, len(MOVES), nodes.slots))
    cells, moves = np.nonzero(ends >= 0)
    reached, chances = near[ends[cells, moves]][:, None], push[ends[cells, moves]][:, None]
    same = np.asarray(nodes.successors)[cells][..., None] == reached
    table[cells, moves] = np.sum(same * chances, axis=-1)
    table[ends < 0, 0] = 1.0  # never used
    actions = MoveSet(["up", "left", "stay", "right", "down"], available=ends >= 0)
    start = np.eye(grid.n_cells)[grid.index_at(0, grid.shape[1] - 1)]

    def reward(node: Array, action: Array, mu: MeanField) -> Array:
        return -log_mass(mu.here)

    return on_nodes(nodes, actions, reward, TableMotion(table), horizon, start)


LINKS = {"AB": (1.0, 1.0), "AC": (2.0, 0.0), "BC": (0.25, 0.0), "BD": (2.0, 0.0), "CD": (1.0, 1.0)}
"""Braess' roads: the travel time of an empty road, and how much longer all vehicles make it."""


@register("braess", "nodes: routing in Braess' network; depends on mu (OpenSpiel)")
def braess(*, horizon: int = 100, step: float = 0.05, whole_steps: bool = False) -> SimulatedSystem:
    """Vehicles choose their way through Braess' network; two roads slow down when they are full.

    Braess, "Ueber ein Paradoxon aus der Verkehrsplanung" (1968), as OpenSpiel's game
    ``python_mfg_dynamic_routing`` has it. A node is a road and the number of steps left on it; who
    enters a road learns how many there are by the share of vehicles on it. The reward is minus the
    time of arrival. The motion depends on mu.

    Args:
        horizon: Number of steps.
        step: Length of a step, in the unit of travel times.
        whole_steps: Whether times are cut to whole steps, as there. By default they are whole steps
            with the right mean, so that J has a derivative by mu.
    """
    longest = int(np.ceil(2.0 / step)) + 1
    waits = ["new", *range(longest)]
    names = ["O", *(f"{road} {wait}" for road in LINKS for wait in waits), "D"]
    number = {name: i for i, name in enumerate(names)}
    ways = {"O": ["AB", "AC"], "AB": ["BC", "BD"], "AC": ["CD"], "BC": ["CD"]}  # else to D
    target = {road: number["D" if road == "D" else f"{road} new"] for road in [*LINKS, "D"]}
    on = [name.split()[0] for name in names]
    state = [name.split()[-1] for name in names]
    follow = np.full((len(names), 2), number["D"])
    for node, road in enumerate(on):
        choice = ways.get(road, ["D"])
        follow[node] = target[choice[0]], target[choice[-1]]
    after_road = jnp.asarray(follow)
    own = jnp.array([list(LINKS).index(road) if road in LINKS else -1 for road in on])
    members = jnp.asarray([[float(road == each) for each in on] for road in LINKS])
    free, slow = (jnp.array([LINKS[road][i] for road in LINKS]) for i in range(2))
    fresh = jnp.array([wait == "new" for wait in state])
    left = jnp.array([int(w) if w.isdigit() else 0 for w in state])
    begin = jnp.array([number.get(f"{road} 0", 0) for road in on])
    nodes = Nodes(names, positions=_braess_places(names))

    def motion(node: Array, action: Array, mu: MeanField) -> Array:
        road = own[node]
        time = free[road] * (1.0 + slow[road] * (members[road] @ mu.mass)) / step - 1.0
        wait = jnp.where(fresh[node], jnp.maximum(time, 0.0), left[node])
        low = jnp.floor(wait + 1e-4)
        share = 0.0 if whole_steps else jnp.clip(wait - low, 0.0, 1.0)

        def after(steps: Array) -> Array:
            waiting = begin[node] + jnp.maximum(steps, 1).astype(jnp.int32) - 1
            return jnp.where(steps > 0, waiting, after_road[node, action])

        one = jnp.zeros_like(mu.mass)
        return one.at[after(low)].add(1.0 - share).at[after(low + 1)].add(share)

    def reward(node: Array, action: Array, mu: MeanField) -> Array:
        at = jnp.asarray(mu.step)
        late = jnp.where(at == horizon, 2.0, jnp.where(at == 0, 0.0, 1.0))
        return -step * late * (node != number["D"])

    choices, start = ["first way", "second way"], np.eye(len(names))[0]
    return on_nodes(nodes, choices, reward, motion, horizon, start, pay_end=True)


def _braess_places(names: list[str]) -> np.ndarray:
    """Vehicles on a road stand between its ends, by the steps that they have left."""
    ends = {"A": (1, 0), "B": (2, 1), "C": (2, -1), "D": (3, 0)}
    places = []
    for name in names:
        road, _, wait = name.partition(" ")
        if road in ("O", "D"):
            places.append((0.0, 0.0) if road == "O" else (4.0, 0.0))
            continue
        begin, end = (np.array(ends[each], dtype=float) for each in road)
        left = 1.0 if wait == "new" else min(1.0, int(wait) * 0.05 / 2.0)
        places.append(tuple(end + left * 0.9 * (begin - end)))
    return np.array(places)


def _probabilities(own: Array, crowd: Array, node: Array, action: Array, mu: Any) -> Array:
    """The successors' probabilities; ``crowd[node, action]`` has a row for each."""
    positive = jnp.maximum(own[node, action] + crowd[node, action] @ mu.mass, 0.0) + 1e-12
    return positive / jnp.sum(positive)


def _paid(own: Array, interaction: Array, node: Array, action: Array, mu: Any) -> Array:
    """The reward; ``interaction`` has a row for each node."""
    return own[node, action] + interaction[node] @ mu.mass


@register("garnet", "nodes: a random problem; depends on mu (Bench-MFG)")
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
