"""How each kind of job is computed, and what a policy earns in the true system."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _types
from ..environments.registry import make
from ..errors import UserError
from ..fleet.fluid import fluid_plan
from ..flow.moves import MoveFlow
from ..flow.rollout import Rollout
from ..io.policies import load_policy, save_policy
from ..io.sealed import read_lines
from ..planning.bptt import BPTT
from ..planning.mirror import MirrorAscent
from ..planning.plan import plan
from ..planning.starts import Network, Table
from ..policies.base import Profile, as_profile
from ..policies.tables import random_policy
from ..runs.config import parse_config
from ..runs.learn import learn_run, new_run
from ..runs.surroundings import import_users, set_precision
from ..space.grid import Grid
from ..systems import SimulatedSystem
from .job import Job, write_result

Settings = dict[str, Any]


def compute(job: Job, directory: Path) -> None:
    """Computes a job, or goes on with it, and writes its result.

    JAX is set to the job's number format, so only programs may call it.
    """
    set_precision(job.settings["precision"])
    import_users(job.settings["imports"])
    began = time.perf_counter()
    figures = KINDS[job.kind](job.settings, directory)
    seconds = figures.pop("seconds", time.perf_counter() - began)
    write_result(directory, job, figures, seconds)


def _learn(settings: Settings, directory: Path) -> Settings:
    """Learns in a run directory, from its last episode on.

    Its figures are the metrics of all episodes, and those of the best episode step by step.
    """
    run, config = directory / "run", parse_config(settings, str(directory))
    setup = None if (run / "config.json").exists() else new_run(run, config, simulated=True)
    rows = learn_run(run, config.episodes, setup=setup, progress=False)
    values = np.array([row["value"] for row in rows])
    best = int(values.argmax()) + 1
    timings = read_lines(run / "timings.jsonl")
    figures = {
        "rows": rows,
        "values": values,
        "best_episode": best,
        # Summed over interruptions.
        "seconds": sum(row.get(name, 0.0) for row in timings for name in ("fit", "plan", "run")),
    }
    if isinstance(system_of(settings), SimulatedSystem):
        figures |= play(settings, episode_policy(directory, best)).figures()
    return figures


def _plan(settings: Settings, directory: Path) -> Settings:
    """Plans deterministic policies with known motion, by gradient ascent."""
    flow, motion = simulated(settings).reveal()
    policy = {"network": Network, "table": Table}[settings["policy"]]()
    ascent = BPTT(steps=settings["steps"], learning_rate=settings["learning_rate"])
    found = plan(flow, motion, policy, ascent=ascent, starts=settings["starts"])
    save_policy(directory / "plan.policy", found.profile)
    outcome = play(settings, found.profile)
    return {"value": outcome.value, "upper": None, **outcome.figures()}


def _mirror(settings: Settings, directory: Path) -> Settings:
    """Plans randomised policies with known motion, and certifies an upper bound of J.

    With settings for a ``table``, also deterministic ones by gradient ascent; the better counts.
    """
    system = simulated(settings)
    moves = MoveFlow(*system.reveal(), system.problem.actions.points(settings["points"]))
    ascent = MirrorAscent(sweeps=settings["sweeps"], bracket=settings["bracket"])
    found = ascent.solve(moves)
    outcome, upper = play(settings, found.profile), float(found.upper)
    if table := settings.get("table"):
        other = plan(*system.reveal(), Table(), ascent=BPTT(**table))
        outcome = max(outcome, play(settings, other.profile), key=lambda each: each.value)
    return {
        "value": outcome.value,
        "upper": upper if math.isfinite(upper) else None,
        **outcome.figures(),
    }


def _random(settings: Settings, directory: Path) -> Settings:
    """Plays the uniform random policy."""
    outcome = play(settings, random_policy(simulated(settings).problem))
    return {"value": outcome.value, "upper": None, **outcome.figures()}


def _fleet(settings: Settings, directory: Path) -> Settings:
    """Plays what a fleet does without a plan."""
    from ..baselines.fleet import stay, towards_demand

    policy = {"stay": stay, "demand": towards_demand}[settings["policy"]]
    outcome = play(settings, policy(simulated(settings).problem))
    return {"value": outcome.value, "upper": None, **outcome.figures()}


def _fluid(settings: Settings, directory: Path) -> Settings:
    """Plans by the fluid linear programme, with known motion, and plays the plan."""
    system = simulated(settings)
    moves, tried = (
        MoveFlow(*system.reveal(), system.problem.actions.points(settings[name]))
        for name in ("points", "tried")
    )
    found = fluid_plan(moves, tried=tried)
    outcome = play(settings, found.profile)
    return {"value": outcome.value, "upper": found.upper, **outcome.figures()}


def _train(settings: Settings, directory: Path) -> Settings:
    """Trains by Q-learning, from the last checkpoint on."""
    from ..baselines.training import train

    found = train(
        simulated(settings),
        **settings["rates"],
        episodes=settings["episodes"],
        evaluate_every=settings["evaluate_every"],
        seed=settings["seed"],
        checkpoint=directory / "training.safetensors",
        progress=False,
    )
    columns = vars(found.curve)
    return {**columns, "entries": int(found.state.q.size), "seconds": float(columns["seconds"][-1])}


KINDS: dict[str, Callable[[Settings, Path], Settings]] = {
    "learn": _learn,
    "plan": _plan,
    "mirror": _mirror,
    "random": _random,
    "fleet": _fleet,
    "fluid": _fluid,
    "qlearning": _train,
}
"""Functions from settings and directory to figures; a figure ``seconds`` replaces the clock's."""


