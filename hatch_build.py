"""The README and the links as a package index shows them, which knows no neighbouring files.

Links to files of the repository lead to its address, if the environment variable
``MUFIELD_REPOSITORY`` names one (a workflow sets it), at the tag or branch ``MUFIELD_REF``;
otherwise only their words stay, and the package has no addresses.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?!https?://|#)[^)]+)\)")


def for_index(text: str, repository: str, ref: str) -> str:
    """Markdown whose links to files are absolute, or gone if there is no repository."""

    def replace(link: re.Match[str]) -> str:
        picture, words, target = link["picture"], link["text"], link["target"]
        if repository:
            kind = "raw" if picture else "blob"
            return f"{picture}[{words}]({repository}/{kind}/{ref}/{target})"
        return "" if picture else words

    return LINK.sub(replace, text)


class CustomMetadataHook(MetadataHookInterface):
    """Sets the long description and the addresses."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See `MetadataHookInterface`."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        address = os.environ.get("MUFIELD_REPOSITORY", "").rstrip("/")
        ref = os.environ.get("MUFIELD_REF", "main")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": for_index(text, address, ref),
        }
        changes = f"{address}/blob/{ref}/CHANGELOG.md"
        metadata["urls"] = {"Source": address, "Changelog": changes} if address else {}
