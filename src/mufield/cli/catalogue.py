"""``list``: which environments there are."""

import json
from dataclasses import dataclass

from .flags import ImportFlag
from .printing import print_table


@dataclass(frozen=True)
class List:
    """List the environments."""

    imports: ImportFlag = None
    """Python file or module to import first, which registers your own environments."""

    json: bool = False
    """Print JSON instead of a table."""

    def __call__(self) -> int:
        """Print each environment's name and summary."""
        from ..environments.registry import catalogue

        if self.imports is not None:
            from ..runs.imports import import_users

            catalogue()  # the built-in ones first: their names are taken
            import_users(self.imports)
        rows = [{"name": entry.name, "summary": entry.summary} for entry in catalogue()]
        if self.json:
            print(json.dumps(rows, indent=2, ensure_ascii=False))
        else:
            print_table(rows, texts=("name", "summary"))
        return 0
