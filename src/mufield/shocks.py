"""Shocks: public random events that all agents see and nobody foresees (common noise).

A shock has finitely many values and is a Markov chain, or independent by step. Given a *path*, the
numbers of the shocks of all steps, a problem with shocks is one without: `UnderShock` gives motion,
reward and trips the shock of their step. J is the expectation over the paths.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ._arrays import Key
from .errors import UserError, distribution, finite, numbers, whole_number
from .interfaces import AbstractLifted, with_fields
from .space.measure import MeanField

Path = Int[Array, "steps_and_end"]
"""The number of the shock at each step, and at the end of the episode."""


class Paths(NamedTuple):
    """Some paths of the shocks.

    Attributes:
        chances: Their probabilities, which sum to one.
        exact: Whether these are all paths that there are; else they were drawn.
    """

    numbers: Int[Array, "paths steps_and_end"]
    chances: Float[Array, "paths"]
    exact: bool


class Shocks(eqx.Module):
    """A public random variable that everybody sees at the start of each step.

    Motion, reward and trips read its value as ``mu.shock``; so do policies that are functions.

    Attributes:
        values: What the shock can be: one number for each, or one row of numbers.
        initial: Probability of each value at the first step; None if it is to be learned.
        transition: Probability of each value (columns) after each value (rows); None likewise.
        moves: Whether the motion may depend on the shock. If only reward or trips do, a learner
            needs one model of the motion instead of one for each value.
        first: The step at which `initial` holds, if the problem is the rest of an episode.
    """

    values: Array
    initial: Float[Array, "values"] | None
    transition: Float[Array, "values values"] | None
    first: Int[Array, ""] | None
    moves: bool = eqx.field(static=True)

    def __init__(
        self, values: Any, probabilities: Any = None, transition: Any = None, *, moves: bool = True
    ):
        """Checks and builds shocks.

        ``probabilities`` are those of every step, or with a ``transition``, the matrix of a Markov
        chain, of the first one; None if they are unknown and have to be learned.
        """
        found = numbers(values, "the values of shocks")
        if found.ndim not in (1, 2) or len(found) == 0:
            raise UserError(
                "shocks need a list of values, such as [0.5, 1.0, 2.0], or a row of numbers for "
                f"each value; got the shape {found.shape}"
            )
        finite(found, "the values of shocks")
        whole = found.dtype.kind in "iu"  # which may then be used as an index
        self.values = jnp.asarray(found, dtype=jnp.int32 if whole else jnp.result_type(float))
        self.first, self.moves, count = None, moves, len(found)
        self.initial = self.transition = None
        if probabilities is None:
            if transition is not None:
                raise UserError("a chain of shocks needs the probabilities of its first step, too")
            return
        first = numbers(probabilities, "the probabilities of shocks").astype(float)
        rows = first if transition is None else numbers(transition, "the transition of shocks")
        if first.shape != (count,) or rows.shape not in ((count,), (count, count)):
            raise UserError(
                f"shocks with {count} values need {count} probabilities, and a transition of the "
                f"shape {(count, count)} if any; got {first.shape} and {rows.shape}"
            )
        distribution(first, "the probabilities of shocks")
        distribution(rows, "each row of the transition of shocks")
        dtype = jnp.result_type(float)
        self.initial = jnp.asarray(first / first.sum(), dtype)
        square = np.broadcast_to(rows, (count, count)).astype(float)
        self.transition = jnp.asarray(square / square.sum(axis=1, keepdims=True), dtype)

    @property
    def count(self) -> int:
        """Number of values."""
        return int(self.values.shape[0])

    @property
    def known(self) -> bool:
        """Whether the probabilities are known."""
        return self.transition is not None

    def known_now(self, step: int, number: Any) -> "Shocks":
        """The shocks of the rest of an episode, from a step at which the shock is seen."""
        if whole_number(number, "the shock's number (shock=, or add --shock N)", 0) >= self.count:
            raise UserError(f"the number of the shock must be below {self.count}, got {number}")
        first = jnp.asarray(step, dtype=jnp.int32) if step else None
        now = jax.nn.one_hot(number, self.count, dtype=jnp.result_type(float))
        return with_fields(self, initial=now, first=first)

    def paths(self, steps: int, *, key: Key | None = None, samples: int = 64) -> Paths:
        """All paths of a number of steps if there are at most ``samples``, else drawn ones.

        Drawn paths depend on the key alone, so that policies are compared on the same ones. The
        entry after the last step is that of the end of an episode. May be compiled.
        """
        self._law()
        if self.count**steps <= whole_number(samples, "the number of sampled paths"):
            every = np.indices((self.count,) * steps).reshape(steps, -1).T
            found = jnp.asarray(every, dtype=jnp.int32)
            chances: Array = jax.vmap(self._chance)(found)
            return Paths(_with_end(found), chances, exact=True)
        keys = jax.random.split(jax.random.key(0) if key is None else key, samples)
        drawn: Array = jax.vmap(lambda each: self.draw(each, steps))(keys)
        even = jnp.full(samples, 1.0 / samples, dtype=jnp.result_type(float))
        return Paths(drawn, even, exact=False)

    def draw(self, key: Key, steps: int) -> Path:
        """A path, drawn."""

        def one(before: Array, row: tuple[Array, Key]) -> tuple[Array, Array]:
            now = jax.random.categorical(row[1], jnp.log(self._next(row[0], before)))
            return now.astype(jnp.int32), now.astype(jnp.int32)

        rows = jnp.arange(steps, dtype=jnp.int32), jax.random.split(key, steps)
        return _with_end(jax.lax.scan(one, jnp.zeros((), dtype=jnp.int32), rows)[1])

    def _chance(self, path: Int[Array, "steps"]) -> Array:
        before = jnp.concatenate([path[:1], path[:-1]])
        rows = jax.vmap(self._next)(jnp.arange(len(path), dtype=jnp.int32), before)
        return jnp.prod(jnp.take_along_axis(rows, path[:, None], axis=1))

    def _next(self, step: Array, before: Array) -> Float[Array, "values"]:
        """Probabilities at a step; before the first one, where nothing happens, they are even."""
        initial, transition = self._law()
        first = jnp.zeros((), dtype=jnp.int32) if self.first is None else self.first
        early = jnp.full_like(initial, 1.0 / self.count)
        later = jnp.where(step == first, initial, transition[before])
        return jnp.where(step < first, early, later)

    def _law(self) -> tuple[Array, Array]:
        if self.initial is None or self.transition is None:
            raise UserError(
                "the probabilities of the shocks are unknown, so paths cannot be drawn; give them "
                "to the problem, or to the system as shocks=Shocks(values, probabilities)"
            )
        return self.initial, self.transition

    def checked_path(self, given: Any, steps: int) -> Path:
        """A path of at least some steps; raises unless it holds numbers of shocks."""
        found = np.asarray(given)
        whole = found.dtype.kind in "iu" and found.ndim == 1 and len(found) >= steps
        if not whole or found.min() < 0 or found.max() >= self.count:
            raise UserError(
                f"expected the number of a shock, 0 to {self.count - 1}, for each of {steps} "
                f"steps, got {found.tolist()}"
            )
        return jnp.asarray(found, jnp.int32)

    def history(self, path: Path, memory: int) -> Path:
        """The number of each step's row of a table that sees the last ``memory`` shocks."""
        row = jnp.zeros_like(path)
        for back in range(min(whole_number(memory, "the memory of shocks", 0), len(path))):
            before = jnp.concatenate([path[:1].repeat(back), path])[: len(path)]
            row = row + self.count**back * before
        return row

    def under(self, function: Callable[..., Any], number: Int[Array, "*steps"]) -> "UnderShock":
        """A function of one agent on a path of the shocks, or under one shock that stays."""
        return UnderShock(function, self.values, number)

    def seen(self, mu: MeanField, number: Int[Array, ""]) -> MeanField:
        """What an agent sees of mu under the shock of this number."""
        return seen_under(mu, self.values, number)

    def learned(self, counts: Float[np.ndarray, "values_and_one values"]) -> "Shocks":
        """Unknown shocks with the mean of Dirichlet posteriors of what was counted.

        The first row counts first shocks, the others those after each value; the prior has half an
        observation of each. Nobody influences shocks, so plans need no optimism about them.
        """
        mean = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
        dtype = jnp.result_type(float)
        initial, transition = jnp.asarray(mean[0], dtype), jnp.asarray(mean[1:], dtype)
        initial = initial if self.initial is None else self.initial  # of the rest of an episode
        return with_fields(self, initial=initial, transition=transition)

    def counted(
        self, paths: Int[np.ndarray, "episodes steps"]
    ) -> Float[np.ndarray, "values_and_one values"]:
        """How often each shock came first, and after each other one."""
        found = np.zeros((self.count + 1, self.count))
        for path in paths:
            np.add.at(found, (np.append(0, path[:-1] + 1), path), 1.0)
        return found


def _with_end(path: Int[Array, "*paths steps"]) -> Int[Array, "*paths steps_and_end"]:
    """A path with one more entry, for distributions after the last step: the last shock stays."""
    return jnp.concatenate([path, path[..., -1:]], axis=-1)


class UnderShock(AbstractLifted):
    """A function of one agent that reads ``mu.shock``, with the shock of a path or one for all.

    Attributes:
        function: A motion, a reward or the chance of a trip.
        number: The number of the shock, or a path.
    """

    function: Callable[..., Any]
    values: Array
    number: Int[Array, "*steps"]

    def __call__(self, *arguments: Any) -> Any:
        """The function's result; the last argument is mu."""
        *first, mu = arguments
        return self.function(*first, seen_under(mu, self.values, self.number))


def seen_under(mu: MeanField, values: Array, number: Int[Array, "*steps"]) -> MeanField:
    """What an agent sees of mu, with the shock of its step."""
    now = number[mu.step] if number.ndim else number
    return replace(mu, shock=values[now], shock_number=now)
