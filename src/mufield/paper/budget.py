"""How much is computed: as much as in the paper, or a little of everything."""

from dataclasses import dataclass, field
from typing import Any

from ..runs.config import ModelName, Precision, RunConfig


@dataclass(frozen=True)
class Budget:
    """How much is computed for each figure; the defaults are the paper's.

    Attributes:
        name: ``"full"`` or ``"quick"``; every title of a quick figure says so.
        rooms_seeds: Seeds of the four rooms with randomised policies.
        rooms_options: Settings of their planner.
        network_seeds: Seeds of the four rooms with networks, the paper's class of policies.
        network_options: Settings of their planner.
        model: The model of the motion in the four rooms, of both classes.
        model_options: Its settings.
        swarm_steps: Gradient steps of each plan of the swarms.
        known_steps: Gradient steps of plans with known motion; None for the planner's default.
        known_starts: Networks that are trained with known motion; the best counts.
        known_swarm_steps: Gradient steps of the swarms' plans with known motion.
        sweeps: Most sweeps of mirror ascent for an interval around the optimum.
        discrete_sweeps: The same in the discrete rooms.
        q_episodes: Episodes of Q-learning.
        q_every: Episodes between two of its evaluations.
        rooms: Options of the four rooms; others keep their defaults.
        swarm: Options of the swarms.
        fine_swarm: Options of a swarm with steps 16 times shorter, nearer to the closed form's
            continuous time.
        films: Number of first episodes of which there is a film each.
        effort: Share of the full budget's seconds that a job takes, for estimates.
    """

    name: str = "full"
    rooms_seeds: int = 10
    rooms_episodes: int = 30
    rooms_options: dict[str, Any] = field(default_factory=dict)
    network_seeds: int = 10
    network_episodes: int = 30
    network_options: dict[str, Any] = field(default_factory=dict)
    model: ModelName = RunConfig.model
    model_options: dict[str, Any] = field(default_factory=dict)
    swarm_episodes: int = 20
    swarm_steps: int = 60
    known_steps: int | None = None
    known_starts: int = 5
    known_swarm_steps: int = 200
    sweeps: int = 2000
    discrete_sweeps: int = 4000
    q_episodes: int = 10_000_000
    q_every: int = 1_000_000
    precision: Precision = "float32"
    rooms: dict[str, Any] = field(default_factory=dict)
    swarm: dict[str, Any] = field(default_factory=dict)
    fine_swarm: dict[str, Any] = field(default_factory=lambda: {"horizon": 3200, "cells": 400})
    films: int = 10
    effort: float = 1.0


QUICK = Budget(
    name="quick",
    rooms_seeds=2,
    rooms_episodes=10,
    rooms_options={"sweeps": 30},
    network_seeds=2,
    network_episodes=3,
    network_options={"steps": 30, "table_steps": 40, "fit_steps": 100, "sweeps": 20},
    swarm_episodes=3,
    swarm_steps=30,
    known_steps=60,
    known_starts=1,
    known_swarm_steps=100,
    sweeps=200,
    discrete_sweeps=400,
    q_episodes=200_000,
    q_every=20_000,
    # Steps of the same length, but fewer of them, and wider cells.
    swarm={"horizon": 100, "duration": 0.5, "cells": 50},
    effort=0.2,
)
