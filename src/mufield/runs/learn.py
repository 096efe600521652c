"""Runs on a simulator: begin one, and go on with it."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._progress import progress_bar
from ..errors import UserError
from .build import Setup, build, resolve, with_reward_options
from .config import RunConfig
from .metrics_files import event_writer
from .session import open_run
from .store import RunStore, check_vacant
from .surroundings import import_users


def new_run(directory: Path, config: RunConfig, *, simulated: bool = False) -> Setup:
    """Begins a run in a new or empty directory.

    Raises before anything is written if the configuration is wrong, or if the run is to be
    ``simulated`` and its problem has no simulator.
    """
    check_vacant(directory)  # first, because building takes seconds
    full = resolve(config)
    if full.imports is not None and full.imports.endswith(".py"):
        # So that the run can be resumed from anywhere.
        full = replace(full, imports=str(Path(full.imports).expanduser().resolve()))
    setup = with_reward_options(build(full))
    if simulated and setup.system is None:
        raise UserError(
            f"{config.environment!r} is a problem without a simulator, which cannot be trained "
            f"here; begin with `mufield new {config.environment} --out {directory}`, then ask and "
            "tell"
        )
    RunStore.create(directory, setup.config, import_users(full.imports))
    return setup


def learn_run(
    directory: Path,
    episodes: int | None = None,
    *,
    setup: Setup | None = None,
    imports: str | None = None,
    tensorboard: bool = False,
    check: Callable[[], None] | None = None,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Goes on with a run on a simulator until it has a number of episodes.

    Args:
        directory: A run that `new_run` began, however it was stopped since.
        episodes: Number of episodes in all; by default what the configuration says.
        setup: What `new_run` returned, to save time.
        imports: The user's own file, if it is no longer where it was when the run began.
        tensorboard: Whether to write all metrics as TensorBoard events, too.
        check: Called before each episode; it may raise to stop.
        progress: Whether to show a bar with the figures of the last episode.

    Returns:
        The metrics of all episodes.
    """
    if episodes is not None and episodes < 1:
        raise UserError(f"expected at least one episode, got {episodes}")
    with open_run(directory, setup, imports=imports) as session:
        store = session.store
        if episodes is not None:
            store.set_target(episodes)
        total = store.config.episodes
        events = event_writer(directory / "tensorboard", store.rows) if tensorboard else None
        with (
            events or nullcontext() as write,
            progress_bar("learning", total, shown=progress) as report,
        ):
            while store.episodes < total:
                if check is not None:
                    check()
                session.step()
                row = store.rows[-1]
                if write is not None:
                    write(row)
                report(store.episodes, **_figures(row))
        return store.rows


def _figures(row: dict[str, Any]) -> dict[str, float]:
    others = ("optimistic", "usable", "best", "beta", "spread", "reference")
    figures = {"J": row["value"]} | {name: row.get(name) for name in others}
    return {name: value for name, value in figures.items() if value is not None}
