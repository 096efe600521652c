"""``policy``: the policy to use, which all data of a run make best."""

from dataclasses import dataclass
from pathlib import Path

from .flags import Switch
from .output import Answer, print_notes, waiting
from .sources import OfRun, prepare


@dataclass(frozen=True, kw_only=True)
class Policy(OfRun):
    """Write the policy to use: the one that all data of a run make best, without exploring.

    It is the plan with the highest J that the model expects, and comes with an interval for J:
    how far J is from that in samples of the model.
    """

    cautious: Switch = False
    """Choose by the lower end of the interval instead; what the best episode's policy earned
    counts as certain."""

    out: Path | None = None
    """File to copy the policy to; it is in the run's directory in any case."""

    def __call__(self) -> Answer:
        prepare(self.run)
        from ..io.atomic import write_bytes
        from ..runs.layout import read_versions
        from ..runs.session import open_run
        from ..runs.surroundings import changes_since

        with waiting("planning"), open_run(self.run, imports=self.imports) as session:
            print_notes(changes_since(read_versions(self.run)))
            plan, store = session.best(cautious=self.cautious), session.store
            kind = "cautious" if self.cautious else "best"
            path, rows = store.best_path(kind), store.rows
            if self.out is not None:
                write_bytes(self.out, path.read_bytes())
            best = store.best_episode if rows else None
        level = plan.draws / (plan.draws + 1)
        document = {
            "file": str(self.out or path),
            "run": store.config.identity,
            "policy": store.best_id(kind),
            "how": plan.how,
            "expected": plan.expected,
            "lower": plan.lower,
            "upper": plan.upper,
            "level": level,
            "transitions": plan.transitions,
            "episodes": len(rows),
            "last": rows[-1]["value"] if rows else None,
            "best_episode_value": rows[best - 1]["value"] if best else None,
            "best_episode": best,
        }
        interval = f", {level:.0%} interval {plan.lower:.5g} to {plan.upper:.5g}"
        shown = [
            f"{document['file']}: {plan.how}",
            f"expected J: {plan.expected:.5g}" + (interval if plan.upper > plan.lower else ""),
            f"data: {plan.transitions:,} transitions, {len(rows)} episodes",
        ]
        if best:
            shown.append(
                f"realised J: {document['last']:.5g} in the last episode, "
                f"{document['best_episode_value']:.5g} in the best, episode {best}"
            )
        return Answer(document, shown)
