"""Policies under shocks: one for each shock, or one that reads ``mu.shock``."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._arrays import State
from ..actions import Box, MoveSet
from ..errors import UserError
from ..shocks import Path, Shocks, seen_under
from ..space.grid import Grid
from ..space.measure import MeanField
from .base import AbstractPolicy, ActionLaw, Profile


class _AroundPolicy(AbstractPolicy):
    policy: eqx.AbstractVar[AbstractPolicy]

    @property
    def sees_mu(self) -> bool:
        return self.policy.sees_mu

    @property
    def by_cell(self) -> bool:
        return self.policy.by_cell

    def check(self, grid: Grid, actions: Box | MoveSet) -> None:
        self.policy.check(grid, actions)


class ByShock(_AroundPolicy):
    """One policy for each shock, or for each sequence of the last shocks.

    Attributes:
        policy: The policies: each array has an axis for them, after that of the steps.
        memory: How many of the last shocks are seen: 1 for the present one. Their numbers are the
            digits of the policy's number, that of the present one is the last.
    """

    policy: AbstractPolicy
    memory: int = eqx.field(static=True, default=1)

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """Raises: `profile_on_path` chooses the policies of the shocks first."""
        raise UserError(
            "the policy sees shocks, and none is known here; take it in the problem that it was "
            "planned for, and plan anew within an episode only if its first plan sees shocks, too"
        )


class _OnPath(_AroundPolicy):
    """A policy that reads ``mu.shock``, or none of it, on a path."""

    policy: AbstractPolicy
    values: Any = None
    path: Any = None

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        return self.policy.law(state, seen_under(mu, self.values, self.path))


def profile_on_path(profile: Profile, shocks: Shocks | None, path: Path) -> Profile:
    """The policies of a profile's steps on a path of the shocks; it sees no later ones."""
    policy = profile.shared
    if shocks is None or (not isinstance(policy, ByShock) and not policy.sees_mu):
        return profile
    if not isinstance(policy, ByShock):
        part = None if profile.per_step is None else _OnPath(profile.per_step)
        return replace(profile, per_step=part, shared=_OnPath(policy, shocks.values, path))
    steps = jnp.arange(profile.horizon)
    rows = shocks.history(path, policy.memory)[: profile.horizon]
    parts = {leaf.shape[1] for leaf in jax.tree.leaves(profile.per_step)}
    if parts != {shocks.count**policy.memory}:
        raise UserError(
            f"the policy needs a part for each of {shocks.count**policy.memory} cases of the last "
            f"shocks at each step, got {sorted(parts)}; take the problem that it was planned for"
        )
    per_step: Any = jax.tree.map(lambda leaf: leaf[steps, rows], profile.per_step)
    return replace(profile, per_step=per_step.policy, shared=policy.policy)
