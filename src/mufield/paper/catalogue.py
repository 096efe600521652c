"""The items of the paper that can be reproduced: figures, films and groups of numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import UserError
from ..jobs.job import Job
from . import workload
from .budget import Budget
from .workload import CASES

if TYPE_CHECKING:
    from .results import Drawn, Results


@dataclass(frozen=True)
class Reported:
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

    learned: float = 77.86
    known: float = 78.26
    near_known: int = 99
    most_entropy: float = math.log(104)
    near_maximum: float = 0.02
    full_entropy_at: int = 14
    best_episode: int = 26
    panels: tuple[int, ...] = (3, 5, 8, 20)
    table_sizes: dict[str, int] = field(
        default_factory=lambda: {"standard": 10_400, "extended": 18_720}
    )
    early: int = 16


PAPER = Reported()


@dataclass(frozen=True)
class Item:
    """One figure, film or group of numbers.

    Attributes:
        name: Its name on the command line.
        paper: What it shows, with the paper's LaTeX label.
        jobs: From a budget to the jobs that it needs.
        drawn_by: Module and function that draw it, imported only when needed; None for numbers
            that only the table shows.
    """

    name: str
    paper: str
    jobs: Callable[[Budget], tuple[Job, ...]]
    drawn_by: str | None = None

    def draw(self, results: "Results") -> "Drawn":
        """Draws the item from the results of its jobs."""
        from .results import Drawn

        if self.drawn_by is None:
            return Drawn()
        module, _, function = self.drawn_by.partition(":")
        drawn: Drawn = getattr(import_module(f".{module}", __package__), function)(results)
        return drawn


Jobs = tuple[Job, ...]


def _start(budget: Budget) -> Jobs:
    return (workload.random_rooms(budget),)


def _known(budget: Budget) -> Jobs:
    return (workload.known_rooms(budget, "network"),)


def _learned(budget: Budget) -> Jobs:
    return tuple(workload.rooms_runs(budget, planner)[0] for planner in CASES.planners)


def _convergence(budget: Budget) -> Jobs:
    return (*_known(budget), *_learned(budget))


def _curve(budget: Budget) -> Jobs:
    runs = [job for planner in CASES.planners for job in workload.rooms_runs(budget, planner)]
    return (*_known(budget), workload.rooms_bracket(budget), *runs)


def _numbers(budget: Budget) -> Jobs:
    brackets = [workload.rooms_bracket(budget, printed=printed) for printed in (False, True)]
    return (*_known(budget), workload.known_rooms(budget, "table"), *brackets)


def _qlearning(budget: Budget) -> Jobs:
    cases = [(each, noise) for noise in CASES.noises for each in CASES.formulations]
    brackets = [workload.discrete_bracket(budget, noise) for noise in CASES.noises]
    return (*brackets, *(workload.q_training(budget, *case) for case in cases))


def _swarm(*starts: str) -> Callable[[Budget], Jobs]:
    def of(budget: Budget) -> Jobs:
        cases = [(motion, start) for motion in CASES.motions for start in starts]
        plans = [workload.known_swarm(budget, *case) for case in cases]
        return (*plans, *(workload.swarm_run(budget, *case) for case in cases))

    return of


ITEMS: tuple[Item, ...] = (
    Item(
        "start",
        "initial distribution, and the end under a random policy "
        "(fig:initial_distribution_random_dist)",
        _start,
        "rooms:draw_start",
    ),
    Item(
        "known-distributions",
        "plan with known motion at h = 3, 5, 8, 20 (fig:bptt_distributions)",
        _known,
        "rooms:draw_known",
    ),
    Item("known-film", "film of that plan (known_dynamics_animation)", _known, "rooms:film_known"),
    Item(
        "numbers",
        "numbers with known motion: plans, certified optimum, printed action box (Sec. 6, App. D)",
        _numbers,
    ),
    Item(
        "qlearning",
        "U2-MF-QL-FH, Standard and Extended (fig:u2mfqlfh_convergence)",
        _qlearning,
        "rooms:draw_training",
    ),
    Item(
        "final-distribution",
        "learned: distribution at h = 20 (fig:results_linear_b)",
        _learned,
        "rooms:draw_final",
    ),
    Item(
        "convergence",
        "reward and action size at each step (fig:bptt_convergence), and learned",
        _convergence,
        "rooms:draw_convergence",
    ),
    Item(
        "learned-films",
        "films of episodes 1 to 10 and of the best (m3_ucrl_animation_episode_t)",
        _learned,
        "rooms:film_learned",
    ),
    Item(
        "learning-curve",
        "rewards over 30 episodes, 10 seeds, both classes of policies (fig:results_linear_a)",
        _curve,
        "rooms:draw_curve",
    ),
    Item(
        "swarm-rewards",
        "swarm: rewards over 20 episodes, both motions (fig:first_row)",
        _swarm("ergodic"),
        "swarm:draw_rewards",
    ),
    Item(
        "swarm-actions",
        "swarm: actions in the ergodic state (fig:second_row)",
        _swarm("ergodic"),
        "swarm:draw_actions",
    ),
    Item(
        "swarm-distributions",
        "swarm: distributions in the ergodic state (fig:third_row)",
        _swarm("ergodic"),
        "swarm:draw_distributions",
    ),
    Item(
        "swarm-flow",
        "swarm: flow from two initial distributions (fig:swarm_motion2)",
        _swarm("normal", "uniform"),
        "swarm:draw_flow",
    ),
)
"""In the order of computation: cheap items, and those whose jobs others use, come first."""


def choose(names: Sequence[str]) -> tuple[Item, ...]:
    """The items of these names, or all for ``all``; raises for unknown names."""
    known = {item.name: item for item in ITEMS}
    unknown = [name for name in names if name not in known and name != "all"]
    if unknown:
        raise UserError(
            f"the paper has no item {', '.join(unknown)}; there are {', '.join(known)}, and "
            "all for all of them"
        )
    return tuple(item for item in ITEMS if "all" in names or item.name in names)