def episode_policy(directory: Path, episode: int) -> Profile:
    """The policy of an episode of a learning job."""
    return _profile(directory / "run" / "policies" / f"{episode:04d}.policy")


def planned_policy(directory: Path) -> Profile:
    """The policy of a planning job."""
    return _profile(directory / "plan.policy")


def _profile(path: Path) -> Profile:
    profile = load_policy(path)
    assert isinstance(profile, Profile)
    return profile


def system_of(settings: Settings) -> Any:
    """The system that a job's settings describe, built once."""
    options = json.dumps(settings["options"], sort_keys=True)
    return _system(settings["environment"], options, str(jnp.result_type(float)))


# A system holds arrays, so there is one for each number format.
@lru_cache
def _system(name: str, options: str, precision: str) -> Any:
    return make(name, **json.loads(options))


def simulated(settings: Settings, who: str = "this job") -> SimulatedSystem:
    """The system of a job's settings; raises, in the name of ``who``, if its flow is unknown."""
    system = system_of(settings)
    if not isinstance(system, SimulatedSystem):
        raise UserError(
            f"{who} needs the flow of a SimulatedSystem, but {settings['environment']} is a "
            f"{type(system).__name__}; leave {who} out"
        )
    return system


@dataclass(frozen=True, eq=False)
class Outcome:
    """One episode of the whole population in the true system, under the policy `profile`."""

    system: SimulatedSystem
    profile: Profile
    rollout: Rollout

    @property
    def grid(self) -> Grid:
        """The space."""
        return self.system.problem.grid

    @property
    def mass(self) -> _types.Masses:
        """The distributions mu_0, ..., mu_H."""
        return self.rollout.mass

    @property
    def value(self) -> float:
        """J."""
        return float(self.rollout.value)

    @property
    def mean_actions(self) -> Float[Array, "steps cells action_dim"]:
        """Mean action in every cell at each step, for arrows."""
        return self.system.mean_actions(self.profile, self.mass)

    def figures(self) -> dict[str, np.ndarray]:
        """At each step, the reward and the mean length of the population's actions."""
        sizes = _action_sizes(self.grid, self.profile, self.mass)
        return {"rewards": np.asarray(self.rollout.rewards), "action_sizes": np.asarray(sizes)}


def play(settings: Settings, policy: Any) -> Outcome:
    """Runs a policy in the system of a job's settings."""
    system = simulated(settings)
    profile = as_profile(policy, system.problem.horizon)
    return Outcome(system, profile, system.evaluate(profile))


@eqx.filter_jit
def _action_sizes(grid: Grid, profile: Profile, mass: _types.Masses) -> Float[Array, "steps"]:
    laws = profile.laws(grid, mass[:-1])
    # Lengths before the mean: actions of a randomised policy may cancel each other.
    sizes = jnp.linalg.norm(laws.actions, axis=-1)
    return jnp.einsum("hk,hkm,hkm->h", mass[:-1], laws.weights.astype(mass.dtype), sizes)
