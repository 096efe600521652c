"""Writes commands.md, the page of all commands, from the code: ``python docs/commands_page.py``."""

import os
from pathlib import Path

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
  the sizes of finite populations; `--delta` is the probability of failure, `--level` that of
  intervals.
- `--import FILE` brings your own systems, `--options` are those of the environment.
"""


def page() -> str:
    """The page, as it should be."""
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    parts = [TOP, "\n".join(["| exit code | meaning |", "|---|---|", *codes, ""])]
    parts += [f"## {name}\n\n```text\n{help_text(name)}```\n" for name in COMMANDS]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
