"""Errors that tell a user what to do, and checks of what comes from outside, written once.

Each check raises a `UserError` that says what was expected, what came and what to do. ``name`` is
what the message calls the value, ``remedy`` the advice that ends it, and ``place`` puts the index
of the entry at fault into words.
"""

import math
import reprlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Shaped

MASS_TOLERANCE = 1e-4
"""How far a distribution that comes from outside may be from summing to one."""

Place = Callable[[tuple[int, ...]], str]
T = TypeVar("T")
Kind = TypeVar("Kind", float, bool)

PerAxis = float | Sequence[float] | np.ndarray
"""One number for all axes, or one for each."""


class UserError(ValueError):
    """A mistake that the user can mend: the message says what was expected, what came, the remedy.

    Every other error is a fault of mufield's own and is shown as one.
    """


def in_words(error: Exception, arguments: str) -> str:
    """What went wrong in a user's function, with the remedy where habits of NumPy are the cause.

    ``arguments`` are those that the function is called with, such as ``"(state, mu, step)"``.
    """
    from jax import errors  # whoever has an error of a function has imported it already

    tables = (
        errors.TracerArrayConversionError,
        errors.TracerIntegerConversionError,
        errors.NonConcreteBooleanIndexError,
    )
    if isinstance(error, errors.TracerBoolConversionError):
        remedy = "use jnp.where(condition, one, other) in place of if, and & and | in place of and"
    elif isinstance(error, tables):
        remedy = (
            "NumPy cannot compute with values that JAX traces: look tables up as "
            "jnp.asarray(table)[index], and use jax.numpy in place of numpy"
        )
    elif isinstance(error, errors.ConcretizationTypeError):
        remedy = (
            "JAX traces values that are not known yet: use jnp.exp in place of math.exp and "
            "so on, x.astype(int) in place of int(x), leave float(x) out, and look tables up as "
            "jnp.asarray(table)[index]"
        )
    elif isinstance(error, TypeError) and "argument" in str(error):
        remedy = f"it is called as function{arguments}, so define it with these arguments"
    else:
        return str(error)
    frames, ours = traceback.extract_tb(error.__traceback__), str(Path(__file__).parent)
    others = ("site-packages", ours)
    place = [each for each in frames if not any(part in each.filename for part in others)]
    line = f" (line {place[-1].lineno} of {place[-1].filename})" if place else ""
    return f"{remedy}{line}; {type(error).__name__}: {str(error).splitlines()[0]}"


@contextmanager
def explained(what: str, arguments: str) -> Iterator[None]:
    """Says of errors in a user's function ``what`` went wrong; arguments as of `in_words`."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{what}: {in_words(error, arguments)}") from error


def _at_index(index: tuple[int, ...]) -> str:
    return f"at index {index[0] if len(index) == 1 else index}" if index else ""


def fail_where(
    bad: Any, message: Callable[[tuple[int, ...]], str], remedy: str = "", place: Place = _at_index
) -> None:
    """Raises if any entry is bad; ``message`` is for the index of the first."""
    if np.any(bad):
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        text = f"{message(index)} {place(index)}".rstrip()
        raise UserError(f"{text}; {remedy}" if remedy else text)


def is_a(value: Any, kind: type[T] | tuple[type[T], ...], name: str, remedy: str) -> T:
    """Returns ``value`` if it is of the kind."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(each.__name__ for each in kinds)
        raise UserError(
            f"{name} must be of type {wanted}, got {reprlib.repr(value)} of type "
            f"{type(value).__name__}; {remedy}"
        )
    return value


def whole_number(value: Any, name: str, low: int = 1) -> int:
    """Returns ``value`` if it is an integer of at least ``low``."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < low:
        raise UserError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return int(value)


def number(value: Any, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Returns ``value`` if it is a finite real number from ``low`` to ``high``."""
    found = numbers(value, name)
    if found.ndim or not (np.isfinite(found) and low <= found <= high):
        raise UserError(
            f"{name} must be one finite number from {low:g} to {high:g}, got {reprlib.repr(value)}"
        )
    return float(found)


def numbers(values: Any, name: str, remedy: str = "") -> Shaped[np.ndarray, "..."]:
    """``values`` as a NumPy array of real numbers."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        got = f"{reprlib.repr(values)} of type {type(values).__name__}"
        raise UserError(f"{name} must be real numbers, got {got}" + (remedy and f"; {remedy}"))
    return array


def per_axis(value: Any, dim: int, kind: type[Kind], name: str = "the value") -> tuple[Kind, ...]:
    """One value for each axis, from one value or a sequence of them."""
    found = numbers(value, name, f"give one value, or one for each of the {dim} axes")
    if found.ndim == 0:
        found = np.broadcast_to(found, (dim,))
    if found.shape != (dim,):
        raise UserError(f"{name} must have one value for each of the {dim} axes, got {value}")
    return tuple(kind(each) for each in found)


def bounds(lower: Sequence[float], upper: Sequence[float], name: str) -> None:
    """Raises unless each axis of a box runs from a lower to a higher finite bound."""
    for axis, (low, high) in enumerate(zip(lower, upper, strict=True)):
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UserError(
                f"axis {axis} of {name} must run from a lower to a higher finite bound, "
                f"got {low} to {high}"
            )


def finite(values: Any, name: str, remedy: str = "", place: Place = _at_index) -> None:
    """Raises if an entry is NaN or infinite."""
    bad = ~np.isfinite(np.asarray(values))
    fail_where(bad, lambda i: f"{name} must be finite, but is NaN or infinite", remedy, place)


def non_negative(values: Any, name: str, remedy: str = "", place: Place = _at_index) -> None:
    """Raises if an entry is negative."""
    array = np.asarray(values)
    said = f"{name} must not be negative, but is"
    fail_where(array < 0, lambda i: f"{said} {array[i]:g}", remedy, place)


def distribution(
    values: Any,
    name: str,
    remedy: str = "divide it by its sum",
    place: Place = _at_index,
    sums: Float[np.ndarray, "*rows"] | None = None,
) -> Float[np.ndarray, "*rows"]:
    """Raises unless each row is finite, non-negative and sums to one; returns the sums.

    Rows are along the last axis. Give the ``sums`` if more belongs to a row than its ``values``.
    """
    finite(values, name, remedy, place)
    non_negative(values, name, remedy, place)
    with np.errstate(over="ignore"):
        totals = np.asarray(values).sum(axis=-1, dtype=float) if sums is None else sums
    totals = np.asarray(totals)
    off = ~(np.abs(totals - 1.0) <= MASS_TOLERANCE)
    fail_where(off, lambda i: f"{name} must sum to 1, but sums to {totals[i]:.6g}", remedy, place)
    return totals
