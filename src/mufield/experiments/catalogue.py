"""What of the paper can be reproduced: one item for each figure, film or group of numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import UserError
from . import tasks
from .budget import Budget
from .jobs import Job

if TYPE_CHECKING:
    from .results import Drawn, Results

ALL = "all"


@dataclass(frozen=True)
class Item:
    """One part of the paper.

    Attributes:
        name: How the command line calls it.
        paper: What of the paper it is, with the LaTeX label.
        jobs: The jobs that it needs, for a budget.
        drawn_by: Module and function that draw it, imported only then.
    """

    name: str
    paper: str
    jobs: Callable[[Budget], tuple[Job, ...]]
    drawn_by: str

    def draw(self, results: "Results") -> "Drawn":
        """Draws it from the results of its jobs."""
        module, _, function = self.drawn_by.partition(":")
        drawn: Drawn = getattr(import_module(f".{module}", __package__), function)(results)
        return drawn


def _learned(budget: Budget) -> tuple[Job, ...]:
    """The first run of each class of policies."""
    return tuple(tasks.rooms_runs(budget, planner)[0] for planner in tasks.PLANNERS)


def _curve(budget: Budget) -> tuple[Job, ...]:
    runs = [job for planner in tasks.PLANNERS for job in tasks.rooms_runs(budget, planner)]
    return (_known(budget)[0], tasks.rooms_bracket(budget), *runs)


def _known(budget: Budget) -> tuple[Job, ...]:
    return (tasks.known_rooms(budget, "network"),)


def _convergence(budget: Budget) -> tuple[Job, ...]:
    return (*_known(budget), *_learned(budget))


def _qlearning(budget: Budget) -> tuple[Job, ...]:
    brackets = [tasks.discrete_bracket(budget, noise) for noise in tasks.NOISES]
    trainings = [
        tasks.q_training(budget, formulation, noise)
        for noise in tasks.NOISES
        for formulation in tasks.FORMULATIONS
    ]
    return (*brackets, *trainings)


def _swarm(*starts: str) -> Callable[[Budget], tuple[Job, ...]]:
    def jobs(budget: Budget) -> tuple[Job, ...]:
        cases = [(motion, start) for motion in tasks.MOTIONS for start in starts]
        plans = [tasks.known_swarm(budget, *case) for case in cases]
        return (*plans, *(tasks.swarm_run(budget, *case) for case in cases))

    return jobs


def _numbers(budget: Budget) -> tuple[Job, ...]:
    table, printed = tasks.known_rooms(budget, "table"), tasks.printed_box(budget)
    return (*_known(budget), table, tasks.rooms_bracket(budget), printed)


ITEMS: tuple[Item, ...] = (
    Item(
        "start",
        "initial distribution, and the end under a random policy "
        "(fig:initial_distribution_random_dist)",
        lambda budget: (tasks.random_rooms(budget),),
        "rooms:draw_start",
    ),
    Item(
        "known-distributions",
        "plan with known motion at h = 3, 5, 8, 20 (fig:bptt_distributions)",
        _known,
        "rooms:draw_known",
    ),
    Item("known-film", "film of that plan (known_dynamics_animation)", _known, "films:film_known"),
    Item(
        "numbers",
        "numbers with known motion: plans, certified optimum, printed action box (Sec. 6, App. D)",
        _numbers,
        "rooms:draw_nothing",
    ),
    Item(
        "qlearning",
        "U2-MF-QL-FH, Standard and Extended (fig:u2mfqlfh_convergence)",
        _qlearning,
        "tabular:draw_training",
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
        "films:film_learned",
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
        "swarms:draw_rewards",
    ),
    Item(
        "swarm-actions",
        "swarm: actions in the ergodic state (fig:second_row)",
        _swarm("ergodic"),
        "swarms:draw_actions",
    ),
    Item(
        "swarm-distributions",
        "swarm: distributions in the ergodic state (fig:third_row)",
        _swarm("ergodic"),
        "swarms:draw_distributions",
    ),
    Item(
        "swarm-flow",
        "swarm: flow from two initial distributions (fig:swarm_motion2)",
        _swarm("normal", "uniform"),
        "swarms:draw_flow",
    ),
)
"""In the order of computation: what is cheap, or used by many, first."""


def choose(names: Sequence[str]) -> tuple[Item, ...]:
    """The items of these names, all of them for ``all``; raises and names the others."""
    known = {item.name: item for item in ITEMS}
    unknown = [name for name in names if name not in known and name != ALL]
    if unknown:
        raise UserError(
            f"the paper has no item {', '.join(unknown)}; there are {', '.join(known)}, and "
            f"{ALL} for all of them"
        )
    return tuple(item for item in ITEMS if ALL in names or item.name in names)
