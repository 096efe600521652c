"""``evaluate``: what a policy earns with finitely many agents, and when things go wrong."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..errors import UserError
from .flags import ImportFlag
from .policy_source import load_source
from .printing import print_table
from .settings import read_pairs

if TYPE_CHECKING:
    from ..policies.base import Profile
    from ..systems import SimulatedSystem

STRESS: dict[str, dict[str, float]] = {
    "mu one step old": {"stale": 1},
    "mu five steps old": {"stale": 5},
    "5% of the agents lost at each step": {"lost": 0.05},
    "half of the noise": {"noise_factor": 0.5},
    "twice the noise": {"noise_factor": 2.0},
}
"""What may go wrong on the street."""

CONFIDENCE = 0.95
"""Level of the confidence intervals of J."""

BLIND = "This policy does not look at mu, so that an old one changes nothing."


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Play a policy with N agents whose mu is their own histogram, beside the limit of many."""

    policy: Annotated[Path, tyro.conf.Positional]
    """A policy file, or the directory of a run, whose best policy is taken."""

    environment: Annotated[str | None, tyro.conf.Positional] = None
    """Name of the environment; that of the run if a run is given."""

    options: tuple[str, ...] = ()
    """Options of the environment, such as horizon=10."""

    imports: ImportFlag = None
    """Python file or module to import first, which registers your own environment."""

    agents: str = "100,1000,10000"
    """Numbers of agents."""

    episodes: int = 20
    """Episodes with each number of agents."""

    stress: bool = True
    """Also what an old mu, lost agents and noise misjudged by a factor of two cost, with the
    largest number of agents; --no-stress leaves it out."""

    seed: int = 0
    """Seed of the agents."""

    json: bool = False
    """Print JSON instead of a table."""

    def __call__(self) -> int:
        """Play and print."""
        sizes = self._sizes()
        system, profile = self._load()
        rows = _rows(system, profile, sizes, self.episodes, self.seed, self.stress)
        if self.json:
            print(json.dumps(rows, indent=2))
        else:
            print_table(rows, texts=("population",))
            if self.stress and _is_blind(profile):
                print(BLIND)
        return 0

    def _sizes(self) -> list[int]:
        try:
            sizes = [int(text) for text in self.agents.split(",")]
        except ValueError:
            sizes = [0]
        if min(sizes) < 1 or self.episodes < 2:
            raise UserError(
                "expected numbers of agents such as 100,1000 and at least two episodes, got "
                f"{self.agents!r} and {self.episodes}"
            )
        return sizes

    def _load(self) -> "tuple[SimulatedSystem, Profile]":
        options = read_pairs(self.options, "options")
        source = load_source(self.policy, self.environment, options, self.imports)
        from ..systems import SimulatedSystem

        if not isinstance(source.known, SimulatedSystem):
            raise UserError(
                f"{source.environment} cannot be played with N agents: expected a "
                f"SimulatedSystem, whose motion is known, got {type(source.known).__name__}"
            )
        return source.known, source.profile


def _rows(
    system: "SimulatedSystem",
    profile: "Profile",
    sizes: list[int],
    episodes: int,
    seed: int,
    stress: bool,
) -> list[dict[str, Any]]:
    import jax

    from .._progress import progress_bar
    from ..finite.simulate import FiniteSystem

    limit = float(system.evaluate(profile).value)
    rows: list[dict[str, Any]] = [
        {"population": "limit of many agents", "J": limit, "from": None, "to": None, "loss": 0.0}
    ]
    cases: list[tuple[str, int, dict[str, Any]]] = [
        (f"{size:,} agents", size, {}) for size in sizes
    ]
    if stress:
        most = max(sizes)
        cases += [
            (f"{most:,} agents, {name}", most, options)
            for name, options in STRESS.items()
            if _is_possible(system, options)
        ]
    with progress_bar("evaluating", len(cases), shown=True) as report:
        for number, (name, size, options) in enumerate(cases, start=1):
            world = FiniteSystem.of(system, size, **options)
            key = jax.random.fold_in(jax.random.key(seed), number)
            rows.append(_row(name, world.evaluate(profile, key, episodes=episodes).values, limit))
            report(number, J=rows[-1]["J"])
    return rows


def _is_possible(system: "SimulatedSystem", options: dict[str, float]) -> bool:
    """Whether there is such noise: that of discrete rooms is a probability."""
    from ..space.noise import NeighbourNoise

    noise = system.problem.noise
    factor = options.get("noise_factor", 1.0)
    return not isinstance(noise, NeighbourNoise) or noise.intensity * factor <= 1


def _is_blind(profile: "Profile") -> bool:
    """Whether it is known that a policy does not look at mu."""
    from ..finite.blocks import BY_CELL
    from ..policies.network import NetworkPolicy

    policy = profile.at(0)
    blind_network = isinstance(policy, NetworkPolicy) and policy.ahead
    return blind_network or isinstance(policy, BY_CELL)


def _row(name: str, values: Any, limit: float) -> dict[str, Any]:
    import numpy as np
    from scipy.special import stdtrit

    found = np.asarray(values, dtype=float)
    mean, error = float(found.mean()), float(found.std(ddof=1)) / math.sqrt(len(found))
    # Student's distribution, because the spread is estimated from the same few episodes.
    width = float(stdtrit(len(found) - 1, 0.5 + CONFIDENCE / 2)) * error
    return {
        "population": name,
        "J": mean,
        "from": mean - width,
        "to": mean + width,
        "loss": limit - mean,
    }
