"""How each kind of job is computed."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays import Masses
from ..environments.registry import make_system
from ..errors import UserError
from ..fleet.fluid import fluid_plan
from ..fleet.passengers import stay, towards_demand
from ..flow.moves import MoveFlow
from ..io import disk
from ..io.policies import load_policy, save_policy
from ..io.sealed import read_lines
from ..planning.bptt import BPTT
from ..planning.gradient import plan
from ..planning.kinds import Network, Table
from ..planning.mirror import MirrorAscent
from ..policies.base import Profile, checked_profile
from ..policies.tables import random_policy
from ..runs.config import parse_config
from ..runs.layout import policy_path
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
    began = disk.clock()
    figures = KINDS[job.kind](job.settings, directory)
    seconds = figures.pop("seconds", disk.clock() - began)
    write_result(directory, job, figures, seconds)


def _learn(settings: Settings, directory: Path) -> Settings:
    """Learns in a run directory, from its last episode on.

    Its figures are the metrics of all episodes, and those of the best episode step by step.
    """
    run, config = directory / "run", parse_config(settings, str(directory))
    setup = None if disk.kind(run / "config.json") else new_run(run, config, simulated=True)
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
        figures |= _played(settings, load_policy(policy_path(run, best)))
    return figures


def _plan(settings: Settings, directory: Path) -> Settings:
    """Plans deterministic policies with known motion, by gradient ascent."""
    flow, motion = simulated(settings).reveal()
    policy = {"network": Network, "table": Table}[settings["policy"]]()
    ascent = BPTT(steps=settings["steps"], learning_rate=settings["learning_rate"])
    found = plan(flow, motion, policy, ascent=ascent, starts=settings["starts"])
    save_policy(directory / "plan.policy", found.profile)
    return {"upper": None, **_played(settings, found.profile)}


def _mirror(settings: Settings, directory: Path) -> Settings:
    """Plans randomised policies with known motion, and certifies an upper bound of J.

    With settings for a ``table``, also deterministic ones by gradient ascent; the better counts.
    """
    system = simulated(settings)
    points = settings["points"]  # None for any actions of the box
    listed = None if points is None else system.problem.actions.points(points)
    moves = MoveFlow(*system.reveal(), listed)
    ascent = MirrorAscent(sweeps=settings["sweeps"], gap=settings["gap"])
    found = ascent.solve(moves)
    played, upper = _played(settings, found.profile), float(found.upper)
    if table := settings.get("table"):
        other = plan(*system.reveal(), Table(), ascent=BPTT(**table))
        played = max(played, _played(settings, other.profile), key=lambda each: each["value"])
    return {"upper": upper if math.isfinite(upper) else None, **played}


def _unplanned(settings: Settings, directory: Path) -> Settings:
    """Plays a policy that needs no plan: the uniform random one, or what a fleet does."""
    known: dict[str, Any] = {"random": random_policy, "stay": stay, "demand": towards_demand}
    policy = known[settings.get("policy", "random")](simulated(settings).problem)
    return {"upper": None, **_played(settings, policy)}


def _fluid(settings: Settings, directory: Path) -> Settings:
    """Plans by the fluid linear programme, with known motion, and plays the plan."""
    system = simulated(settings)
    moves, tried = (
        MoveFlow(*system.reveal(), system.problem.actions.points(settings[name]))
        for name in ("points", "tried")
    )
    found = fluid_plan(moves, tried=tried)
    return {"upper": found.upper, **_played(settings, found.profile)}


def _own(settings: Settings, directory: Path) -> Settings:
    """Lets a learner of the user's own learn; its figures are the values of J that it returns."""
    names = ("episodes", "agents", "seed")
    learner, episodes = OWN_LEARNERS[settings["learner"]], settings["episodes"]
    values = learner(system_of(settings), **{name: settings[name] for name in names})
    horizon = system_of(settings).problem.horizon
    seen = horizon * settings["agents"] * np.arange(1, episodes + 1)
    if isinstance(values, Mapping):
        seen, values = np.array(list(values), dtype=int), list(values.values())
    found = np.asarray(values, dtype=float)
    if found.shape != seen.shape or not found.size or not np.isfinite(found).all():
        wanted = f"a finite J for each of {episodes} episodes, got the shape {found.shape}"
        give = "return a list of them, or J by the number of moves seen"
        raise UserError(f"expected of {settings['learner']} {wanted}; {give}")
    return {"values": found, "transitions": seen}


KINDS: dict[str, Callable[[Settings, Path], Settings]] = {
    "learn": _learn,
    "plan": _plan,
    "mirror": _mirror,
    "random": _unplanned,
    "fleet": _unplanned,
    "fluid": _fluid,
    "own": _own,
}
"""Functions from settings and directory to figures; a figure ``seconds`` replaces the clock's."""

OWN_LEARNERS: dict[str, Callable[..., Sequence[float] | Mapping[int, float]]] = {}
"""Learners of the user's own by name; `mufield.compare.contender` adds them."""


def system_of(settings: Settings) -> Any:
    """The system that a job's settings describe, built once."""
    options = json.dumps(settings["options"], sort_keys=True)
    return _system(settings["environment"], options, str(jnp.result_type(float)))


# A system holds arrays, so there is one for each number format.
@lru_cache
def _system(name: str, options: str, precision: str) -> Any:
    system = make_system(name, **json.loads(options))
    if system.problem.shocks is not None:
        raise UserError(f"{name!r} has shocks, which comparisons do not know; use mufield.learn")
    return system


def simulated(settings: Settings, who: str = "this job") -> SimulatedSystem:
    """The system of a job's settings; raises, in the name of ``who``, if its flow is unknown."""
    system = system_of(settings)
    if not isinstance(system, SimulatedSystem):
        what = f"{settings['environment']} is a {type(system).__name__}"
        raise UserError(f"{who} needs the flow of a SimulatedSystem, but {what}; leave {who} out")
    return system


def _played(settings: Settings, policy: Any) -> Settings:
    """J of a policy in the true system, and by step the reward and the mean length of actions."""
    system = simulated(settings)
    profile = checked_profile(policy, system.problem)
    rollout = system.evaluate(profile)
    rewards = np.asarray(rollout.rewards)
    sizes = np.asarray(_action_sizes(system.problem.grid, profile, rollout.mass))
    return {"value": float(rollout.value), "rewards": rewards, "action_sizes": sizes}


@eqx.filter_jit
def _action_sizes(grid: Grid, profile: Profile, mass: Masses) -> Float[Array, "steps"]:
    laws = profile.laws(grid, mass[:-1])
    # Lengths before the mean: actions of a randomised policy may cancel each other.
    sizes = jnp.linalg.norm(laws.actions, axis=-1)
    return jnp.einsum("hk,hkm,hkm->h", mass[:-1], laws.weights.astype(mass.dtype), sizes)
