"""``list``, ``runs``, ``show`` and ``watch``: environments, runs, and what these learned."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..errors import UserError
from ..runs.config import read_config
from .flags import Command, ImportFlag
from .output import Answer, Table, metrics_answer, print_notes, waiting
from .sources import RunsCommand, prepare, read_run

if TYPE_CHECKING:
    from ..runs.files import RunFiles


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List the environments."""

    imports: ImportFlag = None

    def __call__(self) -> Answer:
        from ..environments.registry import catalogue
        from ..runs.surroundings import import_users

        import_users(self.imports)
        rows = [{"name": entry.name, "summary": entry.summary} for entry in catalogue()]
        return Answer(rows, [Table(rows, texts=("name", "summary"))])


@dataclass(frozen=True, kw_only=True)
class Runs(Command):
    """List runs: what they are, how far they have come and what they earned.

    With --json also all settings, and when they began.

    Attributes:
        directories: Directories to look in and below.
    """

    directories: Annotated[tuple[Path, ...], tyro.conf.Positional] = (Path("."), Path("runs"))

    def __call__(self) -> Answer:
        from ..runs.files import find_runs, summarise

        places = self.directories
        for directory in places if places != Runs.directories else ():  # those need not exist
            if not directory.is_dir():
                raise UserError(f"there is no directory {directory}; name one to look in")
        runs = [summarise(run) for run in find_runs(places)]
        rows = sorted(runs, key=lambda row: str(row["directory"]))
        if not rows:
            return Answer(rows, [f"no run in {' or '.join(map(str, places))}"])
        texts = ("directory", "environment", "optimism", "state")
        return Answer(rows, [Table([_cells(row) for row in rows], texts=texts)])


@dataclass(frozen=True, kw_only=True)
class Show(RunsCommand):
    """Show what runs learned: the metrics of one as a table, or a page, pictures or a film.

    The page has curves, flows, calibration, diagnostics and settings; it needs no network and
    nothing beside it, so it can be sent to others. The film is of the population in one episode,
    with the policy as arrows.

    Attributes:
        out: File to write: .html for the page; .mp4 or .gif for the film of one run; .png or .pdf
            for pictures, whose names begin with this one: of J, of the population, and with shocks,
            of what their paths were expected to earn.
        episode: Episode of the film and of the population's pictures.
    """

    out: Path | None = None
    episode: Annotated[str, tyro.conf.arg(metavar="{best-episode,last,N}")] = "best-episode"

    def __call__(self) -> Answer:
        out = self.out
        if out is None:
            return _metrics(self._one("metrics"))
        for run in self.runs:
            read_config(run)  # raises if there is no run, before anything slow is imported
        ways = {".html": self._page, ".mp4": self._film, ".gif": self._film}
        ways |= {".png": self._pictures, ".pdf": self._pictures}
        if out.suffix not in ways:
            raise UserError(f"--out: expected a file {', '.join(ways)}, got {out}")
        if not self.runs:
            raise UserError("expected the directory of a run, got none; `mufield runs` lists them")
        out.parent.mkdir(parents=True, exist_ok=True)
        names = [str(path) for path in ways[out.suffix](out)]
        return Answer({"files": names}, [f"wrote {name}" for name in names])

    def _one(self, what: str) -> Path:
        if len(self.runs) != 1:
            remedy = "name one, or compare several with --out page.html"
            raise UserError(f"expected one run for the {what}, got {len(self.runs)}; {remedy}")
        return self.runs[0]

    def _page(self, out: Path) -> list[Path]:
        from ..io.atomic import write_bytes
        from ..report.data import collect, make_readers
        from ..report.page import build_page

        write_bytes(out, build_page(collect(make_readers(self.runs, self.imports))).encode())
        return [out]

    def _film(self, out: Path) -> list[Path]:
        with waiting("reading the run"):
            from .._progress import progress_bar
            from ..runs.build import build_problem
            from ..viz.runs import animate_run, run_flow

            run = _with_episodes(self._one("film"))
            number = run.episode_number(self.episode)
            problem = build_problem(run.config, self.imports)
            flow = run_flow(run, problem, number)
        with progress_bar("drawing", len(flow.masses), shown=True) as report:
            path = animate_run(out, problem, flow, lambda done, total: report(done))
        if path != out:
            print_notes([f"{path} instead of MP4, which needs imageio-ffmpeg"])
        return [path]

    def _pictures(self, out: Path) -> list[Path]:
        with waiting("drawing"):
            from ..viz.curves import save_figure
            from ..viz.runs import learning_figure, run_paths

            runs = [_with_episodes(run) for run in self.runs]
            figures: dict[str, Any] = {"learning": learning_figure(runs)}
            for place, run in enumerate(runs, start=1):
                which = "" if len(runs) == 1 else f"-{place}"
                figures[f"population{which}"] = self._population(run)
                figures[f"paths{which}"] = run_paths(run, run.episode_number(self.episode))
            paths: list[Path] = []
            for name, figure in figures.items():
                if figure is not None:
                    stem = out.with_name(f"{out.stem}-{name}")
                    paths += save_figure(figure, stem, [out.suffix[1:]])
        return paths

    def _population(self, run: "RunFiles") -> Any:
        from ..runs.build import build_problem
        from ..viz.runs import flow_figure, run_flow

        number = run.episode_number(self.episode)
        prepare(run.directory)  # runs may differ in their number format
        problem = build_problem(run.config, self.imports)
        if problem.grid.dim == 3:
            print_notes([f"{run.directory} is in 3 dimensions, not drawn"])
            return None
        return flow_figure(problem, run_flow(run, problem, number))


@dataclass(frozen=True, kw_only=True)
class Watch(RunsCommand):
    """Serve the page of runs while they learn; what is new appears within two seconds.

    A run need not have begun yet. Ctrl-C ends it; the runs do not notice.

    Attributes:
        port: Port to listen at; 0 for any that is free.
        host: Address to listen at; by default only this computer can see the page.
    """

    port: int = 8765
    host: str = "127.0.0.1"

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


def _metrics(directory: Path) -> Answer:
    from ..runs.files import RunFiles

    files = RunFiles(directory)
    answer = metrics_answer(files.rows, directory)
    if not files.logs:
        return answer
    logs = "a log" if len(files.logs) == 1 else f"{len(files.logs)} logs"
    count = f"{files.historical:,} historical transitions from {logs}"
    return replace(answer, shown=[*(answer.shown or []), count])


def _with_episodes(directory: Path) -> "RunFiles":
    run = read_run(directory)
    if not run.episodes:
        raise UserError(f"{directory} has no episode yet, so there is nothing to draw")
    return run


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a run, shortened for the table."""
    target = "?" if row["target"] is None else row["target"]
    return {name: row[name] for name in ("directory", "environment", "optimism", "seed")} | {
        "episodes": f"{row['episodes']}/{target}",
        "best J": row["best"],
        "last J": row["last"],
        "state": f"{row['state']}: {row['reason']}" if row["reason"] else row["state"],
    }
