"""Landings: from the joint mass of cells and moves to where it comes to rest.

`Tables` know what every wall and border does. `Exact` is their form without noise, where mass
lands by the very rule that agents follow. On a large map most cells are *open*, with no wall within
reach: `Stencil` lands their mass without tables. All lengths are in units of cells.
"""

import itertools
import math
import string
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._types import Mass
from ..space.grid import Grid
from ..space.wall_rule import trace
from .routing import Routing
from .slabs import mixed, slab_lists, slab_masses, window_masses
from .stencil import UNROLLED, spread

Joint = Float[Array, "sources moves"]
Targets = Float[Array, "sources moves dim"]
Std = Float[Array, "dim"]


class AbstractLanding(eqx.Module):
    """Where mass comes to rest that leaves the centres of cells; linear in the joint mass."""

    reach: eqx.AbstractVar[tuple[int, ...]]
    """Number of cells that windows extend to each side, on each axis."""

    @property
    def window(self) -> tuple[int, ...]:
        """Cells of the window on each axis."""
        return tuple(2 * r + 1 for r in self.reach)

    @property
    @abstractmethod
    def floats_kept(self) -> int:
        """About how many numbers the gradient of one step keeps in each of a few arrays."""

    @abstractmethod
    def __call__(self, joint: Joint, targets: Targets, std: Std) -> Mass:
        """The next distribution, if each move displaces its mass by its target and the noise."""

    @abstractmethod
    def kernel(
        self, targets: Float[Array, "sources dim"], std: Std
    ) -> Float[Array, "sources window"]:
        """Probability of coming to rest at each offset of the window, for one move."""

    @abstractmethod
    def arrive(self, landed: Float[Array, "sources window"]) -> Mass:
        """The next distribution, from the mass that rests at each offset of the windows."""


class Pieces(eqx.Module):
    """Mass before it comes to rest: in the windows, and of split pairs by landing cell."""

    window: Float[Array, "sources window"]
    split: Float[Array, "pairs landings"]

    @property
    def flat(self) -> Float[Array, "pieces"]:
        """All of them, in the order of `Tables`."""
        return jnp.concatenate([self.window.reshape(-1), self.split.reshape(-1)])


class Tables(AbstractLanding):
    """Tables that bring the mass of windows to rest, for some or all cells: the *sources*.

    The *pieces* of a step are the masses in the sources' windows, source after source, followed by
    the mass of each split pair in each of its possible landing cells. The *ends* are where mass
    comes to rest: the open cells, or the places of a `Stencil`.

    Attributes:
        sources: Coordinates of the sources.
        routing: From pieces to the ends where they land.
        landing: From pieces to (source, window offset) where they land.
        arrival: From (source, window offset) to the end that this is.
        split_pairs: From sources to the split pairs that are theirs.
        split_edges: Edges of the subcells of each split pair's target on each axis, measured from
            the source's centre; the window's outer edges are far away, to catch the tails.
        split_shares: Share of each subcell's mass that goes to each possible landing of its pair;
            without the last landing, which gets the rest.
    """

    sources: Int[Array, "sources dim"]
    routing: Routing
    landing: Routing
    arrival: Routing
    split_pairs: Routing
    split_edges: Float[Array, "pairs dim edges"]
    split_shares: Float[Array, "pairs landings_but_last *subcells"]
    reach: tuple[int, ...] = eqx.field(static=True)

    @property
    def floats_kept(self) -> int:
        """See `AbstractLanding`."""
        return len(self.sources) * math.prod(self.window) + self.split_shares.size

    @property
    def n_pairs(self) -> int:
        """Number of split pairs."""
        return self.split_shares.shape[0]

    def __call__(self, joint: Joint, targets: Targets, std: Std) -> Mass:
        """See `AbstractLanding`."""
        return self.routing(self.pieces(joint, targets, std).flat)

    def kernel(
        self, targets: Float[Array, "sources dim"], std: Std
    ) -> Float[Array, "sources window"]:
        """See `AbstractLanding`."""
        ones = jnp.ones((len(targets), 1), dtype=targets.dtype)
        flat = self.pieces(ones, targets[:, None], std).flat
        return self.landing(flat).reshape(len(targets), -1)

    def arrive(self, landed: Float[Array, "sources window"]) -> Mass:
        """See `AbstractLanding`."""
        return self.arrival(landed.reshape(-1))

    def pieces(self, joint: Joint, targets: Targets, std: Std, *, many: bool = False) -> Pieces:
        """The mass of a step before it comes to rest; ``many`` as of `mufield.flow.slabs.mixed`."""
        window = window_masses(joint, targets, std, self.reach, many=many)
        if self.n_pairs == 0:
            return Pieces(window=window, split=jnp.zeros((0, 1), dtype=joint.dtype))
        return Pieces(window=window, split=self._split(joint, targets, std, many=many))

    def carry(self, pieces: Pieces, mass: Float[Array, "sources"]) -> Mass:
        """The next distribution of sources with this mass, from the pieces of a mass of one."""
        window, split = pieces.window * mass[:, None], pieces.split
        if self.n_pairs:
            split = split * self.split_pairs(mass)[:, None]
        return self.routing(Pieces(window, split).flat)

    def _split(
        self, joint: Joint, targets: Targets, std: Std, *, many: bool
    ) -> Float[Array, "pairs landings"]:
        """Mass of each split pair in each of its landing cells."""
        dtype = joint.dtype
        edges, shares = self.split_edges.astype(dtype), self.split_shares.astype(dtype)
        targets, joint = self.split_pairs(targets), self.split_pairs(joint)
        masses = partial(slab_masses, many=many)
        per_pair = jax.vmap(jax.vmap(masses, in_axes=(0, None, None)), in_axes=(0, None, 0))
        fine = [per_pair(targets[..., a], std[a], edges[:, a]) for a in range(edges.shape[1])]
        letters = string.ascii_lowercase[3 : 3 + len(fine)]
        if joint.shape[1] == 1:
            # One axis at a time: matrix-vector products compile to better code than one product.
            shared = shares
            for factor in reversed(fine):
                shared = jnp.einsum("a...b,ab->a...", shared, factor[:, 0])
            shared = shared * joint
        else:
            shared = jnp.einsum(f"ac{letters},a{letters}->ac", shares, mixed(joint, fine))
        totals = [jnp.sum(factor, axis=-1) for factor in fine]
        whole = jnp.sum(joint * math.prod(totals[1:], start=totals[0]), axis=1)
        rest = whole - jnp.sum(shared, axis=1)
        # Rounding must not make it negative; the derivative is unchanged by this correction.
        rest = rest + jax.lax.stop_gradient(jnp.maximum(rest, 0.0) - rest)
        return jnp.concatenate([shared, rest[:, None]], axis=1)


