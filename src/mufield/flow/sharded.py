"""The flow of one large map, split over several devices or processes.

Each device has a slice of the map along its first axis. It evaluates policy, motion and reward at
its own cells, lets their mass come to rest in its room (`mufield.flow.ground`), and hands the
margins of the room to its neighbours: a few rows a step, whatever the size of the map.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float

from .._progress import Share, Stage, stage
from .._types import Mass, Scalar, State
from ..errors import UserError
from ..policies.base import AbstractPolicy, ActionLaw, Profile, as_profile
from ..problem import Motion, Problem
from ..space.grid import Grid
from ..space.measure import MeanField
from ..space.move import GaussianNoise
from .flow import Rollout, check_windows, subcells_for, window_reach
from .fold import FOLLOWED, PREPARING, Fold, Routing, Ways, assemble, follow
from .ground import Ground, Part, open_cells
from .phi import Aims, into_room
from .sight import sight

AXIS = "slices"
"""Name of the axis of devices."""


class Slice(eqx.Module):
    """What one device knows of its slice of the map; or, with one more axis, what all know.

    Attributes:
        ground: Its open cells; a distribution has an entry for every cell of the slice.
        fold: Tables of the others.
        free: Which cells are no walls.
        initial: Where the population starts.
        noise_std: Standard deviation of the Gaussian noise on each axis.
    """

    ground: Ground
    fold: Fold
    free: Bool[Array, "*devices cells"]
    initial: Float[Array, "*devices cells"]
    noise_std: Float[Array, "*devices dim"]


class ShardedFlow(eqx.Module):
    """The mean-field flow of a problem on several devices: `rollout` and `value` of `Flow`.

    It holds arrays that are spread over the devices. Compiled functions of your own must get it as
    an argument (``eqx.filter_jit`` does so for methods), for with several processes no process has
    all of it.

    Attributes:
        problem: The problem.
        slices: What the devices know.
        mesh: The devices.
        rows: Cells of a slice on the first axis.
    """

    problem: Problem
    slices: Slice
    mesh: Mesh = eqx.field(static=True)
    rows: int = eqx.field(static=True)
    noiseless: bool = eqx.field(static=True)

    def __init__(self, problem: Problem, mesh: Mesh | None = None, *, subcells: int | None = None):
        """Splits the map, and prepares every slice.

        Args:
            problem: The problem. With several processes all must give the same.
            mesh: The devices, by default all that there are, of all processes.
            subcells: As of `Flow`.
        """
        devices = np.asarray(jax.devices() if mesh is None else mesh.devices).reshape(-1)
        # A mesh of our own: its axis has a name that no motion uses, and is of the kind "Auto".
        self.mesh = Mesh(devices, (AXIS,))
        self.problem = problem
        grid, noise = problem.grid, problem.noise
        if problem.trips is not None:
            raise UserError(
                "a sharded flow cannot have trips: a matrix between all cells is as large as the "
                "map squared; use mf.Flow, or let the motion carry agents"
            )
        if not isinstance(noise, GaussianNoise):
            raise UserError(
                f"a sharded flow needs Gaussian noise, got {noise}; use mf.Flow for the discrete "
                "rooms' noise"
            )
        self.noiseless = not any(noise.std)
        reach = window_reach(problem, noise.std)
        self.rows = split_rows(grid, len(devices), reach[0])
        check_windows(problem, reach, stencil=True)
        cut = subcells or subcells_for(problem, noise.std)
        with stage(PREPARING, alone=True) as now:
            slices = _slices(problem, reach, cut, self.rows, len(devices), now)
        self.slices = self._spread(slices)

    def _spread(self, tree: Any) -> Any:
        """Arrays whose first axis is spread over the devices."""
        sharding = NamedSharding(self.mesh, PartitionSpec(AXIS))

        def spread(array: Any) -> Array:
            values = np.asarray(array)
            return jax.make_array_from_callback(values.shape, sharding, lambda at: values[at])

        return jax.tree.map(spread, tree)

    def rollout(self, policy: Any, motion: Motion) -> Rollout:
        """The flow of an episode under a policy profile and a motion; see `Flow.rollout`.

        Its distributions are gathered from all devices; `value` does without.
        """
        mass, rewards = self._run(policy, motion)
        grid = self.problem.grid
        box = mass[:, : grid.walls.size]  # without the rows that fill up the last slice
        free = np.flatnonzero(~grid.walls.ravel())
        return Rollout(mass=box[:, free], rewards=rewards, value=jnp.sum(rewards))

    def value(self, policy: Any, motion: Motion) -> Scalar:
        """J(pi) under a motion (lemma DistMDP)."""
        return jnp.sum(self._run(policy, motion)[1])

    @eqx.filter_jit
    def _run(self, policy: Any, motion: Motion) -> tuple[Array, Array]:
        """The distributions over all cells of the slices, and the rewards."""
        problem = self.problem
        profile = as_profile(policy, problem.horizon, problem.first)
        inputs = (profile, motion, problem.reward)
        arrays, static = eqx.partition(inputs, eqx.is_array)
        sees_all = self._sees_all(*inputs)

        def run(slices: Slice, arrays: Any) -> tuple[Array, Array]:
            own: Slice = jax.tree.map(lambda leaf: leaf[0], slices)
            return self._of_slice(own, *eqx.combine(arrays, static), sees_all=sees_all)

        apart, same = PartitionSpec(AXIS), PartitionSpec()
        return jax.shard_map(
            run,
            mesh=self.mesh,
            in_specs=(apart, same),
            out_specs=(PartitionSpec(None, AXIS), same),
        )(self.slices, arrays)

    def _sees_all(self, profile: Profile, motion: Motion, reward: Any) -> bool:
        """Whether anything sees more of mu than the agent's own cell; then all is gathered."""
        first = jax.tree.map(lambda leaf: leaf[0], profile.per_step)

        def acts(state: State, action: Array, mu: MeanField) -> Array:
            return profile.join(first).law(state, mu).mean()

        return any(sight(self.problem, f) == "more" for f in (acts, motion, reward))

    def _of_slice(
        self, own: Slice, profile: Profile, motion: Motion, reward: Any, *, sees_all: bool
    ) -> tuple[Array, Array]:
        """The episode on one device, which hands margins to its neighbours."""
        problem, grid = self.problem, self.problem.grid
        shape = own.ground.shape
        states = _centres(grid, shape, own.initial.dtype, jax.lax.axis_index(AXIS) * self.rows)

        def fields(mass: Mass) -> Any:
            """The mean field as agents of the slice see it."""
            whole = mass
            if sees_all:
                box = jax.lax.all_gather(mass, AXIS, tiled=True)[: grid.walls.size]
                whole = box[np.flatnonzero(~grid.walls.ravel())]
            return whole

        def of_all(function: Any, mass: Mass, whole: Array, step: Any, actions: Array) -> Array:
            def one(state: State, here: Scalar, actions: Array) -> Array:
                mu = MeanField(mass=whole, here=here, grid=grid, step=step)
                return jax.vmap(lambda action: jnp.asarray(function(state, action, mu)))(actions)

            return jax.vmap(one)(states, mass, actions)

        def paid(mass: Mass, whole: Array, law: ActionLaw, step: Any) -> Scalar:
            rewards = of_all(reward, mass, whole, step, law.actions)
            rewards = jnp.where(own.free[:, None], rewards, 0.0)
            own_sum = jnp.sum(mass[:, None] * law.weights * rewards)
            total: Scalar = jax.lax.psum(own_sum, AXIS)
            return total

        def step(mass: Mass, inputs: Any) -> tuple[Mass, tuple[Mass, Scalar]]:
            part, number = inputs
            policy: AbstractPolicy = profile.join(part)
            whole = fields(mass)

            def act(state: State, here: Scalar) -> ActionLaw:
                return policy.law(state, MeanField(mass=whole, here=here, grid=grid))

            law = jax.vmap(act)(states, mass)
            problem.check_action(law.actions.shape[2:])
            aims = of_all(motion, mass, whole, number, law.actions)
            moved = grid.displacement(states[:, None], aims)
            after = self._land(own, mass, Aims(moved, law.weights, own.noise_std))
            return after, (mass, paid(mass, whole, law, number))

        end, (before, rewards) = jax.lax.scan(
            jax.checkpoint(step), own.initial, (profile.per_step, problem.steps)
        )
        if problem.pay_end:
            rest = jnp.asarray(problem.actions.rest, dtype=end.dtype)
            still = ActionLaw(
                actions=jnp.broadcast_to(rest, (*end.shape, 1, *rest.shape)),
                weights=jnp.ones((*end.shape, 1), dtype=end.dtype),
            )
            rewards = jnp.append(rewards, paid(end, fields(end), still, problem.end))
        return jnp.concatenate([before, end[None]]), rewards

    def _land(self, own: Slice, mass: Mass, aims: Aims) -> Mass:
        """Phi on a slice: what ends up in the margins goes to the neighbours."""
        ground, devices = own.ground, len(self.mesh.devices)
        room = into_room(
            self.problem.grid, ground, own.fold, mass, aims, exact=self.noiseless
        ).reshape(ground.room)
        reach, rows = ground.reach[0], self.rows
        round_ = self.problem.grid.periodic[0]
        up = [(i, (i + 1) % devices) for i in range(devices if round_ else devices - 1)]
        down = [(j, i) for i, j in up]
        # Who has no neighbour on a side gets zeros from there.
        below = jax.lax.ppermute(room[rows + reach :], AXIS, up)
        above = jax.lax.ppermute(room[:reach], AXIS, down)
        room = room.at[reach : 2 * reach].add(below).at[rows : rows + reach].add(above)
        return ground.leave(room.reshape(-1))


