"""The runs that the file of a sweep describes. No JAX."""

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .config import TABLES, RunConfig, parse_config, read_settings

Values = dict[str, Any]
"""Values of the settings that differ, by their names in the file, such as model.beta."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: what is special about it, and its whole configuration."""

    values: Values
    config: RunConfig

    @property
    def label(self) -> str:
        """The trial in a few words."""
        return label_of(self.values)


def label_of(values: Values) -> str:
    """Values of settings in a few words."""
    return ", ".join(f"{short(name)}={value_text(v)}" for name, v in values.items())


def short(name: str) -> str:
    """A setting's name without its table."""
    table, _, own = name.partition(".")
    return table if own in ("", "name") else own


def value_text(value: Any) -> str:
    """A value for people."""
    return value if isinstance(value, str) else json.dumps(value)


def read_trials(path: Path, imports: str | None = None) -> list[Trial]:
    """The runs that a sweep's file describes, each of them checked; equal ones are left out.

    ``imports`` is the user's own file; a sweep's file cannot name one, so that it runs no code.
    """
    shared = {"judge": False} | read_settings(path)
    tables = [shared.pop(name, {}) for name in ("grid", "random")]
    counts = dict.fromkeys(("draws", "draw_seed"), 0)
    if isinstance(tables[1], dict):
        counts = {name: _whole(tables[1].pop(name, 0), f"{path}: {name}") for name in counts}
    grid = _choices(tables[0], f"{path}: grid")
    drawn = _choices(tables[1], f"{path}: random")
    if "imports" in {*shared, *grid, *drawn}:
        raise UserError(f"{path} names Python code as imports; name it with --import instead")
    draws, rng = counts["draws"], np.random.default_rng(counts["draw_seed"])
    twice = sorted(grid.keys() & drawn.keys())
    if twice or not (grid or drawn) or (drawn and not draws):
        raise UserError(
            f"{path}: expected lists of values in [grid], or in [random] with the number of "
            f"draws, and no setting in both, got {', '.join((*grid, *drawn)) or 'none'} and "
            f"{draws} draws; correct it"
        )
    for name, values in grid.items():
        if not isinstance(values, list):
            raise UserError(f"{path}: grid.{name} must be a list, got {values}; list its values")
    count = math.prod(map(len, grid.values())) * max(draws, 1)
    if count > 10_000:
        raise UserError(f"{path} describes {count:,} runs; at most 10,000 are possible")
    trials: dict[str, Trial] = {}
    random = [{name: _draw(rng, each) for name, each in drawn.items()} for _ in range(draws)]
    for chosen, *rest in itertools.product(random or [{}], *grid.values()):
        values = dict(zip(grid, rest, strict=True)) | chosen
        document: Any = json.loads(json.dumps(shared)) | {"imports": imports}
        for name, value in values.items():
            _set(document, name, value, path)
        about = ", ".join(f"{name} = {value_text(value)}" for name, value in values.items())
        config = parse_config(document, f"{path}, with {about}")
        trials.setdefault(json.dumps(config.document()), Trial(values, config))
    return list(trials.values())


def _choices(table: Any, where: str) -> dict[str, Any]:
    """Lists and ranges by the dotted names of their settings."""
    if not isinstance(table, dict):
        raise UserError(f"{where} must be a table, got {table!r}; write [{where.split()[-1]}]")
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, list):
            texts = [json.dumps(each) for each in value]
            if not value or len({*texts}) < len(texts):
                raise UserError(
                    f"{where}.{name}: expected different values, at least one, got {value}"
                )
        if isinstance(value, dict) and not {"low", "high"} <= value.keys():
            found |= {f"{name}.{k}": v for k, v in _choices(value, f"{where}.{name}").items()}
        elif isinstance(value, list | dict):
            found[name] = _range(value, f"{where}.{name}") if isinstance(value, dict) else value
        else:
            raise UserError(
                f"{where}.{name}: expected a list of values, or {{low = ..., high = ...}}, got "
                f"{value!r}; correct it"
            )
    return found


def _range(value: dict[str, Any], where: str) -> dict[str, Any]:
    low, high, log = value["low"], value["high"], value.get("log", False)
    known = {"low", "high", "log"}
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high))
    # A range may be wider than any number.
    sound = numbers and low < high and math.isfinite(float(high) - float(low))
    if not sound or not isinstance(log, bool) or value.keys() - known:
        raise UserError(f"{where}: expected low below high, and perhaps log = true, got {value}")
    if log and low <= 0:
        raise UserError(f"{where}: a range with log = true must be above zero, got {value}")
    return value


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10_000:
        raise UserError(f"{where} must be a whole number up to 10,000, got {value!r}")
    return value


def _draw(rng: np.random.Generator, choice: Any) -> Any:
    if isinstance(choice, list):
        return choice[int(rng.integers(len(choice)))]
    low, high = choice["low"], choice["high"]
    if choice.get("log"):
        found = math.exp(rng.uniform(math.log(low), math.log(high)))
    else:
        found = float(rng.uniform(low, high))
    if isinstance(low, int) and isinstance(high, int):
        return round(found)
    return min(max(float(f"{found:.4g}"), low), high)  # so that people can read it


def _set(document: Values, name: str, value: Any, path: Path) -> None:
    """Sets one of the settings that differ, where a run's configuration has it."""
    first, *rest = name.split(".")
    place = document
    keys = [first] if rest == ["name"] else [TABLES.get(first, first) if rest else first, *rest]
    for key in keys[:-1]:
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            raise UserError(f"{path}: {name} cannot be set, as {key} is {place!r}; correct it")
    place[keys[-1]] = value
