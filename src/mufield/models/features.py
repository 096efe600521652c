"""The inputs z = (s, a, mu) of a model as a vector of numbers of the order of one."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Action, State
from ..errors import UserError
from ..policies.encoders import AbstractEncoder, make_encoder
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField
from .data import PaddedTransitions

MuFeatures = str | Callable[[State, MeanField], Any]
"""How a model sees the population: a name, or the user's function of one agent's state and mu."""

NAMES = ("none", "local", "log here", "pooled", "embedding")

EMBEDDING_SIZE = 8
"""Most numbers that stand for a distribution's mean embedding."""

LEAST_HERE = 1e-6
"""Mass of a cell, in units of the uniform distribution, below which ``"log here"`` is constant."""


class FeatureMap(eqx.Module):
    """z(s, a, mu): the vector that a model sees.

    Periodic axes enter as sine and cosine, so that the seam does not show; other axes and the
    actions are scaled to [-1, 1].

    Attributes:
        grid: The space.
        lower: Lower bounds of the actions.
        upper: Upper bounds of the actions.
        mu: How the population enters: ``"none"``, ``"local"`` (the mass of the agent's cell),
            ``"log here"`` (its logarithm, which rewards that shun crowds are often linear in),
            ``"pooled"`` (masses of blocks of cells), ``"embedding"`` (the kernel mean embedding) or
            a function ``(state, mu) -> vector``.
        encoder: What ``"pooled"`` uses.
        embedding: What ``"embedding"`` multiplies the masses with.
        size: Length of the vector.
    """

    grid: Grid = eqx.field(static=True)
    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)
    mu: MuFeatures = eqx.field(static=True)
    encoder: AbstractEncoder | None
    embedding: Float[Array, "cells embedded"] | None
    size: int = eqx.field(static=True)

    def __init__(self, problem: Problem, mu: MuFeatures = "none", *, pooling: int = 4):
        """Builds the map for a problem.

        Args:
            problem: The problem.
            mu: How the population enters.
            pooling: Cells of a block on each axis, for ``"pooled"``.
        """
        if isinstance(mu, str) and mu not in NAMES:
            raise UserError(
                f"mu must be one of {NAMES} or a function (state, mu) -> vector, got {mu!r}"
            )
        actions = problem.actions
        self.grid = problem.grid
        self.lower, self.upper = actions.lower, actions.upper
        self.mu = mu
        self.encoder = make_encoder(problem.grid, "pooled", pooling) if mu == "pooled" else None
        self.embedding = _embedding(problem) if mu == "embedding" else None
        self.size = 0  # until the number of features of mu is known
        self.size = self.own_size + self._size_of_mu(problem)

    @property
    def own_size(self) -> int:
        """Number of features of the agent's own state and action; those of mu follow."""
        return self.grid.dim + sum(self.grid.periodic) + len(self.lower)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Float[Array, "features"]:
        """The features of one agent."""
        dtype = state.dtype
        low = jnp.asarray(self.grid.lower, dtype=dtype)
        turn = (state - low) / jnp.asarray(self.grid.extent, dtype=dtype)
        parts = []
        for axis, periodic in enumerate(self.grid.periodic):
            if periodic:
                angle = 2 * jnp.pi * turn[axis]
                parts += [jnp.sin(angle), jnp.cos(angle)]
            else:
                parts.append(2 * turn[axis] - 1)
        low, high = (jnp.asarray(bound, dtype=dtype) for bound in (self.lower, self.upper))
        width = jnp.where(high > low, high - low, 1.0)
        own = jnp.concatenate([jnp.stack(parts), 2 * (action - low) / width - 1])
        return jnp.concatenate([own, self._of_mu(state, mu).astype(dtype)])

    def rows(self, data: PaddedTransitions) -> Float[Array, "rows features"]:
        """The features of every transition."""

        def one(state: State, action: Action, moment: Array) -> Float[Array, "features"]:
            mass = data.mass[moment]
            here = mass[self.grid.index_of(state)]
            return self(state, action, MeanField(mass=mass, here=here, grid=self.grid))

        return jax.vmap(one)(data.states, data.actions, data.moment)

    def _of_mu(self, state: State, mu: MeanField) -> Float[Array, "features"]:
        if callable(self.mu):
            return jnp.atleast_1d(jnp.asarray(self.mu(state, mu)))
        if self.mu == "local":
            # In units of the uniform distribution, and even over its orders of magnitude.
            return jnp.log1p(mu.here * self.grid.n_cells)[None]
        if self.mu == "log here":
            # 0 where the population is even, 1 where everybody is here.
            here = jnp.maximum(mu.here * self.grid.n_cells, LEAST_HERE)
            return (jnp.log(here) / max(1.0, math.log(self.grid.n_cells)))[None]
        if self.encoder is not None:
            return self.encoder(mu.mass)
        if self.embedding is not None:
            return mu.mass @ self.embedding
        return jnp.zeros((0,), dtype=state.dtype)

    def _size_of_mu(self, problem: Problem) -> int:
        dtype = problem.initial.dtype
        state = jax.ShapeDtypeStruct((self.grid.dim,), dtype)

        def one(state: State, mass: Array) -> Array:
            return self._of_mu(state, MeanField(mass=mass, here=mass[0], grid=self.grid))

        found = jax.eval_shape(one, state, jax.ShapeDtypeStruct((self.grid.n_cells,), dtype))
        if len(found.shape) != 1:
            raise UserError(
                f"the features of mu must be a vector for one agent, got the shape {found.shape}"
            )
        return int(found.shape[0])


def _embedding(problem: Problem) -> Float[Array, "cells embedded"]:
    """A matrix R with R R' close to the Gaussian kernel between cells, so that the distance of
    two distributions' features is that of their kernel mean embeddings.

    The kernel's width is a quarter of the space. Its Lipschitz constant in W1 is bounded by one
    over the width, which keeps models Lipschitz in mu (assumption Kernel).
    """
    grid = problem.grid
    gram = np.ones((grid.n_cells, grid.n_cells))
    for axis, extent in enumerate(grid.extent):
        apart = grid.centres[:, None, axis] - grid.centres[None, :, axis]
        # On a wrapped axis the sum over turns, so that the kernel stays positive definite.
        turns = np.arange(-2, 3) if grid.periodic[axis] else np.zeros(1)
        each = (apart[..., None] + turns * extent) / (0.25 * extent)
        gram *= np.exp(-0.5 * each**2).sum(axis=-1)
    values, vectors = np.linalg.eigh(gram)
    keep = np.argsort(values)[::-1][:EMBEDDING_SIZE]
    root = vectors[:, keep] * np.sqrt(np.maximum(values[keep], 0.0))
    return jnp.asarray(root, dtype=problem.initial.dtype)
