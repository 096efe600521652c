"""The configuration of a new run, from a file of settings and flags that override it."""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from ..errors import UserError
from ..runs.config import TABLES, RunConfig, parse_config, read_settings
from .flags import Command, Environment, ImportFlag


@dataclass(frozen=True, kw_only=True)
class Configured(Command, RunConfig):
    """A command that begins a run. The fields of `RunConfig` are its flags, two of them changed."""

    example: ClassVar[str] = """\
settings may also stand in a file, which flags override:

  mufield train --config run.toml --seed 4 --out my-run

  # run.toml; `mufield train four-rooms --print-config` writes all there is
  seed = 3
  episodes = 20
  optimism = "hallucinated"

  [environment]
  name = "four-rooms"
  horizon = 10

  [model]
  name = "gp"
  beta = 2.0

  [planner]
  name = "mirror"
  sweeps = 60
"""

    environment: Environment = ""
    imports: ImportFlag = None

    config: Path | None = None
    """JSON or TOML file with settings; flags override it. An example stands below."""

    out: Path | None = None
    """Directory of the run; new or empty."""

    def __post_init__(self) -> None:
        """Leaves the checks to `run_config`, so that errors are one line for people."""

    def directory(self) -> Path:
        """The run's directory; raises if the user gave none."""
        if self.out is None:
            raise UserError("expected a directory for the run, got none; add --out my-run")
        return self.out

    def run_config(self) -> RunConfig:
        """Checks the configuration, and sets JAX to its number format."""
        values = {each.name: getattr(self, each.name) for each in fields(RunConfig)}
        if self.config is not None:  # a flag replaces single options of the file, not all of them
            known = read_settings(self.config)
            options = {name for name, value in values.items() if isinstance(value, dict)}
            values |= {name: known.get(name, {}) | values[name] for name in options}
        if not self.environment:
            raise UserError(
                "expected the name of an environment, got none; `mufield list` shows them"
            )
        config = parse_config(values, "the command line")
        from ..runs.surroundings import set_precision

        set_precision(config.precision)
        return config


def defaults(arguments: Sequence[str]) -> dict[str, Any]:
    """The defaults of the flags of `Configured`: the settings in the file of ``--config``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path, nargs="?")
    path = parser.parse_known_args(arguments)[0].config
    settings: dict[str, Any] = {"precision": _precision()}
    if path is None:
        return settings
    settings |= read_settings(path)
    # The command line may name the environment, so the file need not.
    config = parse_config({"environment": ""} | settings, str(path))
    return {each.name: getattr(config, each.name) for each in fields(config)}


def _precision() -> str:
    """The number format that JAX computes in, or would if it were imported."""
    if "jax" in sys.modules:
        from ..runs.surroundings import current_precision

        return current_precision()
    wanted = os.environ.get("JAX_ENABLE_X64", "").lower() in ("1", "true", "t", "yes", "y", "on")
    return "float64" if wanted else "float32"


def as_toml(document: dict[str, Any]) -> str:
    """The settings as TOML: the environment, the model and the planner are tables."""
    flat = {name: value for name, value in document.items() if name != "format"}
    tables: dict[str, dict[str, Any]] = {}
    for name, options in TABLES.items():
        own = flat.pop(options)
        if "name" in own:  # an option of the user's own system, which the table cannot hold
            tables[options] = own
        else:
            tables[name] = {"name": flat.pop(name)} | own
    lines = _entries(flat)
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_entries(table)]
    return "\n".join(lines)


def _entries(table: dict[str, Any]) -> list[str]:
    # TOML has no null; it is the default of all settings that can be null, so these are left out.
    return [f"{_key(k)} = {_value(v)}" for k, v in table.items() if v is not None]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(_entries(value))}}}"
    if isinstance(value, list):
        return f"[{', '.join(_value(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False)  # JSON's texts, numbers and booleans are TOML's
