"""``plot`` and ``animate``: pictures of runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UserError
from ..runs.sweep import is_sweep, read_sweep
from .flags import EpisodeFlag
from .output import Answer, paths_answer, print_notes, waiting
from .sources import OfRun, OfRuns, of_sweeps, prepare, read_run

if TYPE_CHECKING:
    from ..runs.files import RunFiles


@dataclass(frozen=True, kw_only=True)
class Plot(OfRuns):
    """Draw what runs learned: J, diagnostics, and the population in one episode.

    Runs that differ only in their seed share a curve. Of a sweep, draw what settings earned,
    which of them matter, and the best run.
    """

    out: Path = Path("plots")
    """Directory for the pictures; made if it does not exist."""

    format: tuple[Literal["png", "pdf"], ...] = ("png",)
    """Kinds of files, such as png,pdf."""

    episode: EpisodeFlag = "best-episode"
    """Episode whose distributions are drawn."""

    def __call__(self) -> Answer:
        if not self.runs:
            raise UserError("expected the directory of a run, got none; `mufield runs` lists them")
        with waiting("drawing"):
            from ..viz.curves import save_figure

            paths: list[Path] = []
            for name, figure in self._figures():
                self.out.mkdir(parents=True, exist_ok=True)
                paths += save_figure(figure, self.out / name, self.format)
        return paths_answer(paths)

    def _figures(self) -> Iterator[tuple[str, Any]]:
        """The figures with the names of their files."""
        from ..runs.overview import RunMetrics, group_runs
        from ..viz.runs import diagnostics_figure, learning_figure

        for directory in filter(is_sweep, self.runs):
            from ..viz.sweep import sweep_figure

            several = "" if len(self.runs) == 1 else f"-{directory.resolve().name}"
            yield f"sweep{several}", sweep_figure(read_sweep(directory))
        chosen = of_sweeps(self.runs, 1)
        runs = [_with_episodes(run) for run in chosen]
        groups = group_runs([RunMetrics(r.directory, r.config, r.rows) for r in runs])
        yield "learning", learning_figure(groups)
        yield "diagnostics", diagnostics_figure(groups)
        for run, name in zip(runs, _names(chosen), strict=True):
            figure = self._fields(run)
            if figure is not None:
                yield name, figure

    def _fields(self, run: "RunFiles") -> Any:
        from ..runs.build import build_problem
        from ..viz.runs import flow_figure, run_flow

        number = run.episode_number(self.episode)
        prepare(run.directory)  # runs may differ in their number format
        problem = build_problem(run.config, self.imports)
        if problem.grid.dim == 3:
            print_notes([f"{run.directory} is in 3 dimensions, not drawn"])
            return None
        return flow_figure(run_flow(run, problem, number))


@dataclass(frozen=True, kw_only=True)
class Animate(OfRun):
    """Make a film of what the population did in one episode, with the policy as arrows."""

    episode: EpisodeFlag = "best-episode"
    """Which episode."""

    out: Path = Path("flow.mp4")
    """File to write, .mp4 or .gif."""

    def __call__(self) -> Answer:
        with waiting("reading the run"):
            from .._progress import progress_bar
            from ..runs.build import build_problem
            from ..viz.runs import animate_run, run_flow

            run = _with_episodes(self.run)
            number = run.episode_number(self.episode)
            flow = run_flow(run, build_problem(run.config, self.imports), number)
        with progress_bar("drawing", len(flow.masses), shown=True) as report:
            path = animate_run(self.out, flow, lambda done, total: report(done))
        if path != self.out:
            print_notes([f"{path} instead of MP4, which needs imageio-ffmpeg"])
        return paths_answer([path])


def _with_episodes(directory: Path) -> "RunFiles":
    """Reads a run that has at least one episode."""
    run = read_run(directory)
    if not run.episodes:
        raise UserError(f"{directory} has no episode yet, so there is nothing to draw")
    return run


def _names(runs: Sequence[Path]) -> list[str]:
    """A file name for the picture of each run."""
    if len(runs) == 1:
        return ["fields"]
    names = [run.resolve().name for run in runs]
    return [
        f"fields-{name}" if names.count(name) == 1 else f"fields-{place}-{name}"
        for place, name in enumerate(names, start=1)
    ]
