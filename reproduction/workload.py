"""The jobs that the paper's figures need, for a budget."""

from dataclasses import replace
from typing import Any

from mufield.jobs.job import Job, learning_job, system_job
from mufield.planning.kinds import Network, Table
from mufield.runs.config import RunConfig

from . import q_training
from .paper import Budget, Cases


def rooms_runs(budget: Budget, planner: str) -> tuple[Job, ...]:
    """M3-UCRL in the four rooms, one run for each seed: randomised policies, or networks.

    In the full budget nothing else is chosen: the model and its band are the library's defaults.
    """
    mirror = planner == "mirror"
    settings: dict[str, Any] = {
        "environment": "four-rooms",
        "options": budget.rooms,
        "model": budget.model,
        "model_options": budget.model_options,
        "planner": planner,
        "planner_options": budget.rooms_options if mirror else budget.network_options,
        "episodes": budget.rooms_episodes if mirror else budget.network_episodes,
    }
    seeds = range(budget.rooms_seeds if mirror else budget.network_seeds)
    return tuple(_run(f"rooms-{planner}-{seed}", budget, seed=seed, **settings) for seed in seeds)


def swarm_run(budget: Budget, motion: str, start: str) -> Job:
    """M3-UCRL with a Gaussian process on a swarm.

    An agent's noise is at least twice its farthest move in a step. The control-affine prior keeps
    the model from taking noise for a drift.
    """
    mu = "local" if motion == "congested" else "none"
    return _run(
        f"swarm-{motion}-{start}",
        budget,
        environment="swarm",
        options={"motion": motion, "initial": start} | budget.swarm,
        episodes=budget.swarm_episodes,
        model="gp",
        model_options={"prior": "control affine", "mu": mu},
        planner="table",
        planner_options={"steps": budget.swarm_steps},
        scale=0.3,
        first="random",
    )


def known_rooms(budget: Budget, policy: str) -> Job:
    """A plan with known motion in the four rooms: networks, the paper's class, or a table."""
    default = Network() if policy == "network" else Table()
    settings = {
        "policy": policy,
        "steps": budget.known_steps or default.steps,
        "learning_rate": default.learning_rate,
        "starts": budget.known_starts if policy == "network" else 1,
    }
    return _job(f"known-rooms-{policy}", "plan", budget, "four-rooms", budget.rooms, settings)


def known_swarm(budget: Budget, motion: str, start: str) -> Job:
    """A table planned with known motion on a swarm."""
    steps, rate = budget.known_swarm_steps, Table().learning_rate
    settings = {"policy": "table", "steps": steps, "learning_rate": rate, "starts": 1}
    options = {"motion": motion, "initial": start} | budget.swarm
    name = f"known-swarm-{motion}-{start}"
    return _job(name, "plan", budget, "swarm", options, settings)


def random_rooms(budget: Budget) -> Job:
    """The uniform random policy in the four rooms."""
    return _job("random-rooms", "random", budget, "four-rooms", budget.rooms, {})


def rooms_bracket(budget: Budget, *, printed: bool = False) -> Job:
    """The certified interval of the optimum in the four rooms, over randomised policies.

    With ``printed``, actions are of the printed box [0, 1]^2, to show what it cannot reach.
    """
    name = "bracket-rooms-printed" if printed else "bracket-rooms"
    options = budget.rooms | ({"action_box": "printed"} if printed else {})
    settings = {"sweeps": budget.sweeps, "gap": 0.03, "points": Cases.points}
    return _job(name, "mirror", budget, "four-rooms", options, settings)


def discrete_bracket(budget: Budget, noise: float) -> Job:
    """The certified optimum of the discrete rooms; in 64 bits, because its interval is narrow."""
    name, options = f"bracket-discrete-noise-{noise:g}", _discrete(budget, "standard", noise)
    settings = {"sweeps": budget.discrete_sweeps, "gap": 0.002, "points": Cases.points}
    precise = replace(budget, precision="float64")
    return _job(name, "mirror", precise, "discrete-rooms", options, settings)


def train_q(budget: Budget, formulation: str, noise: float) -> Job:
    """U2-MF-QL-FH in the discrete rooms, with the paper's rates."""
    name = f"qlearning-{formulation}-noise-{noise:g}"
    options = _discrete(budget, formulation, noise)
    settings = q_training.job_settings(budget.q_episodes, budget.q_every)
    return _job(name, q_training.KIND, budget, "discrete-rooms", options, settings)


def _discrete(budget: Budget, formulation: str, noise: float) -> dict[str, Any]:
    shared = {name: budget.rooms[name] for name in ("horizon", "drawing") if name in budget.rooms}
    return {"actions": formulation, "noise_intensity": noise} | shared


def swarm_jobs(budget: Budget, motion: str, start: str) -> tuple[Job, Job]:
    """A swarm's run, and the plan with known motion."""
    return swarm_run(budget, motion, start), known_swarm(budget, motion, start)


def _run(name: str, budget: Budget, **settings: Any) -> Job:
    config = RunConfig(**settings, greedy_fallback=False, judge=False, precision=budget.precision)
    return learning_job(name, config)


def _job(
    name: str,
    kind: str,
    budget: Budget,
    environment: str,
    options: dict[str, Any],
    settings: dict[str, Any],
) -> Job:
    return system_job(name, kind, environment, options, precision=budget.precision, **settings)
