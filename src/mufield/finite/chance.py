"""What a finite population can expect of a policy: the model's doubt, and chance."""

from dataclasses import replace

import numpy as np
from scipy.special import stdtrit

from ..learning.best import BestPlan, Forecast
from ..learning.m3ucrl import M3UCRL
from ..learning.optimism import Greedy
from ..learning.state import LearnerState, Use
from ..problem import Problem
from .system import FiniteSystem


def with_chance(
    plan: BestPlan,
    problem: Problem,
    learner: M3UCRL,
    state: LearnerState,
    size: int,
    *,
    episodes: int = 16,
    level: float = 0.95,
) -> BestPlan:
    r"""The plan with what ``size`` agents can expect of one episode in place of the limit.

    Agents play some episodes in the model's mean. With their mean $\bar J$ and deviation $s$, the
    interval is $\bar J \pm (w + t\, s \sqrt{1 + 1/n})$: w is the half-width by the drawn models, t
    the quantile of Student's distribution, and the rest the spread of one more episode among n.

    Args:
        plan: The policy and its interval in the limit.
        problem: The problem as it is; the learner may plan in another one (`for_fleet`).
        learner: The learner.
        state: What it knows.
        size: Number of agents N.
        episodes: Number of episodes n that agents play.
        level: Level of the part that is chance.
    """
    key = state.key_for(Use.DRAW)
    forecast = Forecast(
        learner.flow.of_problem(problem), state.model, state.reward_model, key[None]
    )
    flow, motion = forecast.imagine(Greedy(), key)
    hidden = flow.problem.reward if problem.hides_reward else None
    system = FiniteSystem(problem, motion, agents=size, reward=hidden)
    values = np.asarray(system.evaluate(plan.profile, key, episodes=episodes).values, dtype=float)
    spread = values.std(ddof=1) * np.sqrt(1 + 1 / episodes)
    half = 0.5 * (plan.upper - plan.lower) + stdtrit(episodes - 1, 0.5 + 0.5 * level) * spread
    mean = float(values.mean())
    how = f"{plan.how}; {size:,} agents, with chance"
    return replace(plan, expected=mean, lower=mean - half, upper=mean + half, how=how)
