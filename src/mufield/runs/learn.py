"""Runs on a simulator: begin one, and go on with it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._progress import progress_bar
from ..errors import UserError
from ..learning.metrics import bar_figures
from .build import Setup, build, resolve
from .config import RunConfig, read_config
from .session import open_run
from .store import RunStore, check_vacant
from .surroundings import import_named, import_users


def new_run(directory: Path, config: RunConfig, *, simulated: bool = False) -> Setup:
    """Begins a run in a new or empty directory.

    Raises before anything is written if the configuration is wrong, or if the run is to be
    ``simulated`` and its problem has no simulator.
    """
    check_vacant(directory)  # first, because building takes seconds
    full = resolve(config)
    if full.imports is not None:
        # So that the run can be resumed from anywhere.
        full = replace(full, imports=str(Path(full.imports).expanduser().resolve()))
    setup = build(full)
    if simulated and setup.system is None:
        begin = f"begin with `mufield new {config.environment} --out {directory}`"
        raise UserError(f"{config.environment!r} has no simulator; {begin}, then ask and tell")
    RunStore.create(directory, setup.config, import_users(full.imports))
    return setup


def check_settings(directory: Path, config: RunConfig, imports: str | None = None) -> None:
    """Raises if the run in a directory has other settings; their number of episodes may differ.

    ``imports`` is the user's own file, to be executed, if the user named it.
    """
    there = read_config(directory)
    import_named(there.imports, imports)
    wanted = resolve(replace(config, imports=None)).document()
    for name, value in there.document().items():
        if name not in ("imports", "episodes") and wanted[name] != value:
            what = f"{name} is {value!r} there, got {wanted[name]!r}"
            go_on = "leave it out to go on, or choose another directory"
            raise UserError(f"{directory} holds a run with other settings: {what}; {go_on}")


def learn_run(
    directory: Path,
    episodes: int | None = None,
    *,
    setup: Setup | None = None,
    imports: str | None = None,
    check: Callable[[], None] | None = None,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Goes on with a run on a simulator until it has a number of episodes; returns all metrics.

    Args:
        directory: A run that `new_run` began, however it was stopped since.
        episodes: Number of episodes in all; by default what the configuration says.
        setup: What `new_run` returned, to save time.
        imports: The user's own file, if it is no longer where it was when the run began.
        check: Called before each episode; it may raise to stop.
        progress: Whether to show a bar with the figures of the last episode.
    """
    if episodes is not None and episodes < 1:
        raise UserError(f"expected at least one episode, got {episodes}")
    with open_run(directory, setup, imports=imports) as session:
        store = session.store
        if episodes is not None:
            store.set_target(episodes)
        total = store.config.episodes
        with progress_bar("learning", total, shown=progress) as report:
            while store.episodes < total:
                if check is not None:
                    check()
                session.step()
                report(store.episodes, **bar_figures(store.rows[-1]))
        return store.rows
