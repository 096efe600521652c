"""Writes a policy for use elsewhere, and makes sure that it is the same policy."""

import importlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from .._files import write_bytes
from ..errors import UserError
from ..policies.base import Profile
from ..problem import Problem
from . import reader
from .array_file import write_array_file
from .check import TOLERANCE, Decide, largest_difference, onnx_decides, reader_decides
from .describe import Deployable, describe

Format = Literal["npz", "onnx"]
FORMATS: tuple[Format, ...] = get_args(Format)

NAME = "policy"
READER = "mufield_reader.py"
"""What the copy of the reader is called: it is imported by that name where mufield is not."""


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
    """Writes ``policy.npz`` with its reader, and ``policy.onnx``; each only if it is right.

    Args:
        profile: The policy.
        problem: What it was planned for.
        directory: Where to write; made if it does not exist.
        formats: Which of the files.
        identity: The run that it comes from, in values that JSON has.
        units: What the numbers are measured in: ``state``, ``action``.

    Raises:
        ValueError: If a file decides otherwise than the policy in JAX; it is not left there.
    """
    check_extra(formats)
    deployable = describe(profile, problem, identity=identity, units=units)
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name in formats:
        write, decides = _writer(name)
        path = directory / f"{NAME}.{name}"
        difference = _write_checked(path, deployable, write, decides, profile, problem)
        written.append(Written(path, difference))
        if name == "npz":
            copy = directory / READER
            write_bytes(copy, Path(reader.__file__).read_bytes())
            written.append(Written(copy, None))
    return written


def check_extra(formats: Sequence[str]) -> None:
    """Raises if a package that is needed is not installed, or there is no such format."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise UserError(f"expected formats among {', '.join(FORMATS)}, got {', '.join(formats)}")
    if "onnx" not in formats:
        return
    for package in ("onnx", "onnxruntime"):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"ONNX files need {package}, which is not there; write only npz, or add it",
                name=error.name,
            ) from error


def _writer(name: Format) -> tuple[Callable[[Path, Deployable], None], Callable[[Path], Decide]]:
    if name == "npz":
        return write_array_file, reader_decides
    from .onnx_graph import write_onnx

    return write_onnx, onnx_decides


def _write_checked(
    path: Path,
    deployable: Deployable,
    write: Callable[[Path, Deployable], None],
    decides: Callable[[Path], Decide],
    profile: Profile,
    problem: Problem,
) -> float:
    """Writes a file beside its place, reads it back, and puts it there if it is right."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mufield-") as place:
        trial = Path(place) / path.name
        write(trial, deployable)
        difference = largest_difference(decides(trial), profile, problem)
        if not difference <= TOLERANCE:
            raise UserError(
                f"{path} was not written: its outputs would differ by {difference:.3g} from the "
                f"policy's, expected at most {TOLERANCE:g}; this is a fault of mufield, please "
                "report it"
            )
        os.replace(trial, path)
    return difference
