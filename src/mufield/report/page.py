"""The page as one HTML file with style, script and data inside; it loads nothing else."""

import base64
import hashlib
import html
import re
from functools import cache
from importlib.resources import files as resources
from typing import Any

from .._style import STYLE
from .data import to_json


def build_page(document: dict[str, Any]) -> str:
    """The page for what `collect` or `snapshot` of `mufield.report.data` returned."""
    style = _asset("page.css").replace("{{colours}}", _colours())
    # Joined into one script in this order, because later ones use earlier ones.
    scripts = ("tools.js", "chart.js", "flow.js", "field.js", "views.js", "player.js", "page.js")
    script = "\n".join(_asset(name) for name in scripts)
    names = ", ".join(run["name"] for run in document["runs"])
    names = names.encode("utf-8", "replace").decode()  # a file name may be no UTF-8
    parts = {
        "title": html.escape(f"{names} – mufield"),
        "policy": _policy(style, script, live=bool(document["live"])),
        "style": style,
        "script": script,
        "data": embed(document),
    }
    hole = re.compile(r"\{\{(\w+)\}\}")
    # In one pass, so that {{...}} inside the data is left alone.
    return hole.sub(lambda match: parts[match[1]], _asset("page.html"))


def embed(document: Any) -> str:
    """JSON to put inside a script element, which nothing in the data can end."""
    text = to_json(document)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _colours() -> str:
    """The colours of `mufield._style` as CSS variables."""
    named = {"wall": STYLE.wall, "hatch": STYLE.wall_hatch}
    named |= {"bar": STYLE.bar, "bar-edge": STYLE.bar_edge}
    named |= {f"c{place}": colour for place, colour in enumerate(STYLE.colours)}
    named |= {"reference": STYLE.reference}
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


def _policy(style: str, script: str, *, live: bool) -> str:
    """Content-Security-Policy: only this script and style, requests only to our own server."""
    asked = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        f"connect-src {asked}; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


@cache
def _asset(name: str) -> str:
    return (resources(__package__) / "assets" / name).read_text(encoding="utf-8")
