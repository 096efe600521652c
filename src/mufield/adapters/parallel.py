"""A finite population as a PettingZoo environment: every agent decides for itself.

Agents move as tracked agents of a `SimulatedSystem` do, in continuous space; mu is the histogram
of the agents themselves. As their number grows, the average over agents of the summed rewards
tends to J of the mean-field problem, up to the size of the cells.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays import Key, Mass, Scalar, State, States, Step
from ..actions import Box
from ..environments.registry import make_system
from ..episode import AbstractSystem
from ..errors import UserError, whole_number
from ..policies.tables import TablePolicy
from ..problem import Motion, Problem
from ..space.measure import histogram
from ..systems import SimulatedSystem, agent_step, reward_at

try:
    from gymnasium import spaces
    from pettingzoo import ParallelEnv
except ImportError as error:
    what = "mufield.adapters.parallel needs PettingZoo: pip install 'mufield[pettingzoo]'"
    raise ImportError(what, name=error.name) from error

Numbers = Float[np.ndarray, "..."]
Flags = dict[str, bool]
Infos = dict[str, dict[str, Any]]


class PopulationEnv(ParallelEnv):  # type: ignore[misc] # PettingZoo ships no annotations
    """One episode of finitely many agents, each with its own action and reward.

    An observation is the agent's position, scaled to [0, 1] on each axis; what it sees of mu;
    and the share of the episode that is over. An action is a point of the problem's box, or the
    number of one of its options. The reward is r(s, a, mu). If the problem pays the last
    distribution, its reward with the action nearest to zero is added to that of the last step.
    All agents are done after the problem's horizon: ``agents`` names all of them or none.
    """

    # A dictionary, because PettingZoo takes no other type.
    metadata = {"name": "mufield_population_v0", "render_modes": [], "is_parallelizable": True}  # noqa: RUF012

    def __init__(
        self,
        system: str | AbstractSystem,
        *,
        agents: int = 100,
        scouts: int = 0,
        observe: str = "mu",
        **options: Any,
    ):
        """Builds the environment.

        Args:
            system: A simulated system, or the name of a registered one.
            agents: Number of agents.
            scouts: How many of them are scouts, to follow another policy: they are called
                ``scout_0``, ``scout_1``, ... and count in mu as the others do.
            observe: What agents see of mu: ``"mu"`` is the mass of every free cell, ``"local"``
                that of the agent's own, ``"position"`` nothing.
            **options: Options of a system that is given by name.
        """
        agents = whole_number(agents, "agents")
        if whole_number(scouts, "scouts", 0) > agents:
            raise UserError(f"at most all of the {agents} agents can be scouts, got {scouts}")
        if observe not in ("mu", "local", "position"):
            raise UserError(f"observe must be 'mu', 'local' or 'position', got {observe!r}")
        self.system = as_simulated(system, options)
        self._observe = observe
        # Agents are paid the true reward, even if the problem hides it from learners.
        flow, motion = self.system.reveal()
        self._problem = flow.problem
        self._start = compile_with(lambda own, key: own.draw_starts(key, agents), self._problem)
        self._move = compile_with(_move_all, self._problem, motion)
        self._end_rewards = compile_with(_end_rewards, self._problem)
        grid = self._problem.grid
        seen = {"mu": grid.n_cells, "local": 1, "position": 0}[observe]
        observations = spaces.Box(0.0, 1.0, (grid.dim + seen + 1,), np.float32)
        self.possible_agents = [f"{'scout' if i < scouts else 'agent'}_{i}" for i in range(agents)]
        self.observation_spaces = dict.fromkeys(self.possible_agents, observations)
        # One object for each agent, because libraries seed them one by one.
        self.action_spaces = {name: self._actions() for name in self.possible_agents}
        self.state_space = spaces.Box(0.0, 1.0, (grid.n_cells + 1,), np.float32)
        self.agents: list[str] = []
        self._random = np.random.default_rng()
        self._step = 0
        self._mass = self._problem.initial

    def _actions(self) -> Any:
        actions = self._problem.actions
        if isinstance(actions, Box):
            low, high = (np.asarray(b, dtype=np.float32) for b in (actions.lower, actions.upper))
            return spaces.Box(low, high, dtype=np.float32)
        return spaces.Discrete(int(actions.options.shape[0]))

    def observation_space(self, agent: str) -> Any:
        """The space of an agent's observations."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """The space of an agent's actions."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Numbers], Infos]:
        """Draws all agents anew; ``seed`` determines this episode and the ones that follow."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        key = jax.random.key(int(self._random.integers(2**31)))
        start_key, self._key = jax.random.split(key)
        self._step = self._problem.steps_done
        self.agents = list(self.possible_agents)
        self._place(self._start(start_key))
        return self._observations(), {name: {} for name in self.agents}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Numbers], dict[str, float], Flags, Flags, Infos]:
        """Lets every agent make one move; all of them see the mu before the moves."""
        self._check_names(actions)
        if not self.agents:
            return {}, {}, {}, {}, {}
        moves = self._laws(actions)
        ends, rewards = self._move(self._states, self._mass, moves, self._key, self._step)
        self._place(ends)
        self._step += 1
        over = self._step == self._problem.horizon
        if over and self._problem.pay_end:
            rewards = rewards + self._end_rewards(self._states, self._mass)
        names = self.agents
        paid = dict(zip(names, np.asarray(rewards).tolist(), strict=True))
        seen = self._observations()
        self.agents = [] if over else names
        infos: Infos = {name: {} for name in names}
        return seen, paid, dict.fromkeys(names, over), dict.fromkeys(names, False), infos

    def state(self) -> Numbers:
        """What a central critic may see: the mass of every free cell and the time."""
        return np.append(np.asarray(self._mass), self._time).astype(np.float32)

    @property
    def _time(self) -> float:
        return self._step / self._problem.horizon

    def _place(self, states: States) -> None:
        self._states = states
        self._mass = histogram(self._problem.grid, states)

    def _observations(self) -> dict[str, Numbers]:
        grid = self._problem.grid
        states, mass = np.asarray(self._states), np.asarray(self._mass)
        own = np.clip((states - np.asarray(grid.lower)) / np.asarray(grid.extent), 0.0, 1.0)
        parts = [own, np.full((len(states), 1), self._time)]
        if self._observe == "mu":
            parts.insert(1, np.broadcast_to(mass, (len(states), grid.n_cells)))
        elif self._observe == "local":
            parts.insert(1, mass[np.asarray(grid.index_of(self._states))][:, None])
        return dict(zip(self.agents, np.concatenate(parts, axis=1).astype(np.float32), strict=True))

    def _check_names(self, actions: Mapping[str, Any]) -> None:
        if actions and not self.agents:
            raise UserError("an episode must be begun first; call reset()")
        odd = sorted(actions.keys() ^ set(self.agents))
        if odd:
            raise UserError(
                f"expected one action for each of the {len(self.agents)} agents in `agents`, got "
                f"{len(actions)}; {odd[0]!r} is missing or unknown"
            )

    def _laws(self, actions: Mapping[str, Any]) -> TablePolicy:
        """The agents' checked actions as policies, stacked along an axis of agents."""
        given, known = [actions[name] for name in self.agents], self._problem.actions
        if isinstance(known, Box):
            vectors = np.asarray(given, dtype=self._problem.initial.dtype)
            if vectors.shape != (len(self.agents), known.dim):
                raise UserError(f"an action has the shape {(known.dim,)}, got {vectors.shape[1:]}")
            inside = np.asarray(known.contains(jnp.asarray(vectors)))
            if not inside.all():
                first = int(np.argmin(inside))
                raise UserError(
                    f"the action {vectors[first]} of {self.agents[first]} is outside "
                    f"{known.describe()}; clip or squash it"
                )
            return TablePolicy.deterministic(jnp.asarray(vectors)[:, None])
        choice, options = np.asarray(given), known.options.shape[0]
        whole = choice.dtype.kind in "iu" and choice.shape == (len(self.agents),)
        if not whole or choice.min() < 0 or choice.max() >= options:
            raise UserError(
                f"each action must be a whole number from 0 to {options - 1}, got {choice.min()} "
                f"to {choice.max()} of the type {choice.dtype} and the shape {choice.shape[1:]}"
            )
        return TablePolicy.mixing(known.moves, known.options[choice][:, None])


