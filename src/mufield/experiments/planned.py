"""Jobs that know the motion: plans, brackets of the optimum, and the random policy."""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..flow.moves import MoveFlow
from ..planning.gradient import BPTT, BPTTResult
from ..planning.mirror import MirrorAscent
from ..planning.plan import plan
from ..planning.starts import Network, Table
from ..policies.base import Profile
from ..policies.files import load_policy, read_info, save_policy
from ..policies.tables import random_policy
from .shown import Shown, show, system_of


def plan_job(settings: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Plans with known motion; the policy is kept, and taken up again if it is there."""
    path, began = directory / "plan.policy", time.perf_counter()
    if not path.exists():
        result = _plan(settings)
        values = [float(value) for value in np.asarray(result.values)]
        save_policy(
            path,
            result.profile,
            info={"values": values, "seconds": time.perf_counter() - began},
        )
    return _figures(show(settings, planned_policy(directory)), directory)


def planned_policy(directory: Path) -> Profile:
    """The policy of a plan's job."""
    profile = load_policy(directory / "plan.policy")
    assert isinstance(profile, Profile)
    return profile


def random_job(settings: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Runs the uniform random policy."""
    began = time.perf_counter()
    shown = show(settings, random_policy(system_of(settings).problem))
    figures = {"value": shown.value, "rewards": shown.rewards, "action_sizes": shown.action_sizes}
    return figures | {"seconds": time.perf_counter() - began}


def bracket_job(settings: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Certifies between which values the optimum over randomised policies lies."""
    began = time.perf_counter()
    system = system_of(settings)
    flow, motion = system.reveal()
    moves = MoveFlow(flow, motion, system.problem.actions.points(settings["points"]))
    ascent = MirrorAscent(sweeps=settings["sweeps"], bracket=settings["bracket"])
    result = ascent.solve(moves)
    shown = show(settings, result.profile)
    upper = float(result.upper)
    return {
        "value": float(result.value),
        "upper": upper if math.isfinite(upper) else None,
        "sweeps": len(result.history),
        "rewards": shown.rewards,
        "seconds": time.perf_counter() - began,
    }


def _plan(settings: dict[str, Any]) -> BPTTResult:
    flow, motion = system_of(settings).reveal()
    policy = Network() if settings["policy"] == "network" else Table()
    ascent = BPTT(steps=settings["steps"] or policy.steps, learning_rate=policy.learning_rate)
    return plan(flow, motion, policy, ascent=ascent, starts=settings["seeds"])


def _figures(shown: Shown, directory: Path) -> dict[str, Any]:
    info = read_info(directory / "plan.policy")
    return {
        "value": shown.value,
        "values": info["values"],
        "rewards": shown.rewards,
        "action_sizes": shown.action_sizes,
        "seconds": info["seconds"],
    }
