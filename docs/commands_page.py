"""Writes commands.md, the page of all commands, from the code: ``python docs/commands_page.py``."""

import json
import os
from pathlib import Path
from typing import get_args

os.environ["COLUMNS"] = "96"  # of the help; before it is made

from mufield.cli.program import COMMANDS, EXIT_CODES, help_text

PAGE = Path(__file__).with_name("commands.md")

TOP = """\
# Commands

<!-- Written by docs/commands_page.py from the code; change the code and run it again. -->

What `mufield COMMAND --help` prints. All commands keep one convention:

- `--json` prints the result as JSON: names in snake_case, numbers as numbers. The result alone goes
  to standard output; notes and progress go to standard error.
- Lists and options are one word with commas: `--population 100,1000`,
  `--options horizon=10,noise_std=0.3`.
- `--out` says where results go; `--agents` is the number of tracked agents, `--population` lists
  the sizes of finite populations; `--level` is the probability of intervals.
- `--import FILE` brings your own systems, `--options` are those of the environment.
"""


def _defaults() -> str:
    """The settings of models and planners, as they are if nothing else is said."""
    from mufield.runs.build import resolve
    from mufield.runs.config import ModelName, PlannerName, RunConfig

    rows = []
    for flag, kinds in {"model": get_args(ModelName), "planner": get_args(PlannerName)}.items():
        for kind in kinds:
            found = getattr(resolve(RunConfig("four-rooms", **{flag: kind})), f"{flag}_options")
            words = ", ".join(f"`{name}={json.dumps(value)}`" for name, value in found.items())
            rows.append(f"| `--{flag} {kind}` | {words} |")
    head = (
        "What `--model-options` and `--planner-options` can change, and what they are by default:"
    )
    return "\n".join(
        ["## Defaults of settings", "", head, "", "| | settings |", "|---|---|", *rows, ""]
    )


def page() -> str:
    """The page, as it should be."""
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    parts = [TOP, "\n".join(["| exit code | meaning |", "|---|---|", *codes, ""])]
    parts += [_defaults()]
    parts += [f"## {name}\n\n```text\n{help_text(name)}```\n" for name in COMMANDS]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
