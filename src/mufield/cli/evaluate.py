"""``evaluate``: what a policy earns with finitely many agents."""

import shlex
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from .output import Answer, Table, in_percent
from .sources import OfPolicy


@dataclass(frozen=True, kw_only=True)
class Evaluate(OfPolicy):
    """Play a policy with N agents whose mu is their own histogram, and in the limit of many.

    The `loss` is what the limit of many agents earns more. Plans take the flow of the paper, in
    which agents stand at the centres of cells: its loss is the grid's share of the gap between plan
    and agents, the loss of N agents is that of finite N. The limit is computed by a flow that
    follows where in their cells agents stand; without noise there is none, and the plan's stands
    for it.
    Of a run, the policy that all data make best is played. Where the system has
    constraints, `satisfied` is the share of episodes in which the agents satisfy all of them after
    every move, and `margin` the mean of the least margin, as a share of the limit.
    """

    population: tuple[int, ...] = (100, 1000, 10000)
    """Sizes of the populations."""

    episodes: int = 20
    """Episodes of each population."""

    level: float = 0.95
    """Level of the confidence intervals of J."""

    seed: int = 0
    """Seed of the agents."""

    def __call__(self) -> Answer:
        if min(self.population, default=0) < 1 or self.episodes < 2 or not 0 < self.level < 1:
            raise UserError(
                "expected numbers of agents such as 100,1000, at least two episodes and a level "
                f"between 0 and 1, got {self.population}, {self.episodes} and {self.level}"
            )
        source = self.load()
        from ..systems import SimulatedSystem

        system, profile = source.known, source.profile
        if not isinstance(system, SimulatedSystem):
            raise UserError(
                f"{source.environment} is a real system, which cannot be played here; `mufield "
                f"evaluate {shlex.quote(str(self.policy))} SIMULATOR --import FILE` plays the "
                "policy with N agents there, and `mufield export` says what the learned model "
                "expects of it"
            )
        from ..finite.populations import play_populations

        rows = play_populations(
            system,
            profile,
            self.population,
            episodes=self.episodes,
            level=self.level,
            seed=self.seed,
        )
        named = [row | {"population": _name(row)} for row in rows]
        shown: list[Table | str] = [_table(named)]
        if rows[1]["population"] is None:
            shown.append(
                "The loss of the plan's flow is the grid's share of the gap between plan and "
                "agents; the other losses are those of finite N."
            )
        return Answer(rows, shown)


def _table(rows: list[dict[str, Any]]) -> Table:
    columns = {"population": "population", "J": "value", "from": "low", "to": "high"}
    more = ("loss", "satisfied", "margin")
    columns |= {name: name for name in more if name in rows[0]}
    return Table(in_percent(rows, "satisfied", "margin"), columns, texts=("population",))


def _name(row: dict[str, Any]) -> str:
    if row["by"] == "cell centres":
        return "as planned: all at their cells' centres"
    size = row["population"]
    return "limit of many agents" if size is None else f"{size:,} agents"
