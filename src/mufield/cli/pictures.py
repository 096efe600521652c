"""``plot`` and ``animate``: pictures of runs."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ..errors import UserError
from .flags import ImportFlag, flag
from .printing import prepare
from .waiting import waiting

if TYPE_CHECKING:
    from ..runs.store import RunStore

Format = Literal["png", "pdf"]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Draw what runs learned: J, diagnostics, and the population in one episode."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, flag("RUN")]
    """Directories of runs; those that differ only in their seed share a curve."""

    out: Path = Path("plots")
    """Directory for the pictures; made if it does not exist."""

    format: tuple[Format, ...] = ("png",)
    """Kinds of files."""

    episode: Annotated[str, flag("{best,last,N}", "best")] = "best"
    """Episode whose distributions are drawn."""

    imports: ImportFlag = None
    """Where your own Python file is now, if it is not where it was when the run began."""

    json: bool = False
    """Print the files' names as JSON."""

    def __call__(self) -> int:
        """Read the runs and draw them."""
        if not self.runs:
            raise UserError("expected the directory of a run, got none; `mufield runs` lists them")
        with waiting("drawing"):
            from ..viz.run_pictures import save_figures

            paths = []
            for name, figure in self._figures():
                self.out.mkdir(parents=True, exist_ok=True)
                paths += save_figures(figure, self.out / name, self.format)
        return _print_paths(paths, as_json=self.json)

    def _figures(self) -> Iterator[tuple[str, Any]]:
        """The figures with their names."""
        from ..runs.groups import RunMetrics, group_runs
        from ..viz.run_curves import diagnostics_figure, learning_figure

        stores = [_open(run) for run in self.runs]
        groups = group_runs([RunMetrics(s.directory, s.config, s.rows) for s in stores])
        yield "learning", learning_figure(groups)
        yield "diagnostics", diagnostics_figure(groups)
        for store, name in zip(stores, _names(self.runs), strict=True):
            figure = self._fields(store)
            if figure is not None:
                yield name, figure

    def _fields(self, store: "RunStore") -> Any:
        from ..runs.build import build_problem
        from ..viz.run_flows import flow_figure, run_flow

        number = _episode(store, self.episode)
        prepare(store.directory)  # the runs may differ in their number format
        problem = build_problem(store.config, self.imports)
        if problem.grid.dim == 3:
            print(f"note: {store.directory} is in 3 dimensions, not drawn", file=sys.stderr)
            return None
        return flow_figure(run_flow(store, problem, number))


@dataclass(frozen=True, kw_only=True)
class Animate:
    """Make a film of what the population did in one episode, with the policy as arrows."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""

    episode: Annotated[str, flag("{best,last,N}", "best")] = "best"
    """Which episode."""

    out: Path = Path("flow.mp4")
    """File to write, .mp4 or .gif."""

    imports: ImportFlag = None
    """Where your own Python file is now, if it is not where it was when the run began."""

    json: bool = False
    """Print the file's name as JSON."""

    def __call__(self) -> int:
        """Read the episode and draw it step by step."""
        with waiting("reading the run"):
            from .._progress import progress_bar
            from ..runs.build import build_problem
            from ..viz.run_flows import animate_run, run_flow

            store = _open(self.run)
            number = _episode(store, self.episode)
            flow = run_flow(store, build_problem(store.config, self.imports), number)
        with progress_bar("drawing", len(flow.masses), shown=True) as report:
            path = animate_run(self.out, flow, lambda done, total: report(done))
        if path != self.out:
            print(f"note: {path} instead of MP4, which needs imageio-ffmpeg", file=sys.stderr)
        return _print_paths([path], as_json=self.json)


def _open(run: Path) -> "RunStore":
    """Reads a run that has at least one episode."""
    prepare(run)
    from ..runs.store import RunStore

    store = RunStore(run)
    if not store.told:
        raise UserError(f"{run} has no episode yet, so there is nothing to draw")
    return store


def _episode(store: "RunStore", which: str) -> int:
    """The number that a user means."""
    if which in ("best", "last"):
        return store.best if which == "best" else store.episodes
    if not which.isdigit() or not 1 <= int(which) <= store.episodes:
        raise UserError(
            f"--episode: expected best, last or a number from 1 to {store.episodes}, got {which}"
        )
    return int(which)


def _names(runs: Sequence[Path]) -> list[str]:
    """Names for the pictures of each run."""
    if len(runs) == 1:
        return ["fields"]
    names = [run.resolve().name for run in runs]
    return [
        f"fields-{name}" if names.count(name) == 1 else f"fields-{place}-{name}"
        for place, name in enumerate(names, start=1)
    ]


def _print_paths(paths: Sequence[Path], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps([str(path) for path in paths], indent=2))
    else:
        for path in paths:
            print(f"wrote {path}")
    return 0
