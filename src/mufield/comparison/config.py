"""What a comparison is to be. No JAX here, so that the command line's help comes at once."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import UserError
from ..runs.config import OptimismName

LEARNERS: dict[str, OptimismName] = {
    "m3ucrl": "hallucinated",
    "greedy": "greedy",
    "thompson": "thompson",
    "bonus": "bonus",
}
"""Contenders that learn a model of the motion, and their kinds of optimism."""

REFERENCES = ("random", "known")
"""Contenders that learn nothing."""

Q_LEARNERS = ("u2mfqlfh", "u2mfqlfh-extended")
"""Contenders that learn a table of Q-values: of the game's own options, of the extended ones."""

CONTENDERS = (*LEARNERS, *REFERENCES, *Q_LEARNERS)

DEFAULT_CONTENDERS = ("m3ucrl", "greedy", "thompson", "random", "known")
"""Those that play in every simulated system."""

EVALUATIONS = 10
"""How often Q-learning is evaluated on its way."""


@dataclass(frozen=True)
class ComparisonConfig:
    """What describes a comparison completely.

    Attributes:
        environment: Name of a registered system.
        contenders: Names of the contenders, in the order of the table.
        seeds: Number of seeds; they are 0, 1, and so on.
        episodes: Episodes of those that learn a model.
        q_episodes: Episodes of Q-learning; a multiple of ten.
        options: Keyword arguments of the system.
        model_options: Settings of the model of all that learn one.
        planner_options: Settings of their planner, mirror ascent.
        imports: A Python file or module to import first, which registers the user's own system.
    """

    environment: str
    contenders: tuple[str, ...] = DEFAULT_CONTENDERS
    seeds: int = 10
    episodes: int = 30
    q_episodes: int = 1_000_000
    options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    planner_options: dict[str, Any] = field(default_factory=dict)
    imports: str | None = None

    def __post_init__(self) -> None:
        _check_names(self.contenders)
        for name in ("seeds", "episodes"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be 1 or more, got {getattr(self, name)}; correct it")
        if self.q_episodes < 1 or self.q_episodes % EVALUATIONS:
            raise UserError(
                f"q_episodes must be a positive multiple of {EVALUATIONS}, because Q-learning is "
                f"evaluated every tenth of them, got {self.q_episodes}; correct it"
            )

    @property
    def evaluate_every(self) -> int:
        """Episodes of Q-learning between two evaluations."""
        return self.q_episodes // EVALUATIONS

    def document(self) -> dict[str, Any]:
        """The configuration as JSON has it."""
        document: dict[str, Any] = json.loads(json.dumps(asdict(self), allow_nan=False))
        return document


def _check_names(names: tuple[str, ...]) -> None:
    there = ", ".join(CONTENDERS)
    if not names:
        raise UserError(f"expected at least one contender, got none; there are {there}")
    for index, name in enumerate(names):
        if name not in CONTENDERS:
            raise UserError(f"no contender is named {name!r}; there are {there}")
        if name in names[:index]:
            raise UserError(f"the contender {name!r} is named twice; name it once")
