"""The items of the paper that can be reproduced: figures, films and groups of numbers."""

from collections.abc import Callable, Sequence

from mufield.errors import UserError
from mufield.jobs.job import Job

from . import rooms, swarm, workload
from .paper import Budget, Cases
from .results import Item

Jobs = tuple[Job, ...]


def _start(budget: Budget) -> Jobs:
    return (workload.random_rooms(budget),)


def _known(budget: Budget) -> Jobs:
    return (workload.known_rooms(budget, "network"),)


def _learned(budget: Budget) -> Jobs:
    return tuple(workload.rooms_runs(budget, planner)[0] for planner in Cases.planners)


def _convergence(budget: Budget) -> Jobs:
    return (*_known(budget), *_learned(budget))


def _curve(budget: Budget) -> Jobs:
    runs = [job for planner in Cases.planners for job in workload.rooms_runs(budget, planner)]
    return (*_known(budget), workload.rooms_bracket(budget), *runs)


def _numbers(budget: Budget) -> Jobs:
    brackets = [workload.rooms_bracket(budget, printed=printed) for printed in (False, True)]
    return (*_known(budget), workload.known_rooms(budget, "table"), *brackets)


def _qlearning(budget: Budget) -> Jobs:
    cases = [(each, noise) for noise in Cases.noises for each in Cases.formulations]
    brackets = [workload.discrete_bracket(budget, noise) for noise in Cases.noises]
    return (*brackets, *(workload.train_q(budget, *case) for case in cases))


def _swarm(*starts: str) -> Callable[[Budget], Jobs]:
    def of(budget: Budget) -> Jobs:
        cases = [(motion, start) for motion in Cases.motions for start in starts]
        plans = [workload.known_swarm(budget, *case) for case in cases]
        return (*plans, *(workload.swarm_run(budget, *case) for case in cases))

    return of


ITEMS: tuple[Item, ...] = (
    Item(
        "start",
        "initial distribution, and the end under a random policy "
        "(fig:initial_distribution_random_dist)",
        _start,
        rooms.draw_start,
    ),
    Item(
        "known-distributions",
        "plan with known motion at h = 3, 5, 8, 20 (fig:bptt_distributions)",
        _known,
        rooms.draw_known,
    ),
    Item("known-film", "film of that plan (known_dynamics_animation)", _known, rooms.film_known),
    Item(
        "numbers",
        "numbers with known motion: plans, certified optimum, printed action box (Sec. 6, App. D)",
        _numbers,
    ),
    Item(
        "qlearning",
        "U2-MF-QL-FH, Standard and Extended (fig:u2mfqlfh_convergence)",
        _qlearning,
        rooms.draw_training,
    ),
    Item(
        "final-distribution",
        "learned: distribution at h = 20 (fig:results_linear_b)",
        _learned,
        rooms.draw_final,
    ),
    Item(
        "convergence",
        "reward and action size at each step (fig:bptt_convergence), and learned",
        _convergence,
        rooms.draw_convergence,
    ),
    Item(
        "learned-films",
        "films of episodes 1 to 10 and of the best (m3_ucrl_animation_episode_t)",
        _learned,
        rooms.film_learned,
    ),
    Item(
        "learning-curve",
        "rewards over 30 episodes, 10 seeds, both classes of policies (fig:results_linear_a)",
        _curve,
        rooms.draw_curve,
    ),
    Item(
        "swarm-rewards",
        "swarm: rewards over 20 episodes, both motions (fig:first_row)",
        _swarm("ergodic"),
        swarm.draw_rewards,
    ),
    Item(
        "swarm-actions",
        "swarm: actions in the ergodic state (fig:second_row)",
        _swarm("ergodic"),
        swarm.draw_actions,
    ),
    Item(
        "swarm-distributions",
        "swarm: distributions in the ergodic state (fig:third_row)",
        _swarm("ergodic"),
        swarm.draw_distributions,
    ),
    Item(
        "swarm-flow",
        "swarm: flow from two initial distributions (fig:swarm_motion2)",
        _swarm("normal", "uniform"),
        swarm.draw_flow,
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
