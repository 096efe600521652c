"""``demo``: what the library does, in a minute."""

from dataclasses import dataclass
from pathlib import Path

from .flags import Jobs
from .output import Answer, paths_answer


@dataclass(frozen=True, kw_only=True)
class Demo(Jobs):
    """Show a population flow through four rooms, and draw what happened."""

    out: Path = Path("demo")
    """Directory for the pictures and for what is computed; made if it does not exist."""

    def __call__(self) -> Answer:
        from rich.console import Console

        from ..demo import run

        console = Console(stderr=self.json)
        return paths_answer(run(self.out, workers=self.workers, console=console))
