"""The configuration of a comparison. No JAX here, so that the command line's help comes at once."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import UserError
from ..runs.config import ModelName


@dataclass(frozen=True)
class ComparisonConfig:
    """What describes a comparison completely."""

    environment: str
    """Name of the environment; `mufield list` shows them."""

    contenders: tuple[str, ...] = ("usual",)
    """Names in the order of the table; docs/results.md lists them. m3ucrl:ensemble names the model,
    too. A learner of your own goes by the name that it has in the file of --import. usual stands
    for m3ucrl, greedy, thompson, random and known; in manhattan for stay, demand, m3ucrl, known and
    fluid."""

    seeds: tuple[int, ...] = tuple(range(10))
    """Seeds of all that learn."""

    episodes: int = 30
    """Episodes of those that learn a model; the mean J of the last third of them counts, at most
    of five."""

    agents: int = 1
    """Agents that those that learn a model track in each episode."""

    model: ModelName | None = None
    """Family of the learned models, of contenders that do not name their own; by default gp, on
    nodes counts."""

    options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment, such as horizon=6."""

    model_options: dict[str, Any] = field(default_factory=dict)
    """Settings of the learned models, such as inducing=128,mu=local; those of another family than
    the one named with --model keep their defaults."""

    planner_options: dict[str, Any] = field(default_factory=dict)
    """Settings of mirror ascent, the planner of these learners, such as sweeps=30; points, the
    moves on each axis, count for known, too."""

    imports: str | None = None
    """Python file to import first, which registers your own system."""

    def __post_init__(self) -> None:
        if self.contenders == ("usual",):
            usual: tuple[str, ...] = ("m3ucrl", "greedy", "thompson", "random", "known")
            if self.environment == "manhattan":
                usual = ("stay", "demand", "m3ucrl", "known", "fluid")
            object.__setattr__(self, "contenders", usual)
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
