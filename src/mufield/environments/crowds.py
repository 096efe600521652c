"""OpenSpiel's games of crowds and of routing, as problems on nodes."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..actions import MoveSet
from ..space.grid import Grid
from ..space.measure import MeanField, log_mass
from ..space.move import NeighbourNoise
from ..space.nodes import Nodes
from ..systems import SimulatedSystem
from .four_rooms import MOVES
from .games import TableMotion, on_nodes


def crowd_line(*, places: int = 10, horizon: int = 10) -> SimulatedSystem:
    """Crowd modelling on a ring: near the middle is good, crowds and moves are not.

    Perrin and others (2020), as OpenSpiel's game ``python_mfg_crowd_modelling`` has it: after each
    move an even random one; the reward is 1 - |x - m| / m - log mu(x), minus 1 / places for a move
    other than staying. There a move is paid for at the next decision, so that the last one is free,
    here too. The uniform policy earns 27.42585.

    Args:
        places: Number of places.
        horizon: Number of moves.
    """
    ring = np.arange(places)
    nodes = Nodes(places, successors=np.stack([(ring + d) % places for d in range(-2, 3)], axis=1))
    table = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]) / 3

    near = 1 - np.abs(ring - places // 2) / (places // 2)

    def reward(node: Array, action: Array, mu: MeanField) -> Array:
        paid = (action != 1) & (jnp.asarray(mu.step) < horizon - 1)
        cost = jnp.where(paid, 1 / places, 0.0)
        return jnp.asarray(near, mu.mass.dtype)[node] - cost - log_mass(mu.here)

    motion = TableMotion(np.broadcast_to(table, (places, 3, 5)))
    evenly = np.full(places, 1 / places)
    return on_nodes(nodes, ["left", "stay", "right"], reward, motion, horizon, evenly)


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
    table = np.zeros((grid.n_cells, len(MOVES), nodes.target_size))
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
