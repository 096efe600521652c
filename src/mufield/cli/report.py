"""``report`` and ``watch``: runs as a page in the browser."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..runs.config import read_config


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one HTML file about runs: curves, flows, calibration, diagnostics, settings.

    The file needs no network and nothing beside it, so it can be sent to others.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of the runs; several are drawn into the same curves."""

    out: Path = Path("report.html")
    """File to write; one that exists is replaced."""

    imports: Annotated[str | None, tyro.conf.arg(name="import")] = None
    """Python file that registers your own system, if it is no longer where it was."""

    def __call__(self) -> int:
        """Write it."""
        for run in self.runs:
            read_config(run)  # raises if there is none, before anything slow is imported
        from .._files import write_bytes
        from ..report.data import collect, make_readers
        from ..report.page import build_page

        data = build_page(collect(make_readers(self.runs, self.imports))).encode()
        self.out.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(self.out, data)
        print(f"{self.out}: {len(data) / 1e6:.2f} MB")
        return 0


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Serve the page of runs while they learn; what is new appears within two seconds.

    A run need not have begun yet. Ctrl-C ends it; the runs do not notice.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of the runs; several are drawn into the same curves."""

    port: int = 8765
    """Port to listen at; 0 for any that is free."""

    host: str = "127.0.0.1"
    """Address to listen at; by default only this computer can see the page."""

    imports: Annotated[str | None, tyro.conf.arg(name="import")] = None
    """Python file that registers your own system, if it is no longer where it was."""

    def __call__(self) -> int:
        """Serve until interrupted."""
        from ..report.server import PageServer

        with PageServer(self.runs, self.host, self.port, self.imports) as server:
            print(f"watch at {server.url} (Ctrl-C ends it)", flush=True)
            try:
                server.serve_forever()
            finally:
                server.watcher.stop()
        return 0
