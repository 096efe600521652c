"""What all commands share: `--json`, and how words on the command line become values."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, ClassVar, get_args

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from .output import Answer

Switch = tyro.conf.FlagCreatePairsOff[bool]
"""A flag that is off unless it is given; there is no ``--no-`` form."""

EnvironmentArgument = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENVIRONMENT")]

Environment = Annotated[
    str, tyro.conf.Positional, tyro.conf.arg(metavar="[ENVIRONMENT]", help_behavior_hint="")
]
"""An environment that a file of settings may name instead."""

OWN = "Python file with your own systems (by @mufield.register) and contenders; it is executed."
ImportFlag = Annotated[str | None, tyro.conf.arg(name="import", metavar="FILE", help=OWN)]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its fields are its flags, calling it does the work.

    Attributes:
        json: Print the result as JSON.
        debug: Show the traceback of a mistake, too.
    """

    example: ClassVar[str] = ""
    """Printed below its help."""

    json: Switch = False
    debug: Switch = False

    def __call__(self) -> Answer | None:
        """Does the work; the answer is printed."""
        raise NotImplementedError


REGISTRY = ConstructorRegistry()
"""How values are written on the command line: lists as A,B and options as NAME=VALUE,..."""


@REGISTRY.primitive_rule
def _pairs(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    if info.type_origin is not dict:
        return None

    def write(pairs: dict[str, Any]) -> str:
        return ",".join(f"{name}={json.dumps(value)}" for name, value in pairs.items())

    return _one_word("NAME=VALUE,...", read_pairs, write)


@REGISTRY.primitive_rule
def _list(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[tuple[Any, ...]] | None:
    parts = get_args(info.type)
    if info.type_origin is not tuple or parts[1:] != (...,):
        return None
    if tyro.conf.Positional in info.markers:  # these are separated by spaces
        return None
    one = _spec(parts[0], info)

    def read(text: str) -> tuple[Any, ...]:
        words = [word.strip() for word in text.split(",")]
        for word in words:
            if one.choices is not None and word not in one.choices:
                raise ValueError(f"expected one of {', '.join(one.choices)}, got {word!r}")
        return tuple(one.instance_from_str([word]) for word in words if word)

    def write(values: tuple[Any, ...]) -> str:
        return ",".join(one.str_from_instance(value)[0] for value in values)

    return _one_word(f"{one.metavar},...", read, write)


@REGISTRY.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Optional values: the word None is no value on the command line; the help says "unset"."""
    kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
    if len(kinds) != 1 or NoneType not in get_args(info.type):
        return None
    one = _spec(kinds[0], info)
    return PrimitiveConstructorSpec(
        nargs=one.nargs,
        metavar=one.metavar,
        instance_from_str=one.instance_from_str,
        is_instance=lambda value: value is None or one.is_instance(value),
        str_from_instance=lambda v: ["unset"] if v is None else one.str_from_instance(v),
        choices=one.choices,
    )


def _spec(kind: Any, info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any]:
    found = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))
    assert isinstance(found, PrimitiveConstructorSpec)
    return found


def _one_word(
    metavar: str, read: Callable[[str], Any], write: Callable[[Any], str]
) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda value: isinstance(value, dict | tuple),
        str_from_instance=lambda value: [write(value) or "none"],
    )


def read_pairs(text: str) -> dict[str, Any]:
    """Reads ``a=1,b=[2,3],c=word``: values are JSON if possible, else text."""
    pairs: dict[str, Any] = {}
    # Commas inside values, such as JSON lists, are not followed by NAME=.
    for part in re.split(r",(?=[\w.-]+=)", text):
        name, sign, value = part.partition("=")
        if not sign or not name:
            raise ValueError(f"expected NAME=VALUE such as horizon=10, got {part!r}")
        try:
            pairs[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            pairs[name.replace("-", "_")] = value
    return pairs