class Exact(AbstractLanding):
    """Without noise mass lands by the rule that agents follow; its derivative is zero.

    Attributes:
        tables: The sources and where window offsets are.
        grid: The space.
    """

    tables: Tables
    grid: Grid = eqx.field(static=True)
    reach: tuple[int, ...] = eqx.field(static=True)

    @property
    def floats_kept(self) -> int:
        """See `AbstractLanding`."""
        return self.tables.floats_kept

    def __call__(self, joint: Joint, targets: Targets, std: Std) -> Mass:
        """See `AbstractLanding`."""
        chosen = self._offsets(targets)[..., None] == jnp.arange(math.prod(self.window))
        return self.arrive(jnp.einsum("km,kme->ke", joint, chosen.astype(joint.dtype)))

    def kernel(
        self, targets: Float[Array, "sources dim"], std: Std
    ) -> Float[Array, "sources window"]:
        """See `AbstractLanding`."""
        offsets = self._offsets(targets[:, None])[:, 0]
        return jax.nn.one_hot(offsets, math.prod(self.window), dtype=targets.dtype)

    def arrive(self, landed: Float[Array, "sources window"]) -> Mass:
        """See `AbstractLanding`."""
        return self.tables.arrive(landed)

    def _offsets(self, targets: Targets) -> Int[Array, "sources moves"]:
        """Number of the window offset at which each move ends."""
        reach = jnp.asarray(self.reach, dtype=jnp.int32)
        centres = self.tables.sources.astype(targets.dtype) + 0.5

        def offset(centre: Array, displacement: Array) -> Array:
            path = trace(self.grid, centre, centre + displacement)
            place = jnp.clip(path.cell - path.start, -reach, reach) + reach
            return jnp.ravel_multi_index(tuple(place), self.window, mode="clip")

        return jax.vmap(lambda c, ds: jax.vmap(partial(offset, c))(ds))(centres, targets)


