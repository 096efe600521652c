"""The configuration of a comparison. No JAX here, so that the command line's help comes at once."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import UserError
from ..runs.config import ModelName


@dataclass(frozen=True)
class ComparisonConfig:
    """What describes a comparison completely.

    Attributes:
        environment: Name of the environment; `mufield list` shows them.
        contenders: Names in the order of the table; docs/results.md lists them. m3ucrl:ensemble
            names the model, too. A learner of your own goes by its name in the imported file.
            usual stands for m3ucrl, greedy, thompson, random and known, in manhattan for stay,
            demand, m3ucrl, known and fluid; others may stand beside it.
        seeds: Seeds of all that learn.
        episodes: Episodes of those that learn a model; the mean J of the last third of them counts,
            at most of five.
        agents: Agents that those that learn a model track in each episode.
        model: Model of contenders that do not name their own; by default gp, on nodes counts.
        options: Options of the environment, such as horizon=6.
        model_options: Settings of the learned models, such as inducing=128,mu=local; those of
            another family than the one named with --model keep their defaults.
        planner_options: Settings of mirror ascent, the planner of these learners, such as
            sweeps=30; points, the moves on each axis, count for known, too.
        imports: Python file with your own systems and contenders; it is executed.
    """

    environment: str
    contenders: tuple[str, ...] = ("usual",)
    seeds: tuple[int, ...] = tuple(range(10))
    episodes: int = 30
    agents: int = 1
    model: ModelName | None = None
    options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    planner_options: dict[str, Any] = field(default_factory=dict)
    imports: str | None = None

    def __post_init__(self) -> None:
        usual = ["m3ucrl", "greedy", "thompson", "random", "known"]
        if self.environment == "manhattan":
            usual = ["stay", "demand", "m3ucrl", "known", "fluid"]
        named = [
            each for name in self.contenders for each in (usual if name == "usual" else [name])
        ]
        object.__setattr__(self, "contenders", tuple(named))
        _check_list("contender", self.contenders)
        _check_list("seed", self.seeds)
        if min(self.episodes, self.agents) < 1 or min(self.seeds) < 0:
            got = f"{self.episodes}, {self.agents} and {min(self.seeds)}"
            raise UserError(f"expected 1 or more episodes and agents, no negative seed, got {got}")

    def document(self) -> dict[str, Any]:
        """The configuration as JSON."""
        return json.loads(json.dumps(asdict(self), allow_nan=False))


def _check_list(what: str, given: tuple[Any, ...]) -> None:
    if not given:
        raise UserError(f"expected at least one {what}, got none; name one")
    for index, name in enumerate(given):
        if name in given[:index]:
            raise UserError(f"the {what} {name!r} is named twice; name it once")
