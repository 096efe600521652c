"""The jobs that the figures need, for a budget. No JAX here, so that lists come at once."""

from dataclasses import asdict
from typing import Any

from ..runs.config import RunConfig
from .budget import Budget
from .jobs import Job

MOTIONS = ("free", "congested")
STARTS = ("ergodic", "normal", "uniform")
FORMULATIONS = ("standard", "extended")
NOISES = (0.0, 1.0)
"""Of the discrete rooms: none, and what OpenSpiel's game of the same rooms has by default."""

PLANNERS = ("mirror", "network")
SWARM_SCALE = 0.3
POINTS = 9
"""Moves on each axis of the action box, for brackets of the optimum."""

BRACKET, DISCRETE_BRACKET = 0.03, 0.002

_SECONDS = {
    "mirror": 75.0,
    "network": 140.0,
    "free": 150.0,
    "congested": 220.0,
    "plan": 45.0,
    "free plan": 15.0,
    "congested plan": 50.0,
    "bracket": 30.0,
    "qlearning": 30.0,
    "random": 5.0,
}
"""What jobs take in full on one core of two."""


def rooms_runs(budget: Budget, planner: str) -> tuple[Job, ...]:
    """M3-UCRL in the four rooms, one run for each seed: randomised policies, or networks."""
    mirror = planner == "mirror"
    seeds = budget.rooms_seeds if mirror else budget.network_seeds
    scale = {} if mirror else {"scale": budget.network_scale}
    return tuple(
        _learn(
            f"rooms-{planner}-{seed}",
            planner,
            budget,
            environment="four-rooms",
            options=budget.rooms,
            seed=seed,
            episodes=budget.rooms_episodes if mirror else budget.network_episodes,
            model="ensemble",
            model_options=budget.ensemble_options,
            planner=planner,
            planner_options=budget.rooms_options if mirror else budget.network_options,
            **scale,
        )
        for seed in range(seeds)
    )


def swarm_run(budget: Budget, motion: str, start: str) -> Job:
    """M3-UCRL with a Gaussian process on a swarm.

    One agent's noise is at least twice its farthest move in a step; only the prior that actions
    steer keeps the model from taking it for a drift.
    """
    mu = "local" if motion == "congested" else "none"
    return _learn(
        f"swarm-{motion}-{start}",
        motion,
        budget,
        environment="swarm",
        options={"motion": motion, "initial": start} | budget.swarm,
        seed=0,
        episodes=budget.swarm_episodes,
        model="gp",
        model_options={"prior": "steered", "exact_points": 0, "mu": mu},
        planner="table",
        planner_options={"steps": budget.swarm_steps},
        scale=SWARM_SCALE,
        first="random",
    )


def known_rooms(budget: Budget, policy: str) -> Job:
    """A plan with known motion in the four rooms: networks, the paper's class, or a table."""
    settings = {
        "policy": policy,
        "steps": budget.known_steps,
        "seeds": budget.known_seeds if policy == "network" else 1,
    }
    return _job(f"known-rooms-{policy}", "plan", "plan", budget, _rooms(budget) | settings)


def known_swarm(budget: Budget, motion: str, start: str) -> Job:
    """A table planned with known motion on a swarm."""
    settings = {"policy": "table", "steps": budget.known_swarm_steps, "seeds": 1}
    system = {
        "environment": "swarm",
        "options": {"motion": motion, "initial": start} | budget.swarm,
    }
    name = f"known-swarm-{motion}-{start}"
    return _job(name, "plan", f"{motion} plan", budget, system | settings)


def random_rooms(budget: Budget) -> Job:
    """The uniform random policy in the four rooms."""
    return _job("random-rooms", "random", "random", budget, _rooms(budget))


def rooms_bracket(budget: Budget) -> Job:
    """The certified interval of the optimum in the four rooms, over randomised policies."""
    settings = {"sweeps": budget.sweeps, "bracket": BRACKET, "points": POINTS}
    return _job("bracket-rooms", "bracket", "bracket", budget, _rooms(budget) | settings)


def printed_box(budget: Budget) -> Job:
    """The same with the printed action box [0, 1]^2, to show what it cannot reach."""
    settings = {"sweeps": budget.sweeps, "bracket": BRACKET, "points": POINTS}
    rooms = {
        "environment": "four-rooms",
        "options": budget.rooms | {"action_box": "printed"},
    }
    return _job("bracket-rooms-printed", "bracket", "bracket", budget, rooms | settings)


def discrete_bracket(budget: Budget, noise: float) -> Job:
    """The certified optimum of the discrete rooms; in 64 bits, as its interval is narrow."""
    settings = {
        **_discrete(budget, "standard", noise),
        "sweeps": budget.discrete_sweeps,
        "bracket": DISCRETE_BRACKET,
        "points": None,
        "precision": "float64",
    }
    return _job(f"bracket-discrete-noise-{noise:g}", "bracket", "bracket", budget, settings)


def q_training(budget: Budget, formulation: str, noise: float) -> Job:
    """U2-MF-QL-FH in the discrete rooms, with the paper's rates."""
    settings = {
        **_discrete(budget, formulation, noise),
        "episodes": budget.q_episodes,
        "evaluate_every": budget.q_every,
        "seed": 0,
        "rates": {"omega_q": 0.7, "omega_nu": 0.05, "epsilon": 0.15},
    }
    name = f"qlearning-{formulation}-noise-{noise:g}"
    return _job(name, "qlearning", "qlearning", budget, settings)


def _rooms(budget: Budget) -> dict[str, Any]:
    return {"environment": "four-rooms", "options": budget.rooms}


def _discrete(budget: Budget, formulation: str, noise: float) -> dict[str, Any]:
    shared = {name: budget.rooms[name] for name in ("horizon", "drawing") if name in budget.rooms}
    return {
        "environment": "discrete-rooms",
        "options": {"actions": formulation, "noise_intensity": noise} | shared,
    }


def _learn(name: str, pace: str, budget: Budget, **settings: Any) -> Job:
    config = RunConfig(**settings, precision=budget.precision)
    return _job(name, "learn", pace, budget, asdict(config))


def _job(name: str, kind: Any, pace: str, budget: Budget, settings: dict[str, Any]) -> Job:
    full = {"precision": budget.precision} | settings
    return Job(name, kind, full, seconds=budget.effort * _SECONDS[pace])
