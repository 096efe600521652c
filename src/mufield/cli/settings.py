"""The flags that say what a run is to be."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ..errors import UserError
from ..runs.config import (
    FirstName,
    ModelName,
    OptimismName,
    PlannerName,
    Precision,
    RunConfig,
    parse_config,
    read_settings,
)
from .flags import ImportFlag, choice, flag

EXAMPLE = """\
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
"""Stands below the help of the commands that begin a run."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run is to be; flags that are left out are None."""

    config: Annotated[Path | None, flag("FILE")] = None
    """JSON or TOML file with settings; flags override it. An example stands below."""

    options: Annotated[tuple[str, ...], flag("NAME=VALUE ...")] = ()
    """Options of the environment, such as horizon=10."""

    imports: ImportFlag = None
    """Python file or module to import first, which registers your own system or problem."""

    seed: Annotated[int | None, flag("INT", "0")] = None
    """Seed of all randomness."""

    model: Annotated[ModelName | None, choice(ModelName, "ensemble")] = None
    """Statistical model."""

    model_options: Annotated[tuple[str, ...], flag("NAME=VALUE ...")] = ()
    """Settings of the model, such as beta=3 members=10 mu=local."""

    reward_options: Annotated[tuple[str, ...], flag("NAME=VALUE ...")] = ()
    """Settings of the model of the reward, where the environment hides it; it is of the same
    kind as the motion's."""

    planner: Annotated[PlannerName | None, choice(PlannerName, "mirror")] = None
    """Randomised policies by mirror ascent, or deterministic networks or tables."""

    planner_options: Annotated[tuple[str, ...], flag("NAME=VALUE ...")] = ()
    """Settings of the planner, such as sweeps=60."""

    optimism: Annotated[OptimismName | None, choice(OptimismName, "hallucinated")] = None
    """Kind of optimism."""

    scale: Annotated[float | None, flag("FLOAT", "2/3")] = None
    """Factor on the model's beta, or the bonus's weight."""

    first: Annotated[FirstName | None, choice(FirstName, "prior")] = None
    """Plan the first episode under the model's prior, or run a random policy."""

    estimate_noise: bool = False
    """Imagine the noise that the model estimates instead of the problem's."""

    reference: Annotated[float | None, flag("FLOAT")] = None
    """J of a reference plan, for the regret."""

    precision: Annotated[
        Precision | None, choice(Precision, "that of JAX, float32 unless JAX_ENABLE_X64 is set")
    ] = None
    """Number format."""

    def make(self, environment: str | None, **more: Any) -> RunConfig:
        """The configuration: the file's settings, and the flags in place of them."""
        from ..runs.precision import current_precision, set_precision

        settings: dict[str, Any] = {"precision": current_precision()}
        settings |= read_settings(self.config) if self.config else {}
        flags: dict[str, Any] = {"environment": environment} | more
        for name in ("imports", "seed", "model", "planner", "optimism", "scale", "first"):
            flags[name] = getattr(self, name)
        flags |= {"reference": self.reference, "precision": self.precision}
        flags["estimate_noise"] = self.estimate_noise or None
        settings |= {name: value for name, value in flags.items() if value is not None}
        for name in ("options", "model_options", "planner_options", "reward_options"):
            given = read_pairs(getattr(self, name), name)
            settings[name] = dict(settings.get(name, {})) | given
        if "environment" not in settings:
            raise UserError(
                "expected the name of an environment, got none; `mufield list` shows them"
            )
        config = parse_config(settings, str(self.config or "the command line"))
        set_precision(config.precision)
        return config


def read_pairs(texts: tuple[str, ...], name: str) -> dict[str, Any]:
    """``key=value`` words; values are JSON where they can be, else text."""
    pairs: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UserError(
                f"--{name.replace('_', '-')}: expected words such as horizon=10, got {text!r}"
            )
        try:
            pairs[key.replace("-", "_")] = json.loads(value)
        except ValueError:
            pairs[key.replace("-", "_")] = value
    return pairs
