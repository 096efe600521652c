"""The metrics as TensorBoard events. Needs the extra ``tensorboard``; nothing is read from them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Watcher = Callable[[Row], None]
"""Called with the metrics of an episode."""

DIRECTORY = "tensorboard"


@contextmanager
def event_writer(run: Path) -> Iterator[Watcher]:
    """Yields a function that writes an episode's figures as events below a run's directory.

    Old events are removed, so that the caller can write all episodes anew: a run that went on
    without events would otherwise have gaps.
    """
    from tensorboardX import SummaryWriter

    directory = run / DIRECTORY
    for old in directory.glob("events.out.tfevents.*"):
        old.unlink()
    with SummaryWriter(logdir=str(directory)) as writer:

        def write(row: Row) -> None:
            for name, value in row.items():
                if name != "episode" and isinstance(value, int | float):
                    writer.add_scalar(name, value, row["episode"])
            writer.flush()

        yield write
