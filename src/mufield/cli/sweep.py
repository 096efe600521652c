"""``sweep``: many runs with other settings, and which of these matter."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from ..runs.sweep import Effect
from ..runs.sweep import Sweep as SweepFiles
from ..runs.trials import read_trials, short, value_text
from .flags import ImportFlag, Jobs
from .output import Answer, ExitCode, Table, say


@dataclass(frozen=True, kw_only=True)
class Sweep(Jobs):
    """Learn with many settings, and see which of them matter.

    Runs are kept in the directory: after an interruption, the same command goes on from the last
    episodes, and a sweep with more values computes only what is new.
    """

    example: ClassVar[str] = """\
a sweep's file is that of a run (see `mufield train --help`) with the settings that differ:

  # sweep.toml
  episodes = 10

  [environment]
  name = "four-rooms"
  horizon = 10

  [grid]                            # every combination of these
  seed = [0, 1, 2]
  model.name = ["gp", "ensemble"]

  [random]                          # each with every one of 5 draws of these
  draws = 5
  environment.noise_std = { low = 0.1, high = 0.4 }
  optimism = ["hallucinated", "greedy"]
"""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """TOML file with the settings, and those that differ. An example stands below."""

    imports: ImportFlag = None
    """Python file or module to import first, which registers your own system."""

    out: Path = Path("sweep")
    """Directory for the runs, sweep.json, and sweep.png and .pdf."""

    def __call__(self) -> Answer:
        trials = read_trials(self.file, self.imports)
        # Imported before anything is computed, in case packages are not installed.
        from ..jobs.sweep import sweep
        from ..viz import save_figure, sweep_figure

        say(f"{len(trials)} runs")
        try:
            found, problems = sweep(trials, self.out, pool=self.pool(), say=say)
        except KeyboardInterrupt:
            if self.out.exists():  # else nothing was begun yet
                say(f"stopped; the same command goes on from what is in {self.out}")
            raise
        for problem in problems:
            say(f"error: {problem}")
        answer = sweep_answer(found, ExitCode.FAULT if problems else 0)
        if not found.complete:
            return answer
        save_figure(sweep_figure(found), self.out / "sweep")
        files = f"runs: {self.out / 'jobs'}; picture: {self.out / 'sweep'}.png and .pdf"
        return Answer(answer.document, [*(answer.shown or ()), files], answer.code)


def sweep_answer(sweep: SweepFiles, code: int = 0) -> Answer:
    """All runs of a sweep, sorted by J, and which setting matters."""
    cells = [
        {"J": row["final"], "best": row["best"], "episodes": row["episodes"]}
        | {short(name): _text(run.values, name) for name in sweep.names}
        | {"state": row["state"], "run": row["directory"]}
        for run in sweep.runs
        for row in [run.row()]
    ]
    texts = (*map(short, sweep.names), "state", "run")
    most_rows = 30  # on a terminal
    shown: list[Table | str] = [Table(cells[:most_rows], texts=texts, spare=("best", "episodes"))]
    if len(cells) > most_rows:
        shown.append(f"and {len(cells) - most_rows} more; --json shows all")
    shown += ["", "which setting matters, by its share of the differences in J:"]
    texts = ("setting", "best value", "worst value")
    shown.append(Table([_effect(each) for each in sweep.effects()], texts=texts))
    return Answer(sweep.document(), shown, code)


def _text(values: dict[str, Any], name: str) -> str | None:
    return value_text(values[name]) if name in values else None


def _effect(effect: Effect) -> dict[str, Any]:
    best, worst = (effect.groups[0], effect.groups[-1]) if effect.groups else (None, None)
    return {
        "setting": short(effect.name),
        "share": "too few runs" if effect.share is None else f"{effect.share:.0%}",
        "best value": best and value_text(best.value),
        "mean J": best and best.mean,
        "worst value": worst and value_text(worst.value),
        "its mean J": worst and worst.mean,
    }
