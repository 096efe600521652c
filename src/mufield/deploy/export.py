"""Writes a policy for use elsewhere, and checks that the files decide as the policy does."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np

from ..actions import Box
from ..errors import UserError
from ..io.atomic import write_bytes
from ..io.policies import grid_entries, plain
from ..io.sealed import sealed_bytes
from ..policies.base import AbstractPolicy, Profile, checked_profile
from ..policies.encoders import Pooled, Unseen
from ..policies.network import NetworkPolicy
from ..policies.tables import TablePolicy
from ..problem import Problem
from . import reader
from .check import TOLERANCE, largest_difference, onnx_decides, reader_decides
from .reader import DeployedPolicy

Format = Literal["safetensors", "onnx"]


@dataclass(frozen=True)
class Written:
    """A written file, and the largest difference of its outputs from the policy's in JAX.

    The difference of the reader is None.
    """

    path: Path
    difference: float | None


def export_policy(
    profile: Profile | AbstractPolicy,
    problem: Problem,
    directory: Path,
    *,
    formats: Sequence[Format] = ("safetensors",),
    identity: Mapping[str, Any] | None = None,
    units: Mapping[str, str] | None = None,
) -> list[Written]:
    """Writes ``policy.safetensors`` with its reader, or ``policy.onnx``, or both.

    Args:
        profile: The policy.
        problem: The problem that it was planned for.
        directory: Where to write; made if it does not exist.
        formats: Which files to write; ``"onnx"`` needs the extra ``deploy``.
        identity: Where the policy comes from, such as its run; anything that JSON can hold.
        units: Units of ``state`` and ``action``, ``mass`` and ``step``.

    Raises:
        RuntimeError: If a file would decide otherwise than the policy in JAX. It is not written.
    """
    check_extra(formats)
    profile = checked_profile(profile, problem)
    policy = describe(profile, problem, identity=identity, units=units)
    proved: dict[str, tuple[bytes, float | None]] = {}
    for name in formats:
        path = directory / f"policy.{name}"
        # Read back from memory: nothing is written before all of it is right.
        if name == "onnx":
            from .onnx_graph import onnx_bytes

            data = onnx_bytes(policy)
            decide = onnx_decides(data)
        else:
            data = policy_bytes(policy)
            decide = reader_decides(data)
        difference = largest_difference(decide, profile, problem)
        if not difference <= TOLERANCE:
            raise RuntimeError(
                f"{path} was not written: its outputs would differ by {difference:.3g} from "
                f"the policy's, expected at most {TOLERANCE:g}"
            )
        proved[path.name] = (data, difference)
        if name == "safetensors":
            # Imported by this name where mufield is not installed.
            proved["mufield_reader.py"] = (Path(reader.__file__).read_bytes(), None)
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for file, (data, off) in proved.items():
        write_bytes(directory / file, data)
        written.append(Written(directory / file, off))
    return written


def policy_bytes(policy: DeployedPolicy) -> bytes:
    """The bytes of a policy's file for the reader."""
    return sealed_bytes(policy.document, policy.arrays, kind=DeployedPolicy.kind)


def check_extra(formats: Sequence[str]) -> None:
    """Raises if a format is unknown, or a package that it needs is not installed."""
    known = get_args(Format)
    unknown = [name for name in formats if name not in known]
    if unknown or not formats:
        raise UserError(f"expected formats among {', '.join(known)}, got {', '.join(formats)}")
    for package in ("onnx", "onnxruntime") if "onnx" in formats else ():
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"ONNX files need {package}, which is not there; write only safetensors, or add it",
                name=error.name,
            ) from error


def describe(
    profile: Profile | AbstractPolicy,
    problem: Problem,
    *,
    identity: Mapping[str, Any] | None = None,
    units: Mapping[str, str] | None = None,
) -> DeployedPolicy:
    """The policy as the reader's object, to be written; arguments as in `export_policy`."""
    # A problem does not know of metres or seconds.
    default = {
        "state": "the units of the grid",
        "action": "the units of the actions",
        "mass": "share of the population in each free cell",
        "step": "moves since the episode began",
    }
    unknown = set(units or {}) - default.keys()
    if unknown:
        raise UserError(f"expected units of {', '.join(default)}, got {', '.join(sorted(unknown))}")
    profile = checked_profile(profile, problem)
    document, arrays = plain(profile)
    _check_exportable(profile.join(profile.per_step), problem)
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
        "version": DeployedPolicy.version,
        "mufield": version("mufield"),
        "grid": grid_entries(problem.grid),
        **_map(problem),
        "actions": known,
        "axes": {
            "state": [f"state_{axis}" for axis in range(problem.grid.dim)],
            "action": [f"action_{axis}" for axis in range(actions.dim)],
        },
        "units": default | dict(units or {}),
        "identity": dict(identity or {}),
        "dtypes": dict.fromkeys(arrays, dtype.name),
    }
    return DeployedPolicy(document, arrays)


def _map(problem: Problem) -> dict[str, Any]:
    """Where on the earth the grid is, and how far actions of one point, if it is known."""
    city, actions = problem.city, problem.actions
    if city is None:
        return {}
    place = {"longitude": city.longitude, "latitude": city.latitude, "turn": city.turn}
    if actions.dim == 2:
        largest = np.maximum(np.abs(actions.lower), np.abs(actions.upper))
        place["reach"] = (np.asarray(problem.max_move) / np.maximum(largest, 1e-9)).tolist()
    return {"map": place}


def _check_exportable(policy: AbstractPolicy, problem: Problem) -> None:
    if not isinstance(policy, TablePolicy | NetworkPolicy):
        raise UserError(
            f"readers know tables and networks, got a {type(policy).__name__}; write its actions "
            "into a TablePolicy"
        )
    seen = policy.mu if isinstance(policy, NetworkPolicy) else Unseen()
    if not isinstance(seen, Unseen | Pooled):
        raise UserError(
            "expected a network that sees mu as Unseen or Pooled, got "
            f"{type(seen).__name__}; write its actions into a TablePolicy"
        )
    if isinstance(policy, TablePolicy):
        inside = np.asarray(problem.actions.contains(jnp.asarray(policy.actions)))
        if not inside.all():
            raise UserError(
                f"the policy's action {np.asarray(policy.actions)[~inside][0]} is outside "
                f"{problem.actions.describe()}; clip it"
            )
