"""``demo``: what the library does, in a minute or three."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..errors import UserError
from .flags import Jobs
from .output import Answer, paths_answer


@dataclass(frozen=True, kw_only=True)
class Demo(Jobs):
    """Show a population flow through four rooms, or a fleet of taxis, and draw what happened."""

    what: Annotated[
        Literal["rooms", "fleet"], tyro.conf.Positional, tyro.conf.arg(metavar="[{rooms,fleet}]")
    ] = "rooms"
    """The four rooms, or Manhattan's taxis on a morning."""

    out: Path | None = None
    """Directory for the pictures and for what is computed; made if it does not exist. By default
    demo, for the fleet demo-fleet."""

    def __call__(self) -> Answer:
        from rich.console import Console

        console = Console(stderr=self.json)
        if self.what == "fleet":
            if (self.on, self.workers, self.cores) != (Demo.on, Demo.workers, Demo.cores):
                raise UserError(
                    "demo fleet is one computation in this process, got --on, --workers or "
                    "--cores; leave them out"
                )
            from ..demo.fleet import run as run_fleet

            return paths_answer(run_fleet(self.out or Path("demo-fleet"), console=console))
        from ..demo import run

        return paths_answer(run(self.out or Path("demo"), pool=self.pool(), console=console))
