"""``export``: the policy to use, for mufield itself and for machines without it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from .output import Answer, waiting
from .sources import OfPolicy


@dataclass(frozen=True, kw_only=True)
class Export(OfPolicy):
    """Write the policy to use: of a run the one that all data make best, without exploring.

    A single file is for mufield itself. A directory gets the policy as arrays with a reader
    that needs only NumPy; it is compared with the policy on random inputs, and written only if it
    does the same. What the model expects of a run's best policy comes with an interval:
    how far J is from that in samples of the model.
    """

    out: Path = Path("deployed")
    """A file .policy or .safetensors, or a directory, made if it does not exist. Existing files are
    replaced."""

    def __call__(self) -> Answer:
        single = self.out.suffix in (".policy", ".safetensors")
        with waiting("exporting"):
            from ..deploy.export import export_policy
            from ..io.atomic import write_bytes

            source = self.load()
            files, difference = [self.out], None
            if not single:
                *files, difference = export_policy(
                    source.profile, source.problem, self.out, identity=source.identity
                )
            elif source.path is None:
                raise UserError("the random policy has no file; export it to a directory")
            else:
                write_bytes(self.out, source.path.read_bytes())
        names = [str(path) for path in files]
        document = {"identity": source.identity, "files": names, "difference": difference}
        lines = [f"wrote {name}" for name in names]
        if difference is not None:
            lines.append(f"largest difference from the policy in JAX: {difference:.2g}")
        return Answer(document, [*lines, *_expected(source.identity)])


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
