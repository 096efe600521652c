"""``export``: a policy for robots, phones and other languages."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from .flags import ImportFlag, flag
from .policy_source import load_source
from .printing import print_table
from .settings import read_pairs
from .waiting import waiting


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a policy as ONNX and as arrays with a reader that needs only NumPy.

    Each file is compared with the policy on random inputs, and left only if it does the same.
    """

    policy: Annotated[Path, tyro.conf.Positional]
    """The directory of a run, simulated or real, or a policy file."""

    environment: Annotated[str | None, tyro.conf.Positional] = None
    """Name of the environment; that of the run if a run is given."""

    out: Path = Path("deployed")
    """Directory for the files; made if it does not exist. Those that are there are replaced."""

    episode: Annotated[str, flag("{best,last,asked,N}", "best")] = "best"
    """Which policy of a run: that of an episode, or the one that was asked for last and not told
    about yet."""

    format: Annotated[str, flag("npz,onnx")] = "npz,onnx"
    """Which files: npz comes with its reader, onnx needs the extra deploy."""

    units: tuple[str, ...] = ()
    """What positions and actions are measured in, such as state=m action=m/s; kept in the files."""

    options: tuple[str, ...] = ()
    """Options of the environment, such as horizon=10."""

    imports: ImportFlag = None
    """Python file or module to import first, which registers your own environment."""

    json: bool = False
    """Print JSON instead of a table."""

    def __call__(self) -> int:
        """Write the files and print how far they are from the policy."""
        formats = tuple(name.strip() for name in self.format.split(",") if name.strip())
        units = {name: str(value) for name, value in read_pairs(self.units, "units").items()}
        with waiting("exporting"):
            from ..deploy.export import check_extra, export_policy

            check_extra(formats)
            source = load_source(
                self.policy,
                self.environment,
                read_pairs(self.options, "options"),
                self.imports,
                episode=self.episode,
            )
            written = export_policy(
                source.profile,
                source.problem,
                self.out,
                formats=formats,  # type: ignore[arg-type]  # check_extra looked at them
                identity=source.identity,
                units=units,
            )
        rows: list[dict[str, Any]] = [
            {"file": str(each.path), "largest difference": each.difference} for each in written
        ]
        if self.json:
            print(json.dumps({"identity": source.identity, "files": rows}, indent=2))
        else:
            print_table(rows, texts=("file",))
        return 0
