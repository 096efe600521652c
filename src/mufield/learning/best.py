"""The policy to use in the end, not to explore with.

`M3UCRL.ask` plans in an optimistic model, to learn; `best_policy` plans in the model that the data
make most likely, and evaluates policies in models that are drawn from the posterior.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from jaxtyping import Key as KeyArray

from .._arrays import Key, Scalar
from .._progress import stage
from ..errors import whole_number
from ..flow.flow import Flow
from ..flow.motion_table import tabulated
from ..flow.moves import MoveFlow
from ..models.base import AbstractModel
from ..planning.planner import Plan
from ..policies.base import Profile, as_profile
from ..policies.tables import TablePolicy, rest_policy
from ..problem import Motion, Problem
from .optimism import AbstractOptimism, Greedy, Thompson, draw_width
from .state import LearnerState, Use

if TYPE_CHECKING:
    from .m3ucrl import M3UCRL


class BestPlan(eqx.Module):
    """The plan that the data make best.

    Attributes:
        profile: The policy to use.
        expected: J under the mean of the model, and under the mean of a hidden reward; what the
            policy earned, if that is why a cautious choice fell on it.
        lower: Lower end of the interval for J. It lies around `expected`; its half-width is the
            greatest difference to J under any of the drawn models.
        upper: Its upper end.
        draws: Number of drawn models n. If the truth were one more draw, J would lie outside with
            a probability of 1 / (n + 1).
        how: Which of the candidates it is, in words.
        transitions: Number of transitions that the model has seen.
    """

    profile: Profile
    expected: float
    lower: float
    upper: float
    draws: int
    how: str
    transitions: int = 0

    def __repr__(self) -> str:
        interval = f"[{self.lower:.6g}, {self.upper:.6g}]"
        return f"BestPlan(J={self.expected:.6g} in {interval}, {self.how!r})"


def best_policy(
    learner: "M3UCRL",
    state: LearnerState,
    *,
    cautious: bool = False,
    best_run: tuple[Profile, float | None] | None = None,
    draws: int = 19,
) -> BestPlan:
    """The policy that the data make best, with what can be expected of it.

    Candidates are the plan under the model's mean, the last policy, and ``best_run``. The one with
    the highest J under the mean is chosen. With ``cautious`` it is the one whose interval for J has
    the highest lower end, and ``best_run`` counts with what it earned, which needs no model. If the
    problem has constraints, only the plan is a candidate, which satisfies them as in `M3UCRL.ask`.

    Nothing is learned or changed; the same arguments give the same answer.

    Args:
        learner: The learner, which plans.
        state: What the learner knows.
        cautious: Whether to choose by the lower end instead of by what is expected.
        best_run: The policy of the best episode, and the J that it earned, in which small
            populations were lucky. J is None if the episode did not begin as the problem says;
            without it, and with shocks, the model's J counts.
        draws: Number of models to draw for the interval; see `BestPlan`. With 19 it is one of 95%.
    """
    whole_number(draws, "the number of drawn models")
    keys = jax.random.split(state.key_for(Use.DRAW), draws)
    flow = learner.flow.of_problem(state.as_known(learner.problem))
    forecast = Forecast(flow, state.model, state.reward_model, keys)
    if best_run is not None and flow.problem.shocks is not None:
        best_run = (best_run[0], None)  # what it earned is a matter of its path
    with stage("choosing a cautious policy" if cautious else "choosing a policy"):
        plan = learner.greedy_plan(state)
        policies = [(plan.profile, plan.note or "planned under the model's mean")]
        if learner.safety is None and state.profile is not None:
            policies.append((state.profile, "the last policy"))
        earned = None
        if learner.safety is None and best_run is not None:
            profile, earned = best_run
            if not cautious or earned is None:
                policies.append((profile, "the best episode's policy"))
        found = [forecast.of_policy(*each, interval=cautious) for each in policies]
        if cautious and earned is not None:
            how = "the best episode's policy, by what it earned"
            found.append(BestPlan(profile, earned, earned, earned, draws, how))
        chosen = max(found, key=lambda each: each.lower)  # of several the first
        if not cautious:
            chosen = forecast.of_policy(chosen.profile, chosen.how)
    return replace(chosen, transitions=len(state.data))


def optimistic_or_greedy(
    learner: "M3UCRL", state: LearnerState, problem: Problem, plan: Plan
) -> Plan:
    r"""An optimistic plan, or the greedy one where optimism promises less than it costs.

    With $\tilde J$ under the motion that the optimistic plan $\pi$ imagines, $J_m$ under the means
    of the models, and the greedy plan $\pi_m$, the optimistic one is run if

    $$\tilde J(\pi) - J_m(\pi_m) \ge J_m(\pi_m) - J_m(\pi).$$

    Where tracked agents seldom are the band stays wide, so that without this plans would go on to
    promise a little there, and to cost much. A promise that is small beside what there is to earn
    is not compared, because the greedy plan takes as long as the other.
    """
    small = 0.05  # of what the plan promises above agents at rest; the first value that was tried
    keys = state.key_for(Use.DRAW)[None]  # not used: nothing is drawn
    flow = learner.flow.of_problem(state.as_known(problem))
    forecast = Forecast(flow, state.model, state.reward_model, keys)

    def expected(profile: Profile) -> float:
        return forecast.of_policy(profile, "", interval=False).expected

    promised, likely = float(plan.value), expected(plan.profile)
    rest = expected(as_profile(rest_policy(problem), problem.horizon))
    if not promised - likely > small * abs(promised - rest):
        return plan
    greedy = learner.greedy_plan(state, problem)
    known = expected(greedy.profile)
    return plan if promised - known >= known - likely else replace(greedy, memory=plan.memory)


def likely_motion(
    learner: "M3UCRL", state: LearnerState, problem: Problem
) -> tuple[Problem, Motion]:
    """A problem and its motion by the models' means, a hidden reward and unknown shocks too.

    The problem is the one as it is; the learner may plan in another (`mufield.fleet.for_fleet`).
    """
    flow = learner.flow.of_problem(state.as_known(problem))
    models = state.model, state.reward_model
    flow, motion = Greedy().imagine(flow.problem, flow, *models, state.key)  # nothing is drawn
    return flow.problem, motion


class Forecast(eqx.Module):
    """What a policy earns under the mean model and under drawn ones.

    Attributes:
        flow: The flow of the true problem; if the reward is hidden, that of the model is put in.
        reward_model: The model of the reward, if that is hidden.
        keys: Randomness of the drawn models, one key for each.
    """

    flow: Flow
    model: AbstractModel
    reward_model: AbstractModel | None
    keys: KeyArray[Array, "draws"]

    def of_policy(self, profile: Profile, how: str, *, interval: bool = True) -> BestPlan:
        """What can be expected of a policy; without ``interval``, that has no width."""
        moves = _shared_moves(profile, self.flow.problem)
        expected = float(_expected(self, profile, moves))
        width = float(np.max(np.abs(_gains(self, profile, moves)))) if interval else 0.0
        ends = (expected, expected - width, expected + width)
        return BestPlan(profile, *ends, draws=self.keys.shape[0], how=how)

    def imagine(self, optimism: AbstractOptimism, key: Key) -> tuple[Flow, Motion]:
        """The flow and the motion of one kind of optimism about the models."""
        return optimism.imagine(self.flow.problem, self.flow, self.model, self.reward_model, key)


def _shared_moves(profile: Profile, problem: Problem) -> Float[Array, "moves action_dim"] | None:
    """A policy's moves, if they are the same in all cells and at all steps.

    Then their kernel need be computed only once for all steps, which is many times faster.
    """
    policy = profile.join(profile.per_step)
    if problem.shocks is not None:
        from ..policies.shocks import ByShock

        policy = policy.policy if isinstance(policy, ByShock) else policy
    if not isinstance(policy, TablePolicy):
        return None
    moves = np.asarray(policy.actions).reshape(-1, *policy.actions.shape[-2:])
    alike = policy.actions.shape[-3] == 1 and bool((moves == moves[0]).all())
    return jnp.asarray(moves[0]) if alike else None


def _value(
    flow: Flow, motion: Motion, profile: Profile, moves: Float[Array, "moves dim"] | None
) -> Scalar:
    """J of a policy; with shocks its expectation over their paths."""
    if flow.problem.shocks is not None:
        return _value_over_paths(flow, motion, profile, moves)
    if moves is None:
        return flow.rollout(profile, motion).value
    policy = profile.join(profile.per_step)
    assert isinstance(policy, TablePolicy)
    shape = (profile.horizon, flow.problem.grid.n_cells, len(moves))
    weights = jnp.broadcast_to(jnp.ones(()) if len(moves) == 1 else policy.weights, shape)
    return MoveFlow(flow, motion, moves, interpolate=False).rollout(weights).value


def _value_over_paths(
    flow: Flow, motion: Motion, profile: Profile, moves: Float[Array, "moves dim"] | None
) -> Scalar:
    """The expectation of J over paths of the shocks, the same ones for all motions."""
    # not needed without shocks
    from ..flow.paths import over_paths, shocks_of
    from ..planning.shocks import PathMoves
    from ..policies.shocks import ByShock

    policy, samples = profile.join(profile.per_step), 64
    if moves is None or not isinstance(policy, ByShock):
        return over_paths(flow, profile, motion, samples=samples).value
    tables: Any = policy.policy
    paths = shocks_of(flow.problem).paths(flow.problem.paid_steps, samples=samples)
    build = partial(MoveFlow, actions=moves, interpolate=False)
    weights = tables.weights.reshape(profile.horizon, -1, len(moves))
    return PathMoves(flow, motion, paths, policy.memory, build).rollout(weights).value


@eqx.filter_jit
def _expected(forecast: Forecast, profile: Profile, moves: Array | None) -> Scalar:
    flow, motion = forecast.imagine(Greedy(), forecast.keys[0])  # nothing is drawn
    return _value(flow, motion, profile, moves)


@eqx.filter_jit
def _gains(forecast: Forecast, profile: Profile, moves: Array | None) -> Float[Array, "draws"]:
    """How much more the policy earns under each drawn model than under the mean.

    Models that see the own cell's mass are asked at a few masses only.
    """
    listed = forecast.flow.problem.actions if moves is None else moves

    def value(draw: tuple[Key, Scalar]) -> Scalar:
        key, scale = draw
        flow, motion = forecast.imagine(Thompson(scale), key)
        if flow.problem.shocks is None:
            motion = tabulated(flow.problem, motion, listed)
        return _value(flow, motion, profile, moves)

    # The last draw has no distance from the mean, so that all are one compiled program.
    keys = jnp.concatenate([forecast.keys, forecast.keys[:1]])
    scales = jnp.full(len(keys), draw_width(forecast.model)).at[-1].set(0.0)
    values: Array = jax.lax.map(value, (keys, scales))
    return values[:-1] - values[-1]
