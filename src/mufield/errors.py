"""Errors that tell a user what to do."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
