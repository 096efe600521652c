"""``list`` and ``demo``: which environments there are, and what the library does with one."""

from dataclasses import dataclass
from pathlib import Path

from .flags import Command, ImportFlag
from .output import Answer, Table, paths_answer


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List the environments."""

    imports: ImportFlag = None
    """Python file or module to import first, which registers your own environments."""

    def __call__(self) -> Answer:
        from ..environments.registry import catalogue
        from ..runs.trust import import_users

        import_users(self.imports)
        rows = [{"name": entry.name, "summary": entry.summary} for entry in catalogue()]
        return Answer(rows, [Table(rows, texts=("name", "summary"))])


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Learn how a population moves through four rooms, and draw it."""

    out: Path = Path("demo")
    """Directory for the pictures; made if it does not exist."""

    def __call__(self) -> Answer:
        from rich.console import Console

        from ..demo import run

        return paths_answer(run(self.out, console=Console(stderr=self.json)))
