"""``report`` and ``watch``: runs as a page in the browser."""

import sys
from dataclasses import dataclass
from pathlib import Path

from ..runs.config import read_config
from ..runs.sweep import is_sweep, read_sweep
from .output import Answer
from .sources import OfRuns, of_sweeps


@dataclass(frozen=True, kw_only=True)
class Report(OfRuns):
    """Write one HTML file about runs: curves, flows, calibration, diagnostics, settings.

    The file needs no network and nothing beside it, so it can be sent to others. Of a sweep it
    shows all settings with what they earned, and the best runs.
    """

    out: Path = Path("report.html")
    """File to write; one that exists is replaced."""

    def __call__(self) -> Answer:
        sweeps = [read_sweep(run) for run in self.runs if is_sweep(run)]
        # Runs of a sweep, those with the highest J, that the page shows one by one.
        most_of_sweep = 4
        runs = of_sweeps(self.runs, most_of_sweep)
        for run in runs:
            read_config(run)  # raises if there is no run, before anything slow is imported
        from ..io.atomic import write_bytes
        from ..report.data import collect, make_readers
        from ..report.page import build_page

        readers = make_readers(runs, self.imports)
        labels = {run.summary.directory: run.label for each in sweeps for run in each.runs}
        for reader in readers:
            reader.name = labels.get(reader.directory, reader.name)
        document = collect(readers)
        document["sweeps"] = [
            {"name": each.directory.resolve().name, **each.document()} for each in sweeps
        ]
        data = build_page(document).encode()
        self.out.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(self.out, data)
        line = f"{self.out}: {len(data) / 1e6:.2f} MB"
        return Answer({"files": [str(self.out)], "bytes": len(data)}, [line])


@dataclass(frozen=True, kw_only=True)
class Watch(OfRuns):
    """Serve the page of runs while they learn; what is new appears within two seconds.

    A run need not have begun yet. Ctrl-C ends it; the runs do not notice.
    """

    port: int = 8765
    """Port to listen at; 0 for any that is free."""

    host: str = "127.0.0.1"
    """Address to listen at; by default only this computer can see the page."""

    def __call__(self) -> None:
        from ..report.server import PageServer

        with PageServer(self.runs, self.host, self.port, self.imports) as server:
            line = f"watch at {server.url} (Ctrl-C ends it)"
            Answer({"url": server.url}, [line]).show(as_json=self.json)
            sys.stdout.flush()
            try:
                server.serve_forever()
            finally:
                server.watcher.stop()
