"""``export``: the policy to use, for mufield, robots, phones and other languages."""

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError
from .output import Answer, Table, print_notes, waiting
from .sources import OfPolicy


@dataclass(frozen=True, kw_only=True)
class Export(OfPolicy):
    """Write the policy to use: of a run the one that all data make best, without exploring.

    A single file is for mufield itself. A directory gets the policy as ONNX, and as arrays with a
    reader that needs only NumPy; each file is compared with the policy on random inputs, and kept
    only if it does the same. What the model expects of a run's best policy comes with an interval:
    how far J is from that in samples of the model.
    """

    out: Path = Path("deployed")
    """A file .policy or .safetensors, or a directory, made if it does not exist. Existing files are
    replaced."""

    format: tuple[Literal["safetensors", "onnx"], ...] = ()
    """Which files to write to the directory: safetensors comes with its reader, onnx needs the
    extra deploy. By default both, if that is installed."""

    units: dict[str, Any] = field(default_factory=dict)
    """What positions and actions are measured in, such as state=m,action=m/s; kept in the files."""

    def __call__(self) -> Answer:
        single = self.out.suffix in (".policy", ".safetensors")
        if single and (self.format or self.units):
            raise UserError(
                f"--format and --units are for a directory, got the file {self.out}; leave them "
                "out, or name a directory"
            )
        with waiting("exporting"):
            from ..deploy.export import check_extra, export_policy
            from ..io.atomic import write_bytes

            formats = self.format or _installed()
            check_extra(formats)
            source = self.load()
            rows: list[dict[str, Any]]
            if not single:
                written = export_policy(
                    source.profile,
                    source.problem,
                    self.out,
                    formats=formats,
                    identity=source.identity,
                    units={name: str(value) for name, value in self.units.items()},
                )
                rows = [{"file": str(each.path), "difference": each.difference} for each in written]
            elif source.path is None:
                raise UserError("the random policy has no file; export it to a directory")
            else:
                write_bytes(self.out, source.path.read_bytes())
                rows = [{"file": str(self.out), "difference": None}]
        columns = {"file": "file", "largest difference": "difference"}
        table = Table(rows, columns, texts=("file",))
        document = {"identity": source.identity, "files": rows}
        return Answer(document, [table, *_expected(source.identity)])


def _installed() -> tuple[Literal["safetensors", "onnx"], ...]:
    """The formats that can be written here."""
    if all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")):
        return ("safetensors", "onnx")
    print_notes(["no ONNX, which needs: pip install 'mufield[deploy]'"])
    return ("safetensors",)


def _expected(identity: dict[str, Any]) -> list[str]:
    """What the model of a run expects of its best policy, for people."""
    if "expected" not in identity:
        return []
    lower, upper = identity["lower"], identity["upper"]
    interval = f", {identity['level']:.0%} interval {lower:.5g} to {upper:.5g}"
    return [
        f"the policy: {identity['how']}",
        f"expected J: {identity['expected']:.5g}" + (interval if upper > lower else ""),
        f"data: {identity['transitions']:,} transitions, {identity['episodes']} episodes",
    ]
