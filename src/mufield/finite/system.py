"""N agents as a system: the population's ``mu`` is the histogram of its own agents."""

import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arrays import Key, Mass, Masses, Scalar, as_key
from ..episode import Episode
from ..errors import UserError, whole_number
from ..flow.checks import check_motion
from ..flow.rollout import end_reward
from ..interfaces import with_fields
from ..policies.base import Profile, checked_profile
from ..policies.shocks import profile_on_path
from ..problem import Motion, Problem, Reward
from ..shocks import Path, Shocks
from ..systems import AbstractSimulation, SimulatedSystem, draw_path, true_problem
from .agents import Advanced, Block, Moves, Rules, Step, advance, begin, choices

Replan = Callable[[int, Mass, Profile], Any]
"""Called before each step with its number, mu and the policies so far; agents follow the policies
that it returns. Where trips take several steps, mu has more rows: the agents under way, as
`Problem.from_step` takes them."""

BLOCK = 1 << 18
"""Most agents that one compiled call moves, which bounds its temporary memory."""


class Evaluation(eqx.Module):
    """What a population earned in several episodes.

    Attributes:
        rewards: Average reward of the agents at each paid step.
        mass: The histograms mu_0, ..., mu_H.
        margin: The least margin of any constraint after any move, as a share of its limit; None
            if the problem has no constraints.
    """

    rewards: Float[Array, "episodes paid_steps"]
    mass: Float[Array, "episodes steps_and_end cells"]
    margin: Float[Array, "episodes"] | None = None

    @property
    def values(self) -> Float[Array, "episodes"]:
        """Each episode's total reward J."""
        return jnp.sum(self.rewards, axis=1)


class FiniteSystem(AbstractSimulation):
    r"""A population of N agents, each of which moves as a tracked agent does.

    At every step ``mu`` is the histogram of the agents' positions. All of them see it, decide,
    and move by the rule of `mufield.space.move.move`. A step earns the average

    $$\frac{1}{N} \sum_i r(c(s_i), a_i, \mu^N)$$

    of the rewards at the centres $c$ of the agents' cells, because r-hat (eq. integratedReward)
    takes them there too. At the end, if that is paid, agents rest.

    As N grows, J tends to a limit. If agents are ``centred``, as always in the discrete rooms,
    that is the J of the flow. Otherwise it differs by an error of discretisation, for the flow
    moves the mass of a cell from its centre; on a finer grid the error is smaller.

    Attributes:
        centred: Whether agents start each step from the centre of their cell.
    """

    problem: Problem
    agents: int = eqx.field(static=True)
    centred: bool = eqx.field(static=True)
    _motion: Motion
    _true_problem: Problem = eqx.field(repr=False)

    def __init__(
        self,
        problem: Problem,
        motion: Motion,
        *,
        agents: int,
        centred: bool = False,
        reward: Reward | None = None,
        shocks: Shocks | None = None,
    ):
        """Checks the motion and builds the system; arguments as of `SimulatedSystem`."""
        motion = check_motion(problem, motion)
        self.problem = problem
        self.agents = whole_number(agents, "agents")
        # Agents of the discrete rooms always stand in the middle of their cells.
        self.centred = centred or problem.noise.centred
        self._motion = motion
        self._true_problem = true_problem(problem, motion, reward, shocks)

    @classmethod
    def of(cls, system: SimulatedSystem, agents: int, **options: Any) -> "FiniteSystem":
        """N agents in place of an infinite population; options as in the class."""
        flow, motion = system.reveal()
        hidden = flow.problem.reward if system.problem.hides_reward else None
        own, shocks = system.problem.shocks, flow.problem.shocks
        given = None if own is None or own.known else shocks
        return cls(system.problem, motion, agents=agents, reward=hidden, shocks=given, **options)

    @property
    def _agents(self) -> float:
        return self.agents

    def _truth(self) -> Problem:
        return self._true_problem

    def _of(self, problem: Problem, truth: Problem, motion: Motion) -> "FiniteSystem":
        return with_fields(self, problem=problem, _true_problem=truth, _motion=motion)

    def _episode(self, profile: Profile, scouts: Profile | None, key: Key, agents: int) -> Episode:
        """Tracks the first ``agents`` of the N; scouts count in ``mu`` and J like all others."""
        if not 1 <= agents <= self.agents:
            raise UserError(
                f"at least one and at most all of the {self.agents} agents can be tracked, got "
                f"{agents}; track fewer, or build a larger population"
            )
        with _pool() as pool:
            course = _play(self, profile, key, agents, pool, scouts=scouts)
        waiting = self.problem.steps_done
        tracked = zip(*(course.tracked[:1] * waiting + course.tracked), strict=True)
        arrays = Moves(*(jnp.stack(steps, axis=1) for steps in tracked))._asdict()
        if waiting:
            arrays["present"] &= self.problem.begun
        elif len(self.problem.initial_arrivals) == 1:
            arrays["present"] = None
        if self.problem.trips is None:
            arrays["carried"] = None
        return Episode(**arrays, mass=course.mass, rewards=course.rewards)

    def evaluate(
        self, policy: Any, key: Key | int, *, episodes: int = 1, replan: Replan | None = None
    ) -> Evaluation:
        """What several episodes earn; no agent is tracked.

        Episode i is that of `run` with the i-th key of ``jax.random.split(key, episodes)``.

        With ``replan(step, mu, profile)`` a dispatcher sees at every step where the N agents are
        and may change their policies: it returns those of the whole episode, as `M3UCRL.replan`
        does. With shocks, ``replan`` gets the number of the present shock as a fourth argument.
        """
        keys = jax.random.split(as_key(key), whole_number(episodes, "episodes"))
        with _pool() as pool:
            courses = [self._course(policy, each, pool, replan) for each in keys]
        mass, problem = jnp.stack([course.mass for course in courses]), self.problem
        rewards = jnp.stack([course.rewards for course in courses])
        margin = None
        if problem.constraints is not None:
            paths = (course.path for course in courses)
            under = (problem if path is None else problem.under_shock(path) for path in paths)
            margin = jnp.stack([_least(each, of) for each, of in zip(under, mass, strict=True)])
        return Evaluation(rewards, mass, margin)

    def _policy_on(self, policy: Any, path: Path) -> Profile:
        return profile_on_path(checked_profile(policy, self.problem), self.problem.shocks, path)

    def _course(self, policy: Any, key: Key, pool: Executor, replan: Any) -> "_Course":
        if self.problem.shocks is None:
            return _play(self, checked_profile(policy, self.problem), key, 0, pool, replan)
        path, latest = draw_path(self._true_problem, key), policy

        def now(step: int, mass: Mass, _: Profile) -> Profile:
            nonlocal latest
            latest = replan(step, mass, checked_profile(latest, self.problem), int(path[step]))
            return self._policy_on(latest, path)

        first, changes = self._policy_on(policy, path), None if replan is None else now
        course = _play(self.on_path(path), first, key, 0, pool, changes)
        return course._replace(path=path)


