"""How flags look in the help: what may stand there, and what is taken if nothing does."""

from typing import Annotated, Any, get_args

import tyro


def flag(values: str, default: str | None = None) -> Any:
    """A flag that may be left out.

    Args:
        values: What stands for its value in the help.
        default: What is taken without it; nothing by default.
    """
    hint = "" if default is None else f"(default: {default})"
    return tyro.conf.arg(metavar=values, help_behavior_hint=hint)


def choice(names: Any, default: str) -> Any:
    """A flag with one of some names, a Literal."""
    return flag(f"{{{','.join(get_args(names))}}}", default)


Environment = Annotated[str | None, tyro.conf.Positional, flag("[ENVIRONMENT]")]

ImportFlag = Annotated[
    str | None, tyro.conf.arg(name="import", metavar="FILE", help_behavior_hint="")
]
