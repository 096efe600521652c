"""``compare``: rivals side by side."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..comparison.config import DEFAULT_CONTENDERS, ComparisonConfig
from ..comparison.result import Result
from .flags import ImportFlag, flag
from .printing import print_table
from .settings import read_pairs

COLUMNS = {
    "contender": "contender",
    "J mean": "mean",
    "min": "min",
    "max": "max",
    "episodes": "episodes",
    "transitions": "transitions",
    "seconds": "seconds",
}
"""What the table shows of a row; notes are longer and stand below."""

OPTIONS = flag("NAME=VALUE ...")


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Compare learners with each other, with a random policy and with known motion.

    Every contender's result is kept in the directory as soon as it is there; the same command,
    after an interruption, goes on from them. Changed settings compute anew what they change.
    """

    environment: Annotated[str, tyro.conf.Positional, flag("ENVIRONMENT")]
    """Name of the environment; `mufield list` shows them."""

    agents: Annotated[str, flag("NAME,NAME,...", ",".join(DEFAULT_CONTENDERS))] = ",".join(
        DEFAULT_CONTENDERS
    )
    """Names of the contenders, with commas between them. m3ucrl, greedy, thompson and bonus learn
    a model, with that kind of optimism; random draws from all actions alike; known plans with the
    true motion; u2mfqlfh and u2mfqlfh-extended are Q-learning, which needs a finite set of moves
    and plays the discrete rooms in place of four-rooms."""

    seeds: int = 10
    """Number of seeds: 0, 1, and so on."""

    episodes: int = 30
    """Episodes of those that learn a model; the mean J of the last five counts."""

    q_episodes: int = 1_000_000
    """Episodes of Q-learning, a multiple of ten; evaluated every tenth, and the last counts."""

    options: Annotated[tuple[str, ...], OPTIONS] = ()
    """Options of the environment, such as horizon=6."""

    model_options: Annotated[tuple[str, ...], OPTIONS] = ()
    """Settings of all learned models, such as members=10 mu=local."""

    planner_options: Annotated[tuple[str, ...], OPTIONS] = ()
    """Settings of these learners' planner, such as sweeps=30."""

    imports: ImportFlag = None
    """Python file or module to import first, which registers your own system."""

    out: Annotated[Path, flag("DIR", "comparison")] = Path("comparison")
    """Directory for comparison.json (all curves), .csv (the table), .png, .pdf and the cache."""

    json: bool = False
    """Print the table as JSON."""

    def __call__(self) -> int:
        """Compare, draw and print."""
        config = self._config()
        # Before anything is computed, in case they are not installed.
        from ..comparison.run import compare
        from ..viz import comparison_figure, save_figure

        try:
            comparison = compare(config, self.out, say=_say)
        except KeyboardInterrupt:
            if self.out.exists():  # else there is no result yet
                _say(f"stopped; the same command goes on from what is in {self.out}")
            raise
        save_figure(comparison_figure(comparison), self.out / "comparison")
        if self.json:
            print(json.dumps(comparison.rows(), indent=2))
        else:
            _print_results(comparison.results, self.out)
        return 0

    def _config(self) -> ComparisonConfig:
        return ComparisonConfig(
            environment=self.environment,
            contenders=tuple(name.strip() for name in self.agents.split(",") if name.strip()),
            seeds=self.seeds,
            episodes=self.episodes,
            q_episodes=self.q_episodes,
            options=read_pairs(self.options, "options"),
            model_options=read_pairs(self.model_options, "model_options"),
            planner_options=read_pairs(self.planner_options, "planner_options"),
            imports=self.imports,
        )


def _say(line: str) -> None:
    """Not on standard output, which is for the result."""
    print(line, file=sys.stderr)


def _print_results(results: Sequence[Result], directory: Path) -> None:
    rows = [{**result.row(), "contender": result.label} for result in results]
    print_table(
        [{name: _cell(row[key]) for name, key in COLUMNS.items()} for row in rows],
        texts=("contender",),
    )
    for result in results:
        if result.remark:
            print(f"{result.label}: {result.note}")
    print(f"curves, table and figure: {directory / 'comparison'}.json, .csv, .png and .pdf")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
