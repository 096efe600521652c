"""Writes the tables of reference.md from the docstrings: ``python docs/reference_page.py``.

The directives ``::: name`` become whole entries when the site is built. The tables, a sentence for
each name, make the page readable without that.
"""

import inspect
import pydoc
import re
from pathlib import Path

PAGE = Path(__file__).with_name("reference.md")
TABLE = re.compile(r"<!-- names -->\n.*?<!-- end of names -->\n\n?", flags=re.DOTALL)
GROUP = re.compile(r"(?:^::: .*\n(?:^    .*\n)*)+", flags=re.MULTILINE)


def summary(name: str) -> str:
    """The first sentence of a name's docstring, in one line."""
    text = inspect.getdoc(pydoc.locate(name)) or ""
    first = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<=\.)(?<!Sec\.)(?<!App\.)(?<!eq\.)\s", first)[0]
    return sentence.replace("|", r"\|")


def with_table(group: re.Match[str]) -> str:
    """A group of directives with its table before it."""
    names = re.findall(r"^::: (\S+)$", group[0], flags=re.MULTILINE)
    rows = [f"| `{name.removeprefix('mufield.')}` | {summary(name)} |" for name in names]
    lines = ["<!-- names -->", "| `mufield.` | |", "|---|---|", *rows, "<!-- end of names -->", ""]
    return "\n".join(lines) + "\n" + group[0]


def page() -> str:
    """The page, as it should be."""
    bare = TABLE.sub("", PAGE.read_text(encoding="utf-8"))
    return GROUP.sub(with_table, bare)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
