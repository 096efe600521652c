"""What the paper computed and what it reports; how much of it is computed here."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mufield.runs.config import ModelName, Precision, RunConfig


class Paper:
    """Numbers that the paper reports, and how near ours must come to count as the same.

    Attributes:
        learned, known: J in the four rooms after 30 episodes, and with known motion. The paper
            prints no noise, so neither can be set beside a J of ours; their ratio can.
        near_known: Percent of the plan with known motion from which learning counts as done.
        most_entropy: The greatest entropy of a distribution on the 104 cells of the four rooms.
        near_maximum: That entropy counts as reached this many nats below it.
        full_entropy_at: Step at which the plan with known motion reaches it.
        best_episode: Best episode of the run that the paper shows.
        panels: Steps at which the paper shows the plan with known motion.
        table_sizes: Entries of the Q-tables.
        early: Step from which the swarm's learned and known flows are nearly the same.
    """

    learned = 77.86
    known = 78.26
    near_known = 99
    most_entropy = math.log(104)
    near_maximum = 0.02
    full_entropy_at = 14
    best_episode = 26
    panels = (3, 5, 8, 20)
    table_sizes: ClassVar = {"standard": 10_400, "extended": 18_720}
    early = 16


class Cases:
    """What is computed for the paper.

    Attributes:
        planners: Planners of the four rooms, with the policies that each of them plans.
        motions: Motions of the swarm, with their formulas.
        starts: Initial distributions of the swarm, with their names.
        formulations: Options of Q-learning.
        noises: Noise intensities of the discrete rooms: none, and that of OpenSpiel's game.
        points: Moves on each axis of the action box, for the certified intervals of the optimum.
    """

    planners: ClassVar = {"mirror": "randomised policies", "network": "networks, the paper's class"}
    motions: ClassVar = {"free": "s + a Δh", "congested": "s + a (4 - 4μ(s)) Δh"}
    starts: ClassVar = {
        "ergodic": "from μ*",
        "normal": "from N(0.5, 0.04)",
        "uniform": "from U(0, 1)",
    }
    formulations = ("standard", "extended")
    noises = (0.0, 1.0)
    points = 9


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
)
