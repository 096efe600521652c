"""``compare``: learners and references side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ..compare.config import ComparisonConfig, contenders_of, split
from ..compare.result import Comparison, Result
from .flags import EnvironmentArgument, ImportFlag, Jobs
from .output import Answer, ExitCode, Table, in_percent, say


@dataclass(frozen=True, kw_only=True)
class Compare(Jobs, ComparisonConfig):
    """Compare learners with each other, with a random policy and with known motion.

    Results are kept in the directory: after an interruption, the same command goes on from the
    last episode. With other settings, only what depends on them is computed again.
    """

    environment: EnvironmentArgument
    imports: ImportFlag = None

    out: Path = Path("comparison")
    """Directory for comparison.json (all curves), .csv (the table), .png, .pdf and the jobs."""

    def __post_init__(self) -> None:
        """Leaves the checks to `ComparisonConfig`, so that errors are one line for people."""

    def __call__(self) -> Answer:
        config = ComparisonConfig(
            **{f.name: getattr(self, f.name) for f in fields(ComparisonConfig)}
        )
        # Imported before anything is computed, in case packages are not installed.
        from ..compare.run import compare
        from ..viz import comparison_figure, save_figure

        try:
            comparison = compare(config, self.out, pool=self.pool(), say=say)
        except KeyboardInterrupt:
            if self.out.exists():  # else nothing was begun yet
                say(f"stopped; the same command goes on from what is in {self.out}")
            raise
        for problem in comparison.problems:
            say(f"error: {problem}")
        shown: list[Table | str] = []
        if comparison.results:
            save_figure(comparison_figure(comparison), self.out / "comparison")
            shown = _shown(comparison, self.out)
        return Answer(comparison.rows(), shown, ExitCode.FAULT if comparison.problems else 0)


def _counted(results: Sequence[Result]) -> list[str]:
    """Which episodes of those that learn a model count; they all have as many."""
    learners = contenders_of("learner", "constrained")
    models = [each for each in results if split(each.name)[0] in learners]
    last = {result.last: result.episodes for result in models}
    return [
        f"J of a learner is its mean over episodes {episodes - count + 1} to {episodes}"
        if count > 1
        else f"J of a learner is that of its last episode, {episodes}"
        for count, episodes in last.items()
    ]


def _shown(comparison: Comparison, directory: Path) -> list[Table | str]:
    results, rows = comparison.results, comparison.rows()
    labels = [row | {"contender": each.label} for row, each in zip(rows, results, strict=True)]
    # Notes are too long for a column and stand below the table.
    columns = {"J mean" if name == "mean" else name: name for name in rows[0] if name != "note"}
    return [
        Table(in_percent(labels, "violated"), columns, texts=("contender",)),
        *(f"{result.label}: {result.note}" for result in results if result.remark),
        *_counted(results),
        f"curves, table and figure: {directory / 'comparison'}.json, .csv, .png and .pdf",
    ]
