"""``compare``: rivals side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..comparison.config import DEFAULT_CONTENDERS, ComparisonConfig
from ..comparison.result import Result
from .flags import Command, EnvironmentArgument, ImportFlag
from .output import Answer, Table, say

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


@dataclass(frozen=True, kw_only=True)
class Compare(Command):
    """Compare learners with each other, with a random policy and with known motion.

    Every contender's result is kept in the directory as soon as it is there; the same command,
    after an interruption, goes on from them. Changed settings compute anew what they change.
    """

    environment: EnvironmentArgument
    """Name of the environment; `mufield list` shows them."""

    contenders: tuple[str, ...] = DEFAULT_CONTENDERS
    """Names of the contenders. m3ucrl, greedy, thompson and bonus learn
    a model, with that kind of optimism; random draws from all actions alike; known plans with the
    true motion; u2mfqlfh and u2mfqlfh-extended are Q-learning, which needs a finite set of moves
    and plays the discrete rooms in place of four-rooms."""

    seeds: int = 10
    """Number of seeds: 0, 1, and so on."""

    episodes: int = 30
    """Episodes of those that learn a model; the mean J of the last five counts."""

    q_episodes: int = 1_000_000
    """Episodes of Q-learning, a multiple of ten; evaluated every tenth, and the last counts."""

    options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment, such as horizon=6."""

    model_options: dict[str, Any] = field(default_factory=dict)
    """Settings of all learned models, such as members=10,mu=local."""

    planner_options: dict[str, Any] = field(default_factory=dict)
    """Settings of these learners' planner, such as sweeps=30."""

    imports: ImportFlag = None
    """Python file or module to import first, which registers your own system."""

    out: Path = Path("comparison")
    """Directory for comparison.json (all curves), .csv (the table), .png, .pdf and the cache."""

    def __call__(self) -> Answer:
        config = self._config()
        # Before anything is computed, in case they are not installed.
        from ..comparison.run import compare
        from ..viz import comparison_figure, save_figure

        try:
            comparison = compare(config, self.out, say=say)
        except KeyboardInterrupt:
            if self.out.exists():  # else there is no result yet
                say(f"stopped; the same command goes on from what is in {self.out}")
            raise
        save_figure(comparison_figure(comparison), self.out / "comparison")
        return Answer(comparison.rows(), _shown(comparison.results, self.out))

    def _config(self) -> ComparisonConfig:
        return ComparisonConfig(
            environment=self.environment,
            contenders=self.contenders,
            seeds=self.seeds,
            episodes=self.episodes,
            q_episodes=self.q_episodes,
            options=self.options,
            model_options=self.model_options,
            planner_options=self.planner_options,
            imports=self.imports,
        )


def _shown(results: Sequence[Result], directory: Path) -> list[Table | str]:
    rows = [{**result.row(), "contender": result.label} for result in results]
    cells = [{name: _cell(row[key]) for name, key in COLUMNS.items()} for row in rows]
    return [
        Table(cells, texts=("contender",)),
        *(f"{result.label}: {result.note}" for result in results if result.remark),
        f"curves, table and figure: {directory / 'comparison'}.json, .csv, .png and .pdf",
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
