"""Writes a policy for use elsewhere, and makes sure that it is the same policy."""

import importlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np

from .._files import write_bytes, write_sealed
from ..errors import UserError
from ..policies.base import AbstractPolicy, Profile
from ..policies.encoders import AllCells, Pooled, Unseen
from ..policies.files import grid_entries, plain
from ..policies.network import NetworkPolicy
from ..policies.tables import TablePolicy
from ..problem import Box, Problem
from . import reader
from .check import TOLERANCE, largest_difference, onnx_decides, reader_decides
from .reader import KIND, VERSION, DeployedPolicy

Format = Literal["safetensors", "onnx"]
FORMATS: tuple[Format, ...] = get_args(Format)

READER = "mufield_reader.py"
"""What the copy of the reader is called: it is imported by that name where mufield is not."""

UNITS = {
    "state": "the units of the grid",
    "action": "the units of the actions",
    "mass": "share of the population in each free cell",
    "step": "moves since the episode began",
}
"""What numbers mean unless somebody says better; a problem knows no metres or seconds."""


@dataclass(frozen=True)
class Written:
    """One file.

    Attributes:
        path: Where it is.
        difference: Largest difference of its outputs from those of the policy in JAX, on random
            inputs; None for the reader.
    """

    path: Path
    difference: float | None


def export_policy(
    profile: Profile,
    problem: Problem,
    directory: Path,
    *,
    formats: Sequence[Format] = FORMATS,
    identity: Mapping[str, Any] | None = None,
    units: Mapping[str, str] | None = None,
) -> list[Written]:
    """Writes ``policy.safetensors`` with its reader, and ``policy.onnx``; each only if it is right.

    Args:
        profile: The policy.
        problem: What it was planned for.
        directory: Where to write; made if it does not exist.
        formats: Which of the files.
        identity: The run that it comes from, in values that JSON has.
        units: What the numbers are measured in: ``state``, ``action``.

    Raises:
        RuntimeError: If a file decides otherwise than the policy in JAX; it is not left there.
    """
    check_extra(formats)
    policy = describe(profile, problem, identity=identity, units=units)
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name in formats:
        path = directory / f"policy.{name}"
        # Beside its place first, to be read back; put there only if it is right.
        with tempfile.TemporaryDirectory(dir=directory, prefix=".mufield-") as place:
            trial = Path(place) / path.name
            if name == "onnx":
                from .onnx_graph import write_onnx

                write_onnx(trial, policy)
                decide = onnx_decides(trial)
            else:
                write_policy(trial, policy)
                decide = reader_decides(trial)
            difference = largest_difference(decide, profile, problem)
            if not difference <= TOLERANCE:
                raise RuntimeError(
                    f"{path} was not written: its outputs would differ by {difference:.3g} from "
                    f"the policy's, expected at most {TOLERANCE:g}"
                )
            os.replace(trial, path)
        written.append(Written(path, difference))
        if name == "safetensors":
            write_bytes(directory / READER, Path(reader.__file__).read_bytes())
            written.append(Written(directory / READER, None))
    return written


def write_policy(path: Path, policy: DeployedPolicy) -> None:
    """Writes a policy for the reader, whole or not at all."""
    write_sealed(path, policy.document, policy.arrays, kind=KIND)


def check_extra(formats: Sequence[str]) -> None:
    """Raises if a package that is needed is not installed, or there is no such format."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise UserError(f"expected formats among {', '.join(FORMATS)}, got {', '.join(formats)}")
    for package in ("onnx", "onnxruntime") if "onnx" in formats else ():
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"ONNX files need {package}, which is not there; write only safetensors, or add it",
                name=error.name,
            ) from error


def describe(
    profile: Profile,
    problem: Problem,
    *,
    identity: Mapping[str, Any] | None = None,
    units: Mapping[str, str] | None = None,
) -> DeployedPolicy:
    """A policy as the reader has it: plain arrays, and a document that says all about them.

    Args:
        profile: The policy.
        problem: What it was planned for.
        identity: The run that it comes from, in values that JSON has.
        units: What the numbers are measured in: ``state``, ``action``.
    """
    unknown = set(units or {}) - UNITS.keys()
    if unknown:
        raise UserError(f"expected units of {', '.join(UNITS)}, got {', '.join(sorted(unknown))}")
    document, arrays = plain(profile)
    _check_fits(profile.join(profile.per_step), problem)
    dtype = np.result_type(*arrays.values())
    arrays = {name: np.asarray(array, dtype) for name, array in arrays.items()}
    actions = problem.actions
    if not isinstance(actions, Box):
        known = {"moves": np.asarray(actions.moves).tolist()}
    else:
        known = {"lower": list(actions.lower), "upper": list(actions.upper)}
        if "actions" in arrays:  # back in the box where rounding put them out of it
            bounds = (np.asarray(bound, dtype) for bound in (actions.lower, actions.upper))
            arrays["actions"] = np.clip(arrays["actions"], *bounds)
    document = {
        **document.pop("policy"),
        **document,
        "version": VERSION,
        "mufield": version("mufield"),
        "grid": grid_entries(problem.grid),
        "actions": known,
        "axes": {
            "state": [f"state_{axis}" for axis in range(problem.grid.dim)],
            "action": [f"action_{axis}" for axis in range(actions.dim)],
        },
        "units": UNITS | dict(units or {}),
        "identity": dict(identity or {}),
        "dtypes": dict.fromkeys(arrays, dtype.name),
    }
    return DeployedPolicy(document, arrays)


def _check_fits(policy: AbstractPolicy, problem: Problem) -> None:
    remedy = "name the environment and the options that it was planned for"
    if isinstance(policy, NetworkPolicy):
        if not isinstance(policy.mu, Unseen | AllCells | Pooled):
            raise UserError(
                "expected a network that sees mu as Unseen, AllCells or Pooled, got "
                f"{type(policy.mu).__name__}; write its actions into a TablePolicy"
            )
        if policy.grid != problem.grid or policy.box != problem.actions:
            raise UserError(
                "the network was made for another grid or action box than the problem's; " + remedy
            )
    if isinstance(policy, TablePolicy):
        dim, cells = policy.actions.shape[-1], problem.grid.n_cells
        if policy.rows not in (1, cells) or dim != problem.actions.dim:
            raise UserError(
                f"the policy is for {policy.rows} cells and actions of {dim} axes, and the problem "
                f"has {cells} and {problem.actions.dim}; {remedy}"
            )
        inside = np.asarray(problem.actions.contains(jnp.asarray(policy.actions)))
        if not inside.all():
            raise UserError(
                f"the policy's action {np.asarray(policy.actions)[~inside][0]} is outside "
                f"{problem.actions.describe()}; clip it"
            )
