"""What the figures of a run may depend on besides its configuration."""

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .._files import file_digest

PACKAGES = ("mufield", "jax", "jaxlib", "equinox", "numpy", "optax", "scipy")


def versions(imported: Path | None = None) -> dict[str, Any]:
    """Versions of all that computes, and a digest of the user's own file."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version(name) for name in PACKAGES},
    }
    if imported is not None:
        found["imported"] = {
            "file": str(imported),
            "sha256": file_digest(imported) if imported.is_file() else None,
        }
    return found


def changes_since(then: dict[str, Any]) -> list[str]:
    """What differs from the versions that a run began with, in words."""
    imported = then.get("imported")
    file = imported.get("file") if isinstance(imported, dict) else None
    now = versions(Path(file) if isinstance(file, str) and file else None)
    return [
        f"{name} was {then.get(name)} when the run began and is {now.get(name)} now; figures may "
        "differ"
        for name in now
        if then.get(name) != now.get(name)
    ]
