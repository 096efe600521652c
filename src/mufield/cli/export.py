"""``export``: a policy for robots, phones and other languages."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .output import Answer, Table, waiting
from .sources import OfPolicy


@dataclass(frozen=True, kw_only=True)
class Export(OfPolicy):
    """Write a policy as ONNX and as arrays with a reader that needs only NumPy.

    Each file is compared with the policy on random inputs, and kept only if it does the same.
    """

    out: Path = Path("deployed")
    """Directory for the files; made if it does not exist. Existing files are replaced."""

    format: tuple[Literal["safetensors", "onnx"], ...] = ("safetensors", "onnx")
    """Which files to write: safetensors comes with its reader, onnx needs the extra deploy."""

    units: dict[str, Any] = field(default_factory=dict)
    """What positions and actions are measured in, such as state=m,action=m/s; kept in the files."""

    def __call__(self) -> Answer:
        with waiting("exporting"):
            from ..deploy.export import check_extra, export_policy

            check_extra(self.format)
            source = self.load()
            written = export_policy(
                source.profile,
                source.problem,
                self.out,
                formats=self.format,
                identity=source.identity,
                units={name: str(value) for name, value in self.units.items()},
            )
        rows = [{"file": str(each.path), "difference": each.difference} for each in written]
        columns = {"file": "file", "largest difference": "difference"}
        document = {"identity": source.identity, "files": rows}
        return Answer(document, [Table(rows, columns, texts=("file",))])
