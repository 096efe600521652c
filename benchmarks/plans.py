"""Seconds of a plan with models that see mu, against evaluating the model in every sweep.

The city of the suite: 15 by 12 cells, 16 steps, 81 actions with five hallucinated controls each, 60
sweeps of mirror ascent. A model that sees the mass of the agent's own cell goes by a bank of
kernels; one that sees more is evaluated once for all controls of an action. The other side
evaluates the model for every move in every sweep. Two steps of one of its sweeps are timed, as a
plan would take minutes; all take equally long. Times are after compilation. Last, the four rooms
with a model without mu.

Run ``python benchmarks/plans.py``, or with ``--quick`` for one model and fewer transitions.
"""

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from _report import Report, duration, parse_quick

import mufield as mf
from mufield.learning import LearnerState
from mufield.models import AbstractModelFamily
from mufield.planning.mirror import regular_moves
from mufield.problem import Motion

KEY = jax.random.key(0)
MOST_SECONDS = 10.0
FASTER = 5.0
"""How many times faster a plan must be than the model in every sweep."""

STEPS_TIMED = 2
"""Steps of an episode that are timed with the model in every sweep."""

FAMILIES: dict[str, AbstractModelFamily] = {
    "Gaussian process, mu=Here()": mf.GaussianProcess(mu=mf.policies.Here()),
    "ensemble, mu=Here()": mf.DeepEnsemble(mu=mf.policies.Here()),
    "ensemble, mu=Pooled()": mf.DeepEnsemble(mu=mf.policies.Pooled()),
}


def told(
    system: mf.SimulatedSystem, family: AbstractModelFamily, transitions: int
) -> tuple[mf.M3UCRL, LearnerState]:
    """A learner after one episode of the random policy with many tracked agents."""
    learner = mf.M3UCRL(system.problem, family)
    agents = transitions // system.problem.horizon
    episode = system.run(mf.random_policy(system.problem), KEY, agents=agents)
    return learner, learner.tell(learner.init(KEY), episode)


def seconds(function: Callable[[], Any]) -> float:
    """Time of the second call; the first compiles."""
    jax.block_until_ready(function())
    began = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - began


def in_every_sweep(learner: mf.M3UCRL, state: LearnerState) -> float:
    """Seconds of a plan that evaluates the model for every move in every sweep."""
    planner, optimism = mf.MirrorPlanner(), learner.optimism
    problem = mf.make("city", horizon=STEPS_TIMED).problem
    joint_flow = learner.model_planner.flow.of_problem(optimism.joint(problem))

    @eqx.filter_jit
    def sweep(model: Any) -> jax.Array:
        flow, motion = optimism.imagine(problem, joint_flow, model, None, KEY)
        # As a plain function, of which nothing is known about what moves share.
        plain: Motion = lambda state, joint, mu: motion(state, joint, mu)  # noqa: E731
        listed = regular_moves(flow, plain, problem.actions, points=planner.points)
        moves = mf.MoveFlow(flow, plain, listed.actions[0], group=listed.group, bank_bytes=0)
        return moves.sweep(moves.uniform(), bound=False).action_values

    sweeps = (planner.sweeps + 1) * learner.problem.horizon / STEPS_TIMED
    return seconds(lambda: sweep(state.model)) * sweeps


def compare(report: Report, name: str, transitions: int) -> None:
    """Times a plan in the city both ways."""
    learner, state = told(mf.make("city"), FAMILIES[name], transitions)
    plan = seconds(lambda: learner.ask(state).value)
    slow = in_every_sweep(learner, state)
    what = f"city, {name}, {len(state.data)} transitions"
    report.row(what, f"{duration(plan)}; in every sweep {duration(slow)}")
    report.claim(f"{what}: seconds of a plan", plan, MOST_SECONDS, side="at most")
    report.claim(f"{what}: times faster", slow / plan, FASTER, side="at least")


def main() -> None:
    """Runs all comparisons."""
    quick = parse_quick(__doc__)
    report = Report("plans")
    for name in list(FAMILIES)[: 1 if quick else None]:
        for transitions in (208,) if quick else (208, 2000):
            compare(report, name, transitions)
    learner, state = told(mf.make("four-rooms"), mf.DeepEnsemble(), 200)
    plan = seconds(lambda: learner.ask(state).value)
    report.row("four rooms, ensemble without mu, 200 transitions", duration(plan))
    report.show()


if __name__ == "__main__":
    main()