def split_rows(grid: Grid, devices: int, reach: int) -> int:
    """Cells of a slice on the first axis; raises if the map cannot be split so."""
    size = grid.shape[0]
    rows = -(-size // devices)
    if grid.periodic[0] and size % devices:
        raise UserError(
            f"the first axis wraps around, so its {size} cells must be divisible by the number of "
            f"devices, which is {devices}; use another number of devices or cells"
        )
    if rows < reach:
        raise UserError(
            f"expected slices that are wider than agents move in one step, which may be {reach} "
            f"cells, but {size} cells on {devices} devices make slices of {rows}; use fewer devices"
        )
    return rows


def _slices(
    problem: Problem, reach: tuple[int, ...], subcells: int, rows: int, devices: int, now: Stage
) -> Slice:
    """The slices of a map; arrays have an axis of devices in front."""

    def span(first: float, last: float, device: int) -> Share:
        each = (last - first) / devices
        return now.span(first + each * device, first + each * (device + 1))

    grid, dtype = problem.grid, problem.initial.dtype
    shape = (rows, *grid.shape[1:])
    fill = [(0, rows * devices - grid.shape[0])] + [(0, 0)] * (grid.dim - 1)

    def by_device(values: np.ndarray) -> np.ndarray:
        box = np.zeros(grid.shape, dtype=values.dtype)
        box[~grid.walls] = values
        return np.pad(box, fill).reshape(devices, -1)

    is_open = open_cells(grid, reach)
    near = np.flatnonzero(~is_open)
    owner = grid.free_cells[near, 0] // rows
    ways = [
        follow(grid, reach, subcells, near[owner == d], done=span(0.0, FOLLOWED, d))
        for d in range(devices)
    ]
    parts = [Part((d * rows, *(0,) * (grid.dim - 1)), shape, reach) for d in range(devices)]
    ends = [part.ends(way) for part, way in zip(parts, ways, strict=True)]
    most = max(len(each) for each in ends)
    folds = [
        assemble(
            way, partial(part.number, found), most, dtype.name, True, done=span(FOLLOWED, 1, d)
        )
        for d, (way, part, found) in enumerate(zip(_alike(ways), parts, ends, strict=True))
    ]
    sources = max(len(way.sources) for way in ways)
    numbers = [
        np.ravel_multi_index(tuple((way.sources - part.origin).T), shape)
        for way, part in zip(ways, parts, strict=True)
    ]
    # Fillers name the first cell and the first place; their tables lead nowhere.
    ground = Ground(
        cells=None,
        open=jnp.asarray(by_device(is_open)),
        near=jnp.asarray(np.stack([_fill(x, sources) for x in numbers]), dtype=jnp.int32),
        ends=jnp.asarray(np.stack([_fill(x, most) for x in ends]), dtype=jnp.int32),
        shape=shape,
        reach=reach,
        wrapped=(False, *grid.periodic[1:]),
    )
    std = problem.noise.std if isinstance(problem.noise, GaussianNoise) else ()
    return Slice(
        ground=ground,
        fold=_stack(folds),
        free=jnp.asarray(by_device(np.ones(grid.n_cells, dtype=bool))),
        initial=jnp.asarray(by_device(np.asarray(problem.initial))),
        noise_std=jnp.tile(jnp.asarray(std, dtype=dtype), (devices, 1)),
    )


def _fill(values: np.ndarray, length: int, with_: int = 0) -> np.ndarray:
    """Longer along the first axis."""
    widths = [(0, length - len(values))] + [(0, 0)] * (values.ndim - 1)
    return np.pad(values, widths, constant_values=with_)


def _alike(ways: list[Ways]) -> list[Ways]:
    """With as many sources, split pairs and landings each; fillers lead nowhere."""
    sources = max(len(way.sources) for way in ways)
    pairs = max(len(way.pairs) for way in ways)
    landings = max(way.codes.shape[1] for way in ways)

    def filled(way: Ways) -> Ways:
        extra = landings - way.codes.shape[1]
        codes = np.pad(way.codes, ((0, 0), (extra, 0)), constant_values=-1)
        widths = [(0, 0), (extra, 0)] + [(0, 0)] * (way.shares.ndim - 2)
        return way._replace(
            sources=_fill(way.sources, sources),
            landing=_fill(way.landing, sources, -1),
            pairs=_fill(way.pairs, pairs),
            codes=_fill(codes, pairs, -1),
            shares=_fill(np.pad(way.shares, widths), pairs),
        )

    return [filled(way) for way in ways]


def _stack(folds: list[Fold]) -> Fold:
    """One after the other on a further axis."""

    def stack(*parts: Any) -> Any:
        if isinstance(parts[0], Routing):
            return Routing.stacked(parts)
        return np.stack([np.asarray(part) for part in parts])

    stacked: Fold = jax.tree.map(stack, *folds, is_leaf=lambda x: isinstance(x, Routing))
    return stacked


def _centres(
    grid: Grid, shape: tuple[int, ...], dtype: Any, first_row: Array
) -> Float[Array, "cells dim"]:
    """Centres of all cells of a slice, walls as well."""
    size, lower = jnp.asarray(grid.cell_size, dtype), jnp.asarray(grid.lower, dtype)
    coordinates = jnp.indices(shape, dtype=jnp.int32).reshape(len(shape), -1).T
    coordinates = coordinates.at[:, 0].add(first_row)
    return lower + (coordinates.astype(dtype) + 0.5) * size
