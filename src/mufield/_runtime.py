"""Settings of JAX that a user should not have to know about."""

import atexit
import contextlib
import os
import sys
import tempfile
from pathlib import Path

from platformdirs import user_cache_path


def enable_compilation_cache() -> Path | None:
    """Keep compiled programs on disk, so that later starts need not compile them again.

    `make`, `learn`, `plan` and all commands call this; JAX is not imported for it. The cache lies
    in the user's cache directory, or in the one that ``MUFIELD_COMPILATION_CACHE`` names; ``off``
    is none. A cache that the user configured in JAX is left alone. An unwritable directory is no
    error, only a slower start; then, and if JAX's configuration is left alone, None is returned.
    """
    directory, (chosen, enabled) = _cache_directory(), _jax_settings()
    if directory is None or not enabled or chosen not in (None, str(directory)):
        return None
    if chosen is not None:
        return directory
    if not _is_writable(directory):
        return None
    _configure(
        {
            "jax_compilation_cache_dir": str(directory),
            # By default only programs that took a second are kept; ours are small, but many.
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
    )
    atexit.unregister(shrink_cache)
    atexit.register(shrink_cache, directory.parent)
    return directory


def shrink_cache(root: Path, most: int = 500 << 20) -> None:
    """Removes the programs that were not used for longest, of all versions of jaxlib.

    If there are too many, a quarter more is removed, so that it need not be done every time. JAX's
    own limit looks at all files whenever it writes one, under a lock that other processes wait for
    (0.1 s for each program beside 3,000 kept ones), and knows nothing of other versions' programs.
    """
    if "jax" not in sys.modules:  # then there is nothing new
        return
    found = []
    for path in root.glob("jaxlib-*/*"):
        with contextlib.suppress(OSError):  # another process may have removed it
            about = path.stat()
            found.append((max(about.st_atime, about.st_mtime), about.st_size, path))
    total = sum(size for _, size, _ in found)
    wanted = total if total <= most else 0.75 * most
    for _, size, path in sorted(found):
        if total <= wanted:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


def chosen_directory(variable: str, usual: Path) -> Path | None:
    """The directory that an environment variable names, or the usual one.

    None if the variable is ``off`` or there is no home directory.
    """
    chosen = os.environ.get(variable, "")
    if chosen.strip().lower() == "off":
        return None
    if chosen:
        with contextlib.suppress(RuntimeError):  # no home directory
            return Path(chosen).expanduser()
        return None
    return usual if usual.is_absolute() else None  # else it begins with ~


def _cache_directory() -> Path | None:
    root = chosen_directory("MUFIELD_COMPILATION_CACHE", user_cache_path("mufield", False))
    # Programs compiled by one jaxlib are of no use to another.
    from jaxlib.version import __version__ as jaxlib_version

    return root and root / f"jaxlib-{jaxlib_version}"


def _jax_settings() -> tuple[str | None, bool]:
    """The directory that is configured in JAX, and whether JAX keeps programs at all."""
    if "jax" in sys.modules:
        import jax

        values = jax.config.values
        return values["jax_compilation_cache_dir"], bool(values["jax_enable_compilation_cache"])
    return os.environ.get("JAX_COMPILATION_CACHE_DIR"), True  # JAX reads its own off switch


def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Permission bits do not tell: a file system may be mounted read-only, or be full.
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _configure(settings: dict[str, str | float | int]) -> None:
    """Set what the user did not: in JAX if it is imported, else where JAX will read it then."""
    for name, value in settings.items():
        if name.upper() in os.environ:
            continue
        if "jax" in sys.modules:
            import jax

            jax.config.update(name, value)
        else:
            os.environ[name.upper()] = str(value)
    if "jax" in sys.modules:
        with contextlib.suppress(ImportError):  # then JAX compiles again what it could have kept
            from jax.experimental.compilation_cache.compilation_cache import reset_cache

            reset_cache()  # what was compiled before made JAX decide against a cache
