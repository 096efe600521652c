"""The policy to use in the end, not to explore with.

`M3UCRL.ask` plans in an optimistic model, to learn; `best_policy` plans in the model that the data
make most likely, and judges policies in models that are drawn from the posterior.
"""

from dataclasses import replace

import jax

from .._progress import stage
from ..errors import UserError
from ..policies.base import Profile
from .forecast import BestPlan, Forecast, UncertaintyPenalty
from .model_planner import ModelPlanner, with_estimated_noise
from .optimism import Greedy
from .state import LearnerState, Use


def best_policy(
    planner: ModelPlanner,
    state: LearnerState,
    *,
    cautious: bool = False,
    ran: tuple[Profile, float | None] | None = None,
    draws: int = 19,
) -> BestPlan:
    """The policy that the data make best, with what can be expected of it.

    Candidates are the plan under the model's mean, the last policy, and ``ran``. The one with the
    highest J under the mean is chosen. With ``cautious`` it is the one whose interval for J has the
    highest lower end. Then ``ran`` counts with what it earned, which needs no model, and there is
    one more candidate: a plan under the mean with a penalty on epistemic uncertainty, whose weight
    makes the first plan pay the half-width of its interval. If the problem has constraints, only
    plans are candidates, and they satisfy them as those of `M3UCRL.ask` do.

    Nothing is learned or changed; the same arguments give the same answer.

    Args:
        planner: Plans in the learner's models.
        state: What the learner knows.
        cautious: Whether to choose by the lower end instead of by what is expected.
        ran: A policy that was run, and the J that it earned: that of the best episode. In small
            populations chance is a part of that J. It is None if the episode did not begin as the
            problem says; then the model judges the policy.
        draws: Number of models to draw for the interval; see `BestPlan`. With 19 it is one of 95%.
    """
    if draws < 1:
        raise UserError(f"an interval needs at least one sampled model, got {draws}")
    problem, flow = planner.problem, planner.flow
    if planner.estimate_noise:
        flow = with_estimated_noise(flow, problem, state.model)
    keys = jax.random.split(state.key_for(Use.DRAW), draws)
    forecast = Forecast(problem, flow, state.model, state.reward_model, keys)
    name = "choosing a cautious policy" if cautious else "choosing a policy"
    with stage(name) as now:  # shares are of the usual times

        def judge(profile: Profile, how: str, done: float) -> BestPlan:
            judged = forecast.judge(profile, how, interval=cautious)
            now.share = done
            return judged

        plan = planner.usable_plan(state, Greedy())
        now.share = 0.35 if cautious else 0.6
        mean = plan.note or "planned under the model's mean"
        found = [judge(plan.profile, mean, 0.45 if cautious else 0.7)]
        if cautious:
            penalised = planner.usable_plan(state, UncertaintyPenalty(forecast.penalty(found[0])))
            now.share = 0.85
            how = penalised.note or "planned with a penalty on uncertainty"
            found.append(judge(penalised.profile, how, 0.9))
        if problem.constraints is not None:
            ran = None  # only plans on all data are sure to satisfy the constraints
        elif state.profile is not None:
            found.append(judge(state.profile, "the last policy", 0.95 if cautious else 0.75))
        if ran is not None and ran[1] is not None and cautious:
            why = "the best episode's policy, by what it earned"
            found.append(forecast.known(ran[0], ran[1], why))
        elif ran is not None:
            found.append(judge(ran[0], "the best episode's policy", 1.0 if cautious else 0.8))
        chosen = max(found, key=lambda each: each.lower)  # of several the first
        if not cautious:
            chosen = forecast.judge(chosen.profile, chosen.how)
    return replace(chosen, transitions=len(state.data))
