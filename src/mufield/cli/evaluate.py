"""``evaluate``: what a policy earns with finitely many agents, also when things go wrong."""

import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .output import Answer, Table, in_percent
from .sources import OfPolicy

if TYPE_CHECKING:
    from ..policies.base import Profile
    from ..systems import SimulatedSystem
    from .sources import PolicySource


@dataclass(frozen=True, kw_only=True)
class Evaluate(OfPolicy):
    """Play a policy with N agents whose mu is their own histogram, and in the limit of many.

    The `loss` is what the limit of many agents earns more. Plans take the flow of the paper, in
    which agents stand at the centres of cells: its loss is the grid's share of the gap between plan
    and agents, the loss of N agents is that of finite N. The limit is computed by a flow that
    follows where in their cells agents stand; without noise there is none, and the plan's stands
    for it.
    Of a run, the policy that all data make best is played. A real system cannot be played: of its
    runs, the answer is what the learned model expects, with an interval. Where the system has
    constraints, `satisfied` is the share of episodes in which the agents satisfy all of them after
    every move, and `margin` the mean of the least margin, as a share of the limit.
    """

    population: tuple[int, ...] = (100, 1000, 10000)
    """Sizes of the populations."""

    episodes: int = 20
    """Episodes of each population."""

    stress: bool = True
    """Also show what an old mu, lost agents and noise misjudged by a factor of two cost the
    largest population."""

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
            return self._by_model(source)
        rows = self._rows(system, profile)
        named = [row | {"population": _name(row)} for row in rows]
        shown: list[Table | str] = [_table(named)]
        if rows[1]["population"] is None:
            shown.append(
                "The loss of the plan's flow is the grid's share of the gap between plan and "
                "agents; the other losses are those of finite N."
            )
        if self.stress and not profile.sees_mu:
            shown.append("This policy does not look at mu, so that an old one changes nothing.")
        return Answer(rows, shown)

    def _by_model(self, source: "PolicySource") -> Answer:
        """What the learned model expects of a policy whose system cannot be played here."""
        name = shlex.quote(str(self.policy))
        remedy = f"`mufield evaluate {name} SIMULATOR --import FILE` plays it with N agents there"
        if "expected" not in source.identity:
            raise UserError(
                f"{source.environment} is a real system, which cannot be played here; {remedy}, "
                "and `mufield evaluate RUN` says what the learned model expects of the policy that "
                "all data of a run make best"
            )
        facts = {name: source.identity[name] for name in ("expected", "lower", "upper")}
        row = {"population": None, "stress": None, "value": facts["expected"], "loss": None}
        row |= {"low": facts["lower"], "high": facts["upper"], "by": "learned model"}
        shown = {"population": "limit of many agents, by the learned model"}
        line = f"{source.environment} is a real system, which cannot be played here; {remedy}."
        return Answer([row], [_table([row | shown]), line])

    def _rows(self, system: "SimulatedSystem", profile: "Profile") -> list[dict[str, Any]]:
        import jax

        from .._progress import progress_bar
        from ..finite.system import FiniteSystem
        from ..space.move import GaussianNoise

        noise, constraints = system.problem.noise, system.problem.constraints
        flows = {"within cells" if noise.centred else "cell centres": system.evaluate(profile)}
        if isinstance(noise, GaussianNoise) and all(noise.std):
            flows["within cells"] = system.within_cells().evaluate(profile)
        limit = float([*flows.values()][-1].value)
        rows: list[dict[str, Any]] = []
        for by, flow in flows.items():
            row = dict.fromkeys(("population", "stress", "low", "high")) | {"by": by}
            row |= {"value": float(flow.value), "loss": limit - float(flow.value)}
            if constraints is not None:
                # Plans satisfy constraints up to a thousandth of the limit.
                row |= _constrained(constraints.along(flow.mass).min()[None], tolerance=1e-3)
            rows.append(row)
        cases: list[tuple[int, str | None]] = [(size, None) for size in self.population]
        # What may go wrong in reality, as options of `FiniteSystem`.
        stress: dict[str, dict[str, float]] = {
            "mu one step old": {"stale": 1},
            "mu five steps old": {"stale": 5},
            "5% of the agents lost at each step": {"lost": 0.05},
            "half of the noise": {"noise_factor": 0.5},
            "twice the noise": {"noise_factor": 2.0},
        }
        if self.stress:
            most = max(self.population)
            cases += [(most, name) for name, o in stress.items() if _is_possible(system, o)]
        with progress_bar("evaluating", len(cases), shown=True) as report:
            for number, (size, name) in enumerate(cases, start=1):
                options: Any = {} if name is None else stress[name]
                world = FiniteSystem.of(system, size, **options)
                key = jax.random.fold_in(jax.random.key(self.seed), number)
                played = world.evaluate(profile, key, episodes=self.episodes)
                found = _summary(played.values, limit, self.level)
                if played.margin is not None:
                    found |= _constrained(played.margin)
                rows.append({"population": size, "stress": name, "by": "agents", **found})
                report(number, J=found["value"])
        return rows


def _table(rows: list[dict[str, Any]]) -> Table:
    columns = {"population": "population", "J": "value", "from": "low", "to": "high"}
    more = ("loss", "satisfied", "margin")
    columns |= {name: name for name in more if name in rows[0]}
    return Table(in_percent(rows, "satisfied", "margin"), columns, texts=("population",))


def _name(row: dict[str, Any]) -> str:
    size, stress = row["population"], row["stress"]
    if row["by"] == "cell centres":
        return "as planned: all at their cells' centres"
    name = "limit of many agents" if size is None else f"{size:,} agents"
    return f"{name}, {stress}" if stress else name


def _is_possible(system: "SimulatedSystem", options: dict[str, float]) -> bool:
    """Whether the noise can be that strong: in discrete rooms it is a probability."""
    from ..space.move import NeighbourNoise

    noise = system.problem.noise
    factor = options.get("noise_factor", 1.0)
    return not isinstance(noise, NeighbourNoise) or noise.intensity * factor <= 1


def _summary(values: Any, limit: float, level: float) -> dict[str, float]:
    """The mean of J over episodes, its confidence interval, and what the limit earns more."""
    import numpy as np
    from scipy.special import stdtrit

    found = np.asarray(values, dtype=float)
    mean, error = float(found.mean()), float(found.std(ddof=1)) / math.sqrt(len(found))
    # Student's distribution, because the spread is estimated from the same few episodes.
    width = float(stdtrit(len(found) - 1, 0.5 + level / 2)) * error
    return {"value": mean, "low": mean - width, "high": mean + width, "loss": limit - mean}


def _constrained(margins: Any, tolerance: float = 1e-6) -> dict[str, float]:
    """How often constraints are satisfied, and the mean of the episodes' least margins.

    The tolerance is a share of the limit; its default is for rounding.
    """
    import numpy as np

    found = np.asarray(margins, dtype=float)
    return {"satisfied": float(np.mean(found >= -tolerance)), "margin": float(found.mean())}
