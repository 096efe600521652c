"""One step's policy pi_h(s, mu), and the profile of all steps' policies."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arrays import Action, Key, Mass, State, Step
from ..actions import Box, MoveSet
from ..errors import UserError, explained, is_a, whole_number
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField


class ActionLaw(eqx.Module):
    """A distribution over finitely many actions, with their probabilities as ``weights``.

    Deterministic policies have a single action of weight one.
    """

    actions: Float[Array, "*cells moves action_dim"]
    weights: Float[Array, "*cells moves"]

    @classmethod
    def certain(cls, action: Float[Array, "*cells action_dim"]) -> "ActionLaw":
        """The law of a deterministic policy."""
        weights = jnp.ones((*action.shape[:-1], 1), dtype=action.dtype)
        return cls(actions=action[..., None, :], weights=weights)

    def mean(self) -> Float[Array, "*cells action_dim"]:
        """The average action."""
        return jnp.einsum("...m,...ma->...a", self.weights, self.actions)

    def sample(self, key: Key) -> Action:
        """Draws an action; for the law of one agent."""
        if self.actions.shape[0] == 1:
            return self.actions[0]
        return self.actions[jax.random.categorical(key, jnp.log(self.weights))]


class AbstractPolicy(eqx.Module):
    """What an agent does at one step: pi(s, mu), written for one agent."""

    @property
    def sees_mu(self) -> bool:
        """Whether the action may depend on mu."""
        return True

    @property
    def by_cell(self) -> bool:
        """Whether all agents of a cell have the same law, wherever in the cell they are."""
        return False

    def check(self, grid: Grid, actions: Box | MoveSet) -> None:
        """Raises if the policy was made for another space or other actions; functions fit all."""

    @abstractmethod
    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The distribution of the action of one agent at ``state``."""

    def at_cells(self, grid: Grid, mass: Mass, step: Step) -> ActionLaw:
        """The laws of agents at all cell centres, who see ``mass`` at step ``step``."""
        centres = jnp.asarray(grid.centres, dtype=mass.dtype)

        def one(state: State, here: Array) -> ActionLaw:
            law = self.law(state, MeanField(mass, here, grid, step))
            name = f"what {type(self).__name__}.law returns"
            return is_a(law, ActionLaw, name, "return ActionLaw.certain(action) for a single one")

        return jax.vmap(one)(centres, mass)


OWN_POLICIES: dict[str, type[AbstractPolicy]] = {}
"""Classes of policies that files may name, by the names of `saved_as`."""


def saved_as(name: str) -> Callable[[type[AbstractPolicy]], type[AbstractPolicy]]:
    """Lets `save_policy` and `load_policy` handle a policy class of your own, as a decorator.

    A file holds the name, the arrays of the class's fields, and static fields that JSON can hold.
    It holds no code: the program that loads it must have registered the class by the same name,
    for example by importing your module.
    """

    def register(kind: type[AbstractPolicy]) -> type[AbstractPolicy]:
        OWN_POLICIES[name] = kind
        return kind

    return register


