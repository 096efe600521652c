"""Settings of JAX that a user should not have to know about."""

import atexit
import contextlib
import os
import sys
import tempfile
from pathlib import Path


def enable_compilation_cache() -> Path | None:
    """Keep compiled programs on disk, so that later starts need not compile them again.

    The cache lies in the user's cache directory. The environment variable
    ``MUFIELD_COMPILATION_CACHE`` chooses another directory, or none if it is ``off``. A cache
    that the user configured in JAX is left alone. A directory that cannot be written is no error,
    only a slower start. When the process ends, programs that were not used for longest are removed
    if all together take more than 500 MB.

    JAX is not imported for this, so that commands which compute nothing start at once.

    Returns:
        The directory, or None when JAX's configuration was left as it was.
    """
    directory = _cache_directory()
    if directory is None or not _jax_allows(directory) or not _is_writable(directory):
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

    If there are too many, a quarter more is removed, so that it need not be done every time.
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


def _cache_directory() -> Path | None:
    """The directory to use; None if the cache is switched off or there is no home directory."""
    switch = os.environ.get("MUFIELD_COMPILATION_CACHE", "")
    if switch.strip().lower() == "off":
        return None
    try:
        root = Path(switch).expanduser() if switch else _user_cache() / "mufield"
    except RuntimeError:  # no home directory
        return None
    # Programs compiled by one jaxlib are of no use to another.
    from jaxlib.version import __version__ as jaxlib_version

    return root / f"jaxlib-{jaxlib_version}"


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _jax_allows(directory: Path) -> bool:
    """Whether the user left the choice of a cache to us."""
    if "jax" in sys.modules:
        import jax

        chosen = jax.config.values["jax_compilation_cache_dir"]
        enabled = jax.config.values["jax_enable_compilation_cache"]
    else:
        chosen = os.environ.get("JAX_COMPILATION_CACHE_DIR")
        enabled = True  # JAX reads its own off switch
    return bool(enabled) and chosen in (None, str(directory))


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