class _Course(NamedTuple):
    """One episode; ``tracked`` has one entry for each step, ``path`` are its shocks, if any."""

    mass: Masses
    rewards: Float[Array, "paid_steps"]
    tracked: list[Moves]
    path: Path | None = None


def _pool() -> ThreadPoolExecutor:
    """A thread for each core; compiled calls release the interpreter's lock."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ThreadPoolExecutor(cores)


def _play(
    system: FiniteSystem,
    profile: Profile,
    key: Key,
    tracked: int,
    pool: Executor,
    replan: Replan | None = None,
    scouts: Profile | None = None,
) -> _Course:
    """One episode with the first ``tracked`` agents watched; threads move blocks of agents."""
    problem, dtype = system._true_problem, system.problem.initial.dtype
    trips = problem.trips
    rules = Rules(problem, system._motion, system.centred)
    start_key, step_key = jax.random.split(key)
    # Blocks of at most two sizes, because each size is compiled.
    own = [] if scouts is None else [tracked]  # scouts are a block of their own
    full, rest = divmod(system.agents - sum(own), BLOCK)
    sizes = own + [BLOCK] * full + [rest] * (rest > 0)
    count = len(sizes)
    watched = np.diff(np.minimum(np.cumsum([0, *sizes]), tracked)).tolist()
    numbers = [_number(block) for block in range(count)]
    blocks: list[Block] = list(pool.map(partial(begin, rules, start_key), numbers, sizes))
    start = problem.steps_done  # before it, nobody moves and nothing is paid
    mass: list[Mass] = [problem.initial] * start
    rewards: list[float] = [0.0] * start
    paths: list[Moves] = []
    for step in range(start, problem.horizon + 1):
        counts = np.sum([np.asarray(block.counts) for block in blocks], axis=0)
        everybody = jnp.asarray(counts / system.agents, dtype=dtype)
        mass.append(everybody[0])
        if step == problem.horizon:
            break
        seed = np.asarray(jax.random.key_data(jax.random.fold_in(step_key, step)))
        index, now = _number(step), mass[-1]
        if replan is not None:
            told = now if len(everybody) == 1 else everybody
            profile = checked_profile(replan(step, told, profile), system.problem)
        if trips is not None and (why := trips.wrong_chance(problem.grid, now, step)):
            raise UserError(why)
        profiles = [profile] if scouts is None else [scouts, profile]
        *first, shared = (
            Step(rules, choices(rules, each, index, now), index, seed, now) for each in profiles
        )
        steps = first + [shared] * (count - len(first))
        done: list[Advanced] = list(pool.map(advance, steps, numbers, blocks, watched))
        blocks = [each.block for each in done]
        rewards.append(sum(each.earned for each in done) / system.agents)
        if tracked:
            moves = [each.tracked for each in done if each.tracked is not None]
            paths.append(Moves(*(jnp.concatenate(parts) for parts in zip(*moves, strict=True))))
    if problem.pay_end:
        rewards.append(float(_end_reward(problem, mass[-1])))
    if not np.isfinite(rewards).all():
        raise UserError(
            "the episode is not finite: the reward returned NaN or infinity for a state, action "
            "or distribution that the policy led to"
        )
    return _Course(jnp.asarray(np.stack(mass)), jnp.asarray(rewards, dtype=dtype), paths)


_end_reward = eqx.filter_jit(end_reward)


@eqx.filter_jit
def _least(problem: Problem, mass: Masses) -> Scalar:
    return jnp.min(problem.margins(mass))


def _number(number: int) -> Int[Array, ""]:
    return jnp.asarray(number, dtype=jnp.int32)  # no Python number, for which it would be compiled
