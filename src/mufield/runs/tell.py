"""Episodes and logs of a real system, told from files."""

from collections.abc import Sequence
from pathlib import Path

from ..io.episode import read_episode
from ..io.log import read_log
from ..io.sealed import digest, file_digest
from ..learning.metrics import EpisodeMetrics
from .history import logged_arrays
from .layout import Record
from .session import Session, check_new


def tell_episode(
    session: Session,
    path: Path,
    *,
    mass_path: Path | None = None,
    agents: Sequence[str] = (),
    repeated: bool = False,
) -> EpisodeMetrics:
    """Tells an episode from a file, see `read_episode`; raises, and changes nothing, if wrong.

    ``repeated`` accepts one that equals an earlier one.
    """
    notes: list[str] = []
    episode = read_episode(path, session.asked(), mass_path=mass_path, agents=agents, notes=notes)
    source = {"file": path.name, "sha256": file_digest(path)}
    return session.tell(episode, source=source, repeated=repeated, notes=notes)


def tell_log(
    session: Session,
    path: Path,
    *,
    mass_path: Path | None = None,
    agents: Sequence[str] = (),
    repeated: bool = False,
) -> Record:
    """Tells transitions that belong to no episode from a file; see `read_log`.

    Raises, and changes nothing, if they cannot be right. Plans know them from the next on; one
    that was asked for already stays as it is. ``repeated`` accepts a log that equals an
    earlier one.
    """
    log = read_log(path, session.setup.problem, mass_path=mass_path, agents=agents)
    source = {"file": path.name, "sha256": file_digest(path), "notes": list(log.notes)}
    if not repeated:
        check_new("log", digest("", logged_arrays(log.data)), source, session.store.logs)
    record = session.store.write_log(log.data, source)
    if record["since"] == session.episode:
        session.reread()
    return record