class Stencil(AbstractLanding):
    """Open cells land by a stencil, the others, which are few on large maps, by tables.

    Both add to the *padded box*: the box with a margin of the window's reach around it, as one flat
    array. What ends up in the margins belongs to the other side of a wrapped axis.

    Attributes:
        near: The landing of the cells that are not open; its ends are places of the padded box.
        near_cells: Their numbers.
        ends: The places where their mass may come to rest.
        open: Which cells are open.
        cells: From cells to those of the box; None if there are no walls.
        shape: Cells of the box on each axis.
        wrapped: Which axes wrap around.
    """

    near: Tables | Exact
    near_cells: Int[Array, "near"]
    ends: Int[Array, "ends"]
    open: Bool[Array, "cells"]
    cells: Routing | None
    shape: tuple[int, ...] = eqx.field(static=True)
    reach: tuple[int, ...] = eqx.field(static=True)
    wrapped: tuple[bool, ...] = eqx.field(static=True)

    @property
    def floats_kept(self) -> int:
        """The distribution and the targets of all cells, besides what `near` keeps."""
        return self.near.floats_kept + len(self.open) * (1 + len(self.shape))

    @property
    def padded(self) -> tuple[int, ...]:
        """Shape of the padded box."""
        return tuple(n + 2 * r for n, r in zip(self.shape, self.reach, strict=True))

    def __call__(self, joint: Joint, targets: Targets, std: Std) -> Mass:
        """See `AbstractLanding`."""
        far = jnp.where(self.open[:, None], joint, 0.0)

        def one(mass: Mass, displacement: Float[Array, "cells dim"]) -> Float[Array, "places"]:
            moved = [self.pad(column) for column in displacement.T]
            slabs_of = slab_lists(self.reach)
            return spread(self.pad(mass), moved, std, slabs_of, self.padded, self.reach)

        box = one(far[:, 0], targets[:, 0])
        if joint.shape[1] > 1:
            later = (far[:, 1:].T, jnp.moveaxis(targets[:, 1:], 1, 0))
            add = jax.checkpoint(lambda total, move: (total + one(*move), None))
            box = jax.lax.scan(add, box, later)[0]
        if len(self.near_cells):
            near = self.near(joint[self.near_cells], targets[self.near_cells], std)
            box = box.at[self.ends].add(near)
        return self.crop(box)

    def kernel(
        self, targets: Float[Array, "sources dim"], std: Std
    ) -> Float[Array, "sources window"]:
        """See `AbstractLanding`."""
        ones = jnp.ones((len(targets), 1), dtype=targets.dtype)
        landed = window_masses(ones, targets[:, None], std, self.reach)
        if not len(self.near_cells):
            return landed
        return landed.at[self.near_cells].set(self.near.kernel(targets[self.near_cells], std))

    def arrive(self, landed: Float[Array, "sources window"]) -> Mass:
        """See `AbstractLanding`."""
        inside = self.pad(landed).reshape(*self.padded, -1)
        # From the padded box to one more margin around it, so that every shift is a slice.
        wide = jnp.pad(inside, [(r, r) for r in self.reach] + [(0, 0)])
        offsets = list(itertools.product(*(range(2 * r + 1) for r in self.reach)))

        def shifted(start: Sequence[int | Array], number: int | Array) -> Array:
            corner = (*start, number)
            return jax.lax.dynamic_slice(wide, corner, (*self.padded, 1))[..., 0]

        starts = [tuple(2 * r - o for o, r in zip(at, self.reach, strict=True)) for at in offsets]
        if len(offsets) <= UNROLLED:
            parts = [shifted(at, k) for k, at in enumerate(starts)]
            return self.crop(sum(parts[1:], parts[0]).reshape(-1))
        total = jax.lax.scan(
            lambda t, at: (t + shifted(tuple(at[0]), at[1]), None),
            jnp.zeros(self.padded, dtype=landed.dtype),
            (jnp.asarray(starts), jnp.arange(len(starts))),
        )[0]
        return self.crop(total.reshape(-1))

    def pad(self, values: Float[Array, "cells *rest"]) -> Float[Array, "places *rest"]:
        """Values of the cells in the padded box, zero in walls and margins."""
        box = values if self.cells is None else self.cells(values)
        rest = values.shape[1:]
        margins = [(r, r) for r in self.reach] + [(0, 0)] * len(rest)
        return jnp.pad(box.reshape(*self.shape, *rest), margins).reshape(-1, *rest)

    def crop(self, places: Float[Array, "places"]) -> Mass:
        """The distribution of mass in the padded box; margins go round wrapped axes."""
        box = places.reshape(self.padded)
        for axis, (size, reach, wrapped) in enumerate(
            zip(self.shape, self.reach, self.wrapped, strict=True)
        ):
            box = _wrap(box, axis, size, reach if wrapped else 0, reach)
        flat = box.reshape(-1)
        return flat if self.cells is None else self.cells.transposed(flat)


def _wrap(box: Array, axis: int, size: int, reach: int, margin: int) -> Array:
    """The box without its margins on an axis; up to ``reach`` cells of them go round it."""
    inside = jax.lax.slice_in_dim(box, margin, margin + size, axis=axis)
    for turn in range(1, -(-reach // size) + 1):
        for first in (margin - turn * size, margin + turn * size):
            low, high = max(first, 0), min(first + size, size + 2 * margin)
            widths = [(0, 0)] * box.ndim
            widths[axis] = (low - first, first + size - high)
            part = jax.lax.slice_in_dim(box, low, high, axis=axis)
            inside = inside + jnp.pad(part, widths)
    return inside