def _move_all(
    problem: Problem, motion: Motion, states: States, mass: Mass, laws: Any, key: Key, step: Step
) -> tuple[States, Float[Array, "agents"]]:
    """Where all agents come to rest, and what they earn for the step."""
    keys = jax.random.split(jax.random.fold_in(key, step), states.shape[0])

    def one(chosen: TablePolicy, state: State, key: Key) -> tuple[State, Scalar]:
        action, moved, *_ = agent_step(problem, motion, chosen, state, mass, key, step)
        return moved.position, reward_at(problem, state, action, mass, step)

    return jax.vmap(one)(laws, states, keys)


def _end_rewards(problem: Problem, states: States, mass: Mass) -> Float[Array, "agents"]:
    rest = jnp.asarray(problem.actions.rest, dtype=states.dtype)
    return jax.vmap(lambda state: reward_at(problem, state, rest, mass, problem.horizon))(states)


def as_simulated(system: str | AbstractSystem, options: Mapping[str, Any]) -> SimulatedSystem:
    """The given system, or the registered system of that name built with the options."""
    if isinstance(system, str):
        system = make_system(system, **options)
    elif options:
        names = ", ".join(sorted(options))
        raise UserError(f"the options {names} are for systems given by name; pass its name")
    if not isinstance(system, SimulatedSystem):
        kind = type(system).__name__
        raise UserError(f"expected a SimulatedSystem, or the name of one, got a {kind}")
    if system.problem.shocks is not None:
        raise UserError("adapters know no shocks; give system.on_path(path), on one path of them")
    if system.problem.trips is not None and system.problem.trips.stages:
        raise UserError("adapters know no agents under way; give trips of one step each")
    return system


def compile_with(function: Callable[..., Any], *fixed: Any) -> Callable[..., Any]:
    """Compiles ``function(*fixed, *arguments)`` as a function of the arguments, all arrays.

    The fixed arguments are flattened only once; `equinox.filter_jit` would do so at every call,
    which takes longer than a step of a small system.
    """
    arrays, rest = eqx.partition(fixed, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)

    @jax.jit
    def run(leaves: list[Any], *arguments: Any) -> Any:
        whole = eqx.combine(jax.tree.unflatten(structure, leaves), rest)
        return function(*whole, *arguments)

    return partial(run, leaves)
