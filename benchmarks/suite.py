"""A suite of motions f(s, a, mu), on which learners are compared that are told nothing of them.

Importing this file registers them: ``mufield train hall-lane --import benchmarks/suite.py``. Names
are a map and a motion, such as ``hall-lane``; or `city`. Besides, there is the `walkway`.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mufield import (
    FOUR_ROOMS,
    Box,
    Grid,
    MeanField,
    Problem,
    SimulatedSystem,
    from_density,
    log_mass,
    point_mass,
    register,
)
from mufield._arrays import Action, Mass, Scalar, State
from mufield.environments.four_rooms import avoid_crowds
from mufield.problem import Motion, Reward

HALL = """
.............
..##...##....
..##...##....
.............
.............
......#......
......#..##..
......#..##..
......#......
"""
"""A hall with pillars; the two middle rows are free from end to end."""

CITY = """
.......#.......
.......#.......
.......#.......
...............
.......#.......
.......#.......
.......#.......
.......#.......
.......#.......
...............
.......#.......
.......#.......
"""
"""Two banks of a river, with bridges at y = 2 and y = 8."""


def bump(state: Float[Array, "*batch 2"], x: float, y: float, width: float) -> Float[Array, "..."]:
    """A Gaussian bell of height one around (x, y)."""
    return jnp.exp(-0.5 * jnp.sum(jnp.square(state - jnp.array([x, y])), axis=-1) / width**2)


def rotated(vector: Action, angle: Scalar) -> Action:
    """The vector, turned to the left by an angle in radians."""
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.stack([cos * vector[0] - sin * vector[1], sin * vector[0] + cos * vector[1]])


def wind(state: State, action: Action, mu: MeanField) -> State:
    """The same wind w everywhere: f = s + 0.85 a + w."""
    return state + 0.85 * action + jnp.array([0.25, -0.15])


def slow(state: State, action: Action, mu: MeanField) -> State:
    """Two bogs, in which agents are three times slower: f = s + v(s) a."""
    bogs = bump(state, 3.0, 7.5, 2.0) + bump(state, 8.0, 3.0, 2.0)
    return state + (1.0 - 0.65 * bogs) * action


def turned(state: State, action: Action, mu: MeanField) -> State:
    """Actions are turned by up to 70 degrees, by place: f = s + 0.75 R(s) a."""
    angle = 1.2 * jnp.sin(0.45 * state[0] + 0.3) * jnp.cos(0.4 * state[1])
    return state + 0.75 * rotated(action, angle)


def saturating(state: State, action: Action, mu: MeanField) -> State:
    """Small actions do most of it, and the east is slower: f = s + u(s) tanh(2.5 a)."""
    return state + (0.95 - 0.4 * jax.nn.sigmoid(state[0] - 5.5)) * jnp.tanh(2.5 * action)


def coupled(state: State, action: Action, mu: MeanField) -> State:
    """Going up also pushes to the right; going right makes going up faster."""
    across, up = action
    return state + jnp.stack([0.7 * across + 0.3 * up, 0.6 * up * (1.0 + 0.5 * across)])


def crowded(state: State, action: Action, mu: MeanField) -> State:
    """Crowds slow down, to less than a third: f = s + v(mu(s)) a."""
    return state + (0.3 + 0.7 * jnp.exp(-10.0 * mu.here)) * action


def lane(state: State, action: Action, mu: MeanField) -> State:
    """Between y = 4 and y = 6 agents are 2.6 times faster, with a sharp edge: f = s + v(s) a."""
    return state + jnp.where((state[1] >= 4.0) & (state[1] < 6.0), 1.3, 0.5) * action


def vortex(state: State, action: Action, mu: MeanField) -> State:
    """A whirl w around the middle, strongest three cells from it: f = s + 0.7 a + w(s)."""
    from_centre = (state - jnp.array([6.5, 4.5])) / 3.0
    strength = 0.5 * jnp.exp(0.5 - 0.5 * jnp.sum(jnp.square(from_centre)))
    return state + 0.7 * action + strength * jnp.stack([-from_centre[1], from_centre[0]])


def mixed(state: State, action: Action, mu: MeanField) -> State:
    """Actions turned and slowed by place, and a breeze that changes with the place."""
    angle = 0.8 * jnp.sin(0.5 * state[1]) + 0.3
    speed = 0.75 - 0.25 * jnp.cos(0.55 * state[0])
    breeze = 0.15 * jnp.stack([jnp.cos(0.4 * state[1]), jnp.sin(0.5 * state[0])])
    return state + speed * rotated(action, angle) + breeze


def whirls(state: State, action: Action, mu: MeanField) -> State:
    """A periodic current w of four whirls: f = s + 0.7 a + w(s)."""
    angle = 2 * jnp.pi * state / jnp.asarray(mu.grid.extent, dtype=state.dtype)
    return state + 0.7 * action + 0.45 * jnp.stack([jnp.sin(angle[1]), -jnp.sin(angle[0])])


def traffic(state: State, action: Action, mu: MeanField) -> State:
    """The old town, one of the bridges and crowds slow vehicles: f = s + v(s, mu(s)) a."""
    place = 1.0 - 0.5 * bump(state, 4.0, 7.0, 2.0) - 0.3 * bump(state, 7.5, 2.5, 1.5)
    return state + 1.2 * place / (1.0 + 10.0 * mu.here) * action


# By name: the motion, its farthest move on an axis, and a summary.
MOTIONS: Mapping[str, tuple[Motion, float, str]] = {
    "rooms-wind": (wind, 1.1, "the same wind everywhere"),
    "rooms-slow": (slow, 1.0, "two bogs slow agents down"),
    "rooms-turned": (turned, 1.07, "actions are turned by place"),
    "rooms-saturating": (saturating, 0.95, "small actions do most of it"),
    "rooms-coupled": (coupled, 1.0, "each action moves both axes"),
    "rooms-crowded": (crowded, 1.0, "crowds slow down; depends on mu"),
    "hall-lane": (lane, 1.3, "a fast lane with a sharp edge"),
    "hall-vortex": (vortex, 1.2, "a whirl around the middle"),
    "hall-mixed": (mixed, 1.55, "turned and slowed by place, and a breeze"),
    "torus-vortex": (whirls, 1.15, "a periodic current of four whirls"),
}
SUITE = ("four-rooms", *MOTIONS, "city")
"""Names of the systems on which learners are compared that are told nothing of the motion."""


def spreading(name: str, *, noise_std: float = 0.25, horizon: int = 20) -> SimulatedSystem:
    """All agents start in the lower left cell of a map and move by one of its motions.

    Args:
        name: ``"rooms"``, the four rooms of the paper, and ``"hall"``, 13 by 9 cells with pillars,
            are to be spread over. On the ``"torus"`` of 12 by 12 cells one region is liked, crowds
            and effort are not. Then the motion.
        noise_std: Standard deviation of the noise.
        horizon: Number of moves.
    """
    (law, farthest, _), place = MOTIONS[name], name.partition("-")[0]
    if place == "torus":
        grid = Grid.box(0.0, 12.0, (12, 12), periodic=True)
    else:
        grid = Grid.from_map(FOUR_ROOMS if place == "rooms" else HALL)
    reward = _like_region if place == "torus" else avoid_crowds
    return _moved_by(law, farthest, grid, reward, horizon, point_mass(grid, 0, 0), noise_std)


def _register(name: str) -> None:
    @register(name, f"suite of motions: {MOTIONS[name][2]}")
    def build(*, noise_std: float = 0.25, horizon: int = 20) -> SimulatedSystem:
        return spreading(name, noise_std=noise_std, horizon=horizon)


for each in MOTIONS:
    _register(each)


def _moved_by(
    law: Motion, most: float, grid: Grid, reward: Reward, horizon: int, start: Mass, noise: float
) -> SimulatedSystem:
    """Agents that choose from [-1, 1] on each axis, and are paid for the last distribution too."""
    problem = Problem(
        space=grid,
        actions=Box(-1.0, 1.0, dim=grid.dim),
        reward=reward,
        horizon=horizon,
        initial=start,
        noise=noise,
        max_move=most,
        pay_end=True,
    )
    return SimulatedSystem(problem, law)


def _like_region(state: State, action: Action, mu: MeanField) -> Scalar:
    extent = jnp.asarray(mu.grid.extent, dtype=state.dtype)
    angle = 2 * jnp.pi * (state - jnp.array([3.0, 8.0])) / extent
    return jnp.sum(jnp.cos(angle)) - 0.1 * jnp.sum(jnp.square(action)) - log_mass(mu.density_here)


@register("city", "suite of motions: vehicles, a river, slow places, crowds")
def city(*, noise_std: float = 0.25, horizon: int = 16) -> SimulatedSystem:
    """Vehicles in a city of 15 by 12 cells, to be sent from a depot to where they are wanted.

    A river with two bridges divides the city; the motion depends on the place and on crowds. The
    reward is minus the divergence KL(mu || demand), minus effort.
    """
    grid = Grid.from_map(CITY)
    near_depot = np.max(np.abs(grid.centres - np.array([2.5, 3.5])), axis=1) < 1.5
    start = from_density(grid, near_depot)
    return _moved_by(traffic, 1.2, grid, _meet_demand(), horizon, start, noise_std)


def _wanted(state: Float[Array, "*batch 2"]) -> Float[Array, "..."]:
    """The demand in a cell, up to a constant: two centres, a suburb, and a little everywhere."""
    centres = bump(state, 11.0, 8.0, 2.0) + 0.7 * bump(state, 4.0, 8.0, 1.8)
    return centres + 0.5 * bump(state, 12.0, 2.5, 1.5) + 0.1


# Cached, so that equal cities share their reward and so their compiled programs.
@lru_cache
def _meet_demand() -> Callable[[State, Action, MeanField], Scalar]:
    total = float(jnp.sum(_wanted(jnp.asarray(Grid.from_map(CITY).centres))))

    def reward(state: State, action: Action, mu: MeanField) -> Scalar:
        effort = 0.1 * jnp.sum(jnp.square(action))
        return jnp.log(_wanted(state) / total) - log_mass(mu.here) - effort

    return reward


def walkway_motion(state: State, action: Action, mu: MeanField) -> State:
    """f(s, a) = s + v(s) a: v is 0.4 on the plain floor, and 1.6 to the right of 12."""
    on_walkway = jax.nn.sigmoid(4.0 * (state[0] - 12.0))
    return state + action * (0.4 + 1.2 * on_walkway)


def _walkway_reward(state: State, action: Action, mu: MeanField) -> Scalar:
    """0.3 at the bench, to the left of 6, and 3 at the gate, to the right of 21."""
    return 0.3 * (state[0] < 6.0) + 3.0 * (state[0] > 21.0)


@register("walkway", "a corridor, fast on its far side: greedy learners miss that")
def walkway(*, horizon: int = 18, noise_std: float = 0.15) -> SimulatedSystem:
    """A corridor of 24 cells; agents start near the left end.

    Agents near the start see only the speed of the plain floor. At that speed the gate on the
    right is out of reach within an episode, and the bench on the left is the best place. On the
    walkway agents are four times as fast, which a learner finds out only by trying it.
    """
    grid = Grid.box(0.0, 24.0, 24)
    start = point_mass(grid, 9)
    return _moved_by(walkway_motion, 1.6, grid, _walkway_reward, horizon, start, noise_std)
