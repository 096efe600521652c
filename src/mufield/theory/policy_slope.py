"""Lipschitz constants of policies (assumption LipschitzPolicyAndReward) between cell centres."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from .. import _types
from ..policies.base import Profile
from ..policies.network import NetworkPolicy
from ..policies.randomised import RandomisedPolicy, UniformRandom
from ..policies.tabular import TabularPolicy
from ..problem import Problem
from ..space.grid import Grid
from .constants import Constant
from .lattice import between_cells

BLIND = (RandomisedPolicy, TabularPolicy, UniformRandom)
"""Policies that do not look at mu."""


def policy_slope(problem: Problem, profile: Profile, mass: _types.Masses) -> Constant:
    """Greatest change of the action between two cells over their distance, along a flow.

    Of a randomised policy it is the change of the action's law in W1: exact on one axis of
    actions, and otherwise the change of the mean action, which is no more than it.

    The constant is a bound for the lattice of cell centres, where flows on a grid look; agents in
    between see a table jump from cell to cell, which is Lipschitz with no constant. How a policy
    changes with mu is not looked at, so that for one that sees mu the constant is an estimate.
    """
    actions, weights = (np.asarray(x, dtype=float) for x in _laws(problem.grid, profile, mass))
    policy = profile.at(0)
    blind = isinstance(policy, BLIND) or (isinstance(policy, NetworkPolicy) and policy.ahead)
    note = (
        "between cell centres"
        if blind
        else "the policy sees mu, and its slope in mu does not count"
    )
    one_by_one = actions.shape[2] > 1 and actions.shape[3] == 1
    if one_by_one and np.all(actions == actions[:, :1]):
        slopes = [
            between_cells(problem.grid, _cumulative(a[0, :, 0], w), order=1)
            for a, w in zip(actions, weights, strict=True)
        ]
        return Constant(max(slopes), "bound" if blind else "estimate", note)
    means = np.einsum("hkm,hkma->hka", weights, actions)
    value = max(between_cells(problem.grid, each) for each in means)
    if actions.shape[2] > 1:
        return Constant(value, "estimate", "of the mean action; the law may change faster")
    return Constant(value, "bound" if blind else "estimate", note)


@eqx.filter_jit
def _laws(grid: Grid, profile: Profile, mass: _types.Masses) -> tuple[Array, Array]:
    """Actions and weights of all steps and cells."""

    def step(_: None, inputs: tuple[Any, Array]) -> tuple[None, tuple[Array, Array]]:
        part, now = inputs
        law = profile.join(part).at_cells(grid, now)
        return None, (law.actions, law.weights)

    return jax.lax.scan(step, None, (profile.per_step, mass[:-1]), length=profile.horizon)[1]


def _cumulative(
    actions: Float[np.ndarray, "moves"], weights: Float[np.ndarray, "cells moves"]
) -> Float[np.ndarray, "cells gaps"]:
    """Cumulative weights times the gaps: rows whose sum of differences is W1 of the laws."""
    order = np.argsort(actions, kind="stable")
    gaps = np.diff(actions[order])
    return np.asarray(np.cumsum(weights[:, order], axis=1)[:, :-1] * gaps)
