"""``compare``: learners and references side by side."""

from dataclasses import dataclass, fields
from pathlib import Path

from ..compare.comparison import ComparisonConfig
from .flags import Command, EnvironmentArgument, ImportFlag
from .output import Answer, ExitCode, Table, in_percent, say


@dataclass(frozen=True, kw_only=True)
class Compare(Command, ComparisonConfig):
    """Compare learners with each other, with a random policy and with known motion.

    Results are kept in the directory: after an interruption, the same command goes on from the
    last episode. With other settings, only what depends on them is computed again.

    Attributes:
        out: Directory for comparison.json, .csv (the table), .png, .pdf, curves.csv and the jobs.
        on: Where jobs are computed: local, in processes of this machine; ray, on the Ray cluster
            that this machine belongs to, or else on one that is started here; ray://HOST:PORT or
            HOST:PORT, on that cluster.
        workers: Most jobs at a time, one process each; 0 computes in this one; else one a core.
        cores: Cores that each job may use; in this process, all.
    """

    environment: EnvironmentArgument
    imports: ImportFlag = None
    out: Path = Path("comparison")
    on: str = "local"
    workers: int | None = None
    cores: int = 1

    def __post_init__(self) -> None:
        """Leaves the checks to `ComparisonConfig`, so that errors are one line for people."""

    def __call__(self) -> Answer:
        given = {each.name: getattr(self, each.name) for each in fields(ComparisonConfig)}
        config = ComparisonConfig(**given)
        # Imported before anything is computed, in case packages are not installed.
        from ..compare.run import compare
        from ..jobs.processes import make_pool
        from ..viz import comparison_figure, save_figure

        try:
            pool = make_pool(self.on, self.workers, self.cores)
            comparison = compare(config, self.out, pool=pool, say=say)
        except KeyboardInterrupt:
            if self.out.exists():  # else nothing was begun yet
                say(f"stopped; the same command goes on from what is in {self.out}")
            raise
        for problem in comparison.problems:
            say(f"error: {problem}")
        results, rows = comparison.results, comparison.rows()
        shown: list[Table | str] = []
        if results:
            save_figure(comparison_figure(comparison), self.out / "comparison")
            # Notes are too long for a column and stand below the table.
            titles = {"mean": "J mean", "low": "95% from", "high": "to"}
            columns = {titles.get(n, n): n for n in rows[0] if n not in ("seeds", "note")}
            shown = [
                Table(in_percent(rows, "violated"), columns, texts=("contender",)),
                *(f"{result.name}: {result.remark}" for result in results if result.remark),
                *dict.fromkeys(result.counted for result in results if result.counted),
                f"table and figure: {self.out / 'comparison'}.json, .csv, .png and .pdf; tidy "
                f"rows: {self.out / 'curves.csv'}",
            ]
        return Answer(rows, shown, ExitCode.FAULT if comparison.problems else 0)