class Profile(eqx.Module):
    """The policies of all steps, (pi_0, ..., pi_{H-1}), as one pytree cut into two.

    Attributes:
        per_step: The arrays that differ from step to step, stacked along their first axis.
        shared: Everything else, the same at all steps.
        horizon: Number of steps H.
    """

    per_step: Any
    shared: Any
    horizon: int = eqx.field(static=True)

    @classmethod
    def stationary(cls, policy: AbstractPolicy, horizon: int) -> "Profile":
        """The same policy at every step."""
        _check_parts(policy, horizon)
        return cls(per_step=None, shared=policy, horizon=horizon)

    @classmethod
    def stacked(cls, policy: AbstractPolicy, horizon: int) -> "Profile":
        """Step h's policy is the slice ``[h]`` of every array of ``policy``."""
        _check_parts(policy, horizon)
        arrays, shared = eqx.partition(policy, eqx.is_array)
        for leaf in jax.tree.leaves(arrays):
            if leaf.ndim == 0 or leaf.shape[0] != horizon:
                raise UserError(
                    f"each array of a stacked policy needs {horizon} slices along its first "
                    f"axis, one for each step, got the shape {leaf.shape}"
                )
        return cls(per_step=arrays, shared=shared, horizon=horizon)

    def __repr__(self) -> str:
        kind = "stationary" if self.per_step is None else "stacked"
        return f"Profile.{kind}({self.join(self.per_step)!r}, {self.horizon})"

    @property
    def sees_mu(self) -> bool:
        """Whether actions may depend on mu at any step."""
        return bool(self.shared.sees_mu)

    @property
    def by_cell(self) -> bool:
        """Whether all agents of a cell have the same law at every step."""
        return bool(self.shared.by_cell)

    def at(self, step: int | Int[Array, ""]) -> AbstractPolicy:
        """The policy of one step."""
        return self.join(jax.tree.map(lambda leaf: leaf[step], self.per_step))

    def laws(self, grid: Grid, mass: Float[Array, "steps cells"]) -> ActionLaw:
        """The laws of agents at all cell centres along an episode, stacked over its steps.

        ``mass`` are the distributions before each move.
        """

        def one(inputs: tuple[Any, Mass, Array]) -> ActionLaw:
            part, now, number = inputs
            return self.join(part).at_cells(grid, now, number)

        numbers = jnp.arange(len(mass), dtype=jnp.int32)
        return jax.lax.map(one, (self.per_step, mass, numbers))

    def join(self, part: Any) -> AbstractPolicy:
        """The policy of one step, from that step's slice of `per_step`; for use in scans."""
        return self.shared if part is None else eqx.combine(part, self.shared)


class FunctionPolicy(AbstractPolicy):
    """A user's function ``(state, mu, step) -> action``; the step is that of mu."""

    function: Callable[[State, MeanField, Any], Action]

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The function's action, with certainty."""
        step = jnp.asarray(mu.step, dtype=jnp.int32)
        what = (
            "the policy could not be evaluated; it must be a function (state, mu, step) -> action "
            f"of one agent, here with a state of shape {state.shape}"
        )
        with explained(what, "(state, mu, step)"):
            action = self.function(mu.grid.told(state), mu, step)
            action = jnp.asarray(action, dtype=state.dtype)
            action = action if mu.grid.nodes is None else jnp.atleast_1d(action)
        return ActionLaw.certain(action)


def _check_parts(policy: Any, horizon: Any) -> None:
    whole_number(horizon, "the horizon of a profile")
    is_a(policy, AbstractPolicy, "the policy", "make a TablePolicy, or pass a function as it is")


def check_same(own: Any, other: Any, what: str) -> None:
    """Raises if a policy for the space, or actions, ``own`` is used with others."""
    if own == other:
        return
    differ = f"for {own.describe()}, and this is {other.describe()}"
    alike = own.describe() == other.describe()
    if alike and own.nodes is not None:
        differ = f"both have {own.describe()}, but other names or successors"
    elif alike:
        cells = np.argwhere(own.walls != other.walls).tolist()
        differ = f"their walls differ in {len(cells)} cells, first in {tuple(cells[0])}"
    raise UserError(
        f"the policy was made for {what}: {differ}; name the environment and the options that it "
        "was planned for"
    )


def checked_profile(policy: Any, problem: Problem) -> Profile:
    """`as_profile`; raises unless the policy was made for the problem's space and actions.

    Whatever takes policies from outside calls it: policies do not check their grid again.
    """
    profile = as_profile(policy, problem.horizon)
    profile.join(profile.per_step).check(problem.grid, problem.actions)
    return profile


def as_profile(policy: Any, horizon: int) -> Profile:
    """Makes a profile of a profile, a policy, or a function ``(state, mu, step) -> action``."""
    if isinstance(policy, Profile):
        if policy.horizon != horizon:
            raise UserError(f"the problem has {horizon} steps but the profile has {policy.horizon}")
        return policy
    if isinstance(policy, AbstractPolicy):
        return Profile.stationary(policy, horizon)
    if callable(policy):
        return Profile.stationary(FunctionPolicy(policy), horizon)
    raise UserError(
        "expected a Profile, a policy or a function (state, mu, step) -> action, "
        f"got {type(policy).__name__}; pass one of these"
    )
