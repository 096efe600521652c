"""From a policy in JAX to plain arrays and a document that says all about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten_with_path

from ..errors import UserError
from ..policies.base import AbstractPolicy, Profile
from ..policies.document import leaf_name
from ..policies.encoders import WORDS, AllCells, Pooled, Unseen
from ..policies.network import NetworkPolicy
from ..policies.spread import SpreadTable, normal_scores
from ..policies.tables import TablePolicy
from ..policies.tabular import SquashedTable
from ..problem import Box, Problem
from .reader import FORMAT, VERSION, DeployedPolicy

UNITS = {
    "state": "the units of the grid",
    "action": "the units of the actions",
    "mass": "share of the population in each free cell",
    "step": "moves since the episode began",
}
"""What numbers mean unless somebody says better; a problem knows no metres or seconds."""


@dataclass(frozen=True)
class Deployable:
    """A policy as plain data.

    Attributes:
        document: What JSON says of it.
        arrays: Its arrays, those of ``document["stacked"]`` with one slice for each step.
    """

    document: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def policy(self) -> DeployedPolicy:
        """What a reader would make of it."""
        return DeployedPolicy(self.document, self.arrays)


@dataclass(frozen=True)
class _Plain:
    """What depends on the kind of policy.

    Attributes:
        kind: The reader's name of the kind.
        entries: Its own entries of the document.
        arrays: Its arrays.
        sources: Where the policy calls an array otherwise: its name there.
    """

    kind: str
    entries: dict[str, Any]
    arrays: dict[str, Any]
    sources: dict[str, str] = field(default_factory=dict)


def describe(
    profile: Profile,
    problem: Problem,
    *,
    identity: Mapping[str, Any] | None = None,
    units: Mapping[str, str] | None = None,
) -> Deployable:
    """A policy as plain arrays and a document.

    Args:
        profile: The policy.
        problem: What it was planned for.
        identity: The run that it comes from, in values that JSON has.
        units: What the numbers are measured in: ``state``, ``action``.
    """
    whole = profile.join(profile.per_step)
    plain = _plain(whole, problem)
    by_step = {leaf_name(path) for path, _ in tree_flatten_with_path(profile.per_step)[0]}
    stacked = {name for name in plain.arrays if plain.sources.get(name, name) in by_step}
    unknown = set(units or {}) - UNITS.keys()
    if unknown:
        raise UserError(f"expected units of {', '.join(UNITS)}, got {', '.join(sorted(unknown))}")
    dtype = str(jnp.result_type(*plain.arrays.values()))
    arrays = {name: np.asarray(array, dtype, order="C") for name, array in plain.arrays.items()}
    if isinstance(problem.actions, Box) and "actions" in arrays:
        arrays["actions"] = _boxed(arrays["actions"], problem.actions)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "mufield": version("mufield"),
        "kind": plain.kind,
        "horizon": profile.horizon,
        "stacked": sorted(stacked),
        "dtype": dtype,
        "grid": _grid(problem),
        "actions": _actions(problem),
        "axes": {
            "state": [f"state_{axis}" for axis in range(problem.grid.dim)],
            "action": [f"action_{axis}" for axis in range(problem.actions.dim)],
        },
        "units": UNITS | dict(units or {}),
        "identity": dict(identity or {}),
        "arrays": {n: {"dtype": dtype, "shape": list(a.shape)} for n, a in arrays.items()},
        **plain.entries,
    }
    deployable = Deployable(document, arrays)
    deployable.policy()  # raises if the parts do not fit each other
    return deployable


def _table(policy: Any, problem: Problem) -> _Plain:
    rows, moves = policy.weights.shape[-2:]
    cells = problem.grid.n_cells
    if policy.rows > 1:
        _check_cells(policy.rows, problem)
    _check_actions(policy.actions, problem)
    steps, dim = policy.actions.shape[:-3], policy.actions.shape[-1]
    if moves == 1:
        actions = jnp.broadcast_to(policy.actions[..., 0, :], (*steps, cells, dim))
        return _Plain("table", {}, {"actions": actions})
    if policy.actions.shape[-3] > 1:
        raise UserError(
            "a table whose cells have moves of their own cannot be exported; give all the same"
        )
    arrays = {"actions": policy.actions[..., 0, :, :], "weights": policy.weights}
    return _Plain("randomised", {"rows": rows, "moves": moves}, arrays)


def _squashed(policy: Any, problem: Problem) -> _Plain:
    table = _table(policy.table(), problem)
    return _Plain(table.kind, table.entries, table.arrays, {"actions": "raw"})


def _network(policy: Any, problem: Problem) -> _Plain:
    if not isinstance(policy.mu, Unseen | AllCells | Pooled):
        raise UserError(
            "expected a network that sees mu as Unseen, AllCells or Pooled, got "
            f"{type(policy.mu).__name__}; write its actions into a TablePolicy"
        )
    if policy.grid != problem.grid or policy.box != problem.actions:
        raise UserError(
            "the network was made for another grid or action box than the problem's; name the "
            "environment and the options that it was planned for"
        )
    moves = policy.points**policy.box.dim
    blocks = policy.mu.blocks(policy.grid).tolist() if isinstance(policy.mu, Pooled) else []
    entries = {
        "encoder": {"kind": WORDS[type(policy.mu)], "blocks": blocks},
        "widths": [policy.bias.shape[-1], *(b.shape[-1] for _, b in policy.hidden[:-1])],
        "moves": moves,
    }
    leaves = tree_flatten_with_path(eqx.filter(policy, eqx.is_array))[0]
    arrays = {leaf_name(path): leaf for path, leaf in leaves}
    if moves > 1:
        arrays["scores"] = _scores(policy, policy.bias.dtype)
    return _Plain("network", entries, arrays)


def _spread(policy: Any, problem: Problem) -> _Plain:
    _check_cells(policy.centre.shape[-2], problem)
    if policy.box != problem.actions:
        raise UserError(
            "the policy was made for another action box than the problem's; name the environment "
            "and the options that it was planned for"
        )
    scores = _scores(policy, policy.centre.dtype)
    deviation = jax.nn.softplus(policy.spread)
    arrays = {"centre": policy.centre, "deviation": deviation, "scores": scores}
    return _Plain("spread", {"moves": len(scores)}, arrays, {"deviation": "spread"})


def _scores(policy: Any, dtype: Any) -> np.ndarray:
    """Where actions lie around their centre."""
    return normal_scores(policy.points, policy.box.dim).astype(dtype)


KINDS: dict[type[AbstractPolicy], Callable[[Any, Problem], _Plain]] = {
    NetworkPolicy: _network,
    SpreadTable: _spread,
    SquashedTable: _squashed,
    TablePolicy: _table,
}
"""How each kind of policy is taken apart. A new kind also needs a class in `reader.KINDS` and a
graph in `onnx_graph.GRAPHS`, unless it is written as one that is there."""


def _plain(policy: Any, problem: Problem) -> _Plain:
    take_apart = KINDS.get(type(policy))
    if take_apart is None:
        raise UserError(
            f"a {type(policy).__name__} cannot be exported: expected one of "
            f"{', '.join(sorted(kind.__name__ for kind in KINDS))}; write its actions into a "
            "TablePolicy"
        )
    return take_apart(policy, problem)


def _check_cells(cells: int, problem: Problem) -> None:
    if cells != problem.grid.n_cells:
        raise UserError(
            f"the policy is for {cells} cells, and the problem has {problem.grid.n_cells}; name "
            "the environment and the options that it was planned for"
        )


def _check_actions(actions: Any, problem: Problem) -> None:
    if actions.shape[-1] != problem.actions.dim:
        raise UserError(
            f"the policy's actions have {actions.shape[-1]} axes, and the problem's "
            f"{problem.actions.dim}; name the environment that it was planned for"
        )
    inside = np.asarray(problem.actions.contains(jnp.asarray(actions)))
    if not inside.all():
        wrong = np.asarray(actions)[~inside][0]
        raise UserError(
            f"the policy's action {wrong} is outside {problem.actions.describe()}; clip it"
        )


def _boxed(actions: np.ndarray, box: Box) -> np.ndarray:
    """Actions that rounding put out of the box, back in it."""
    lower, upper = (np.asarray(bound, dtype=actions.dtype) for bound in (box.lower, box.upper))
    return np.asarray(np.clip(actions, lower, upper))


def _grid(problem: Problem) -> dict[str, Any]:
    grid = problem.grid
    return {
        "lower": list(grid.lower),
        "upper": list(grid.upper),
        "shape": list(grid.shape),
        "periodic": list(grid.periodic),
        "cells": grid.n_cells,
        "walls": np.packbits(grid.walls).tobytes().hex(),
    }


def _actions(problem: Problem) -> dict[str, Any]:
    if isinstance(problem.actions, Box):
        return {"lower": list(problem.actions.lower), "upper": list(problem.actions.upper)}
    return {"moves": np.asarray(problem.actions.moves).tolist()}
