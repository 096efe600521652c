"""A comparison's directory: results that are used again, and what came out in the end."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from .._files import write_bytes, write_json
from ..errors import UserError
from .result import FORMAT, Comparison, Result

ABSENT = "nothing"


class Store:
    """The directory; nothing is written before the first result is there."""

    def __init__(self, directory: Path):
        """Looks at a directory that may not exist yet."""
        if directory.exists() and not directory.is_dir():
            raise UserError(f"{directory} is no directory; name another with --out")
        self.directory = directory

    def path(self, name: str) -> Path:
        """Where a contender's result is kept."""
        return self.directory / "cache" / f"{name}.json"

    def check_environment(self, environment: str) -> None:
        """Raises if results of another environment would be lost."""
        for path in sorted(self.path("*").parent.glob("*.json")):
            document = _read(path)
            found = document["settings"].get("environment") if document else environment
            if found != environment:
                raise UserError(
                    f"{self.directory} holds a comparison of {found}, not of {environment}; name "
                    "another directory with --out, or remove this one"
                )

    def find(self, name: str, settings: Mapping[str, Any]) -> tuple[Result | None, str]:
        """A kept result of the same settings; else none, and why it is of no use."""
        path = self.path(name)
        if not path.exists():
            return None, ""
        document = _read(path)
        if document is None:
            return None, f"{path} is damaged or of another version"
        change = _first_change(document["settings"], settings)
        return (None, change) if change else (document["result"], "")

    def keep(self, result: Result, settings: Mapping[str, Any]) -> None:
        """Writes a contender's result."""
        path = self.path(result.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"format": FORMAT, "settings": settings, "result": result.document()}
        write_json(path, document)

    def write(self, comparison: Comparison) -> tuple[Path, ...]:
        """Writes all curves and the table; returns the files."""
        self.directory.mkdir(parents=True, exist_ok=True)
        curves, table = (self.directory / f"comparison.{kind}" for kind in ("json", "csv"))
        write_json(curves, comparison.document())
        write_bytes(table, comparison.csv().encode())
        return curves, table


def _read(path: Path) -> dict[str, Any] | None:
    """A kept result with its settings; none if the file is damaged or no such file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT or not isinstance(document["settings"], dict):
            return None
        result = TypeAdapter(Result).validate_json(json.dumps(document["result"]))
    except (ValueError, KeyError, TypeError, ValidationError):
        return None
    return {**document, "result": result}


def _first_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first setting that differs, in words; empty if none does."""
    before, after = _flat(old), _flat(json.loads(json.dumps(new)))
    for name in (*after, *before):
        was, now = before.get(name, ABSENT), after.get(name, ABSENT)
        if was != now:
            return f"{name} was {was} and is {now} now"
    return ""


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        inner = isinstance(value, dict) and value
        flat |= _flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return flat
