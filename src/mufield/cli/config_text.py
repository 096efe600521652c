"""A configuration as a file of settings."""

import json
import re
from typing import Any

from ..runs.config import TABLES, RunConfig


def print_config(config: RunConfig, *, as_json: bool) -> int:
    """Prints a configuration with all defaults; returns the exit code."""
    from ..runs.build import resolve

    full = resolve(config)
    print(json.dumps(full.document(), indent=2) if as_json else as_toml(full.document()), end="")
    if as_json:
        print()
    return 0


def as_toml(document: dict[str, Any]) -> str:
    """The settings as TOML: the environment, the model and the planner are tables."""
    flat = {name: value for name, value in document.items() if name != "format"}
    tables: dict[str, dict[str, Any]] = {}
    for name, options in TABLES.items():
        own = flat.pop(options)
        if "name" in own:  # of the user's own system: the table has another use for it
            tables[options] = own
        else:
            tables[name] = {"name": flat.pop(name)} | own
    lines = _entries(flat)
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_entries(table)]
    return "\n".join(lines) + "\n"


def _entries(table: dict[str, Any]) -> list[str]:
    # TOML has no null; a setting that is left out has its default, which null is here.
    return [f"{_key(k)} = {_value(v)}" for k, v in table.items() if v is not None]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(_entries(value))}}}"
    if isinstance(value, list):
        return f"[{', '.join(_value(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False)  # texts, numbers and truth values are the same
