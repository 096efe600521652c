"""What the figures of a run depend on besides its configuration: number format, versions, and the
user's own Python file.
"""

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..io.sealed import MOST_TEXT, file_digest


def current_precision() -> str:
    """The number format that JAX computes in."""
    import jax.numpy as jnp

    return str(jnp.result_type(float))


def set_precision(precision: str) -> None:
    """Makes JAX compute in a number format; only programs may do so, not a library."""
    import jax

    if precision != current_precision():
        jax.config.update("jax_enable_x64", precision == "float64")


def check_precision(precision: str) -> None:
    """Raises unless JAX computes in this number format."""
    if precision != current_precision():
        what = f"the run computes in {precision}, but JAX is set to {current_precision()}"
        call = f"call jax.config.update('jax_enable_x64', {precision == 'float64'}) at the start"
        raise UserError(f"{what}; {call}")


def versions(imported: Path | None = None) -> dict[str, Any]:
    """Versions of Python and packages, and a digest of the user's own file."""
    packages = ("mufield", "jax", "jaxlib", "equinox", "numpy", "optax", "scipy")
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version(name) for name in packages},
    }
    if imported is not None:
        # A stranger may name anything.
        is_code = imported.is_file() and imported.stat().st_size <= MOST_TEXT
        sha256 = file_digest(imported) if is_code else None
        found["imported"] = {"file": str(imported), "sha256": sha256}
    return found


def changes_since(then: dict[str, Any]) -> list[str]:
    """One sentence for each version that has changed since a run began with ``then``."""
    if not then:  # the file of versions was lost
        return []
    imported = then.get("imported")
    file = imported.get("file") if isinstance(imported, dict) else None
    now = versions(Path(file) if isinstance(file, str) and file else None)
    changed = [name for name in now if then.get(name) != now.get(name)]
    return [
        f"{file} has changed since the run began, or is gone; figures may differ"
        if name == "imported"
        else f"{name} was {then.get(name)} when the run began and is {now[name]} now; figures may "
        "differ"
        for name in changed
    ]
