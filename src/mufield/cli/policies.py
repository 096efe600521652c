"""``evaluate``, ``compare`` and ``export``: what policies and learners earn, and their files."""

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compare.comparison import ComparisonConfig
from ..errors import UserError
from .flags import Command, EnvironmentArgument, ImportFlag, Switch
from .output import Answer, ExitCode, Table, in_percent, say, waiting
from .sources import PolicyCommand

if TYPE_CHECKING:
    from ..policies.base import Profile
    from ..systems import SimulatedSystem


@dataclass(frozen=True, kw_only=True)
class Evaluate(PolicyCommand):
    """Play a policy with N agents whose mu is their own histogram, beside the limit of many.

    The `loss` is what N agents earn less than was planned: J of the mean-field flow minus theirs.
    Part of it vanishes as N grows; the rest is the grid's, since the flow moves agents from cell
    centres. With constraints, `satisfied` is the share of episodes in which the agents satisfy all
    of them after every move, and `margin` the mean of the least margin, as a share of the limit.

    Attributes:
        population: Sizes of the populations.
        episodes: Episodes of each population.
        level: Level of the confidence intervals of J.
        seed: Seed of the agents.
        selfish: Also show what agents earn if each thinks of itself, an equilibrium over coarse
            moves; `exploitability` is what one agent gains by leaving the policy, or that, alone.
    """

    population: tuple[int, ...] = (100, 1000, 10000)
    episodes: int = 20
    level: float = 0.95
    seed: int = 0
    selfish: Switch = False

    def __call__(self) -> Answer:
        if min(self.population, default=0) < 1 or self.episodes < 2 or not 0 < self.level < 1:
            raise UserError(
                "expected numbers of agents such as 100,1000, at least two episodes and a level "
                f"between 0 and 1, got {self.population}, {self.episodes} and {self.level}"
            )
        source = self.load()
        from ..systems import SimulatedSystem

        system, profile = source.known, source.profile
        if not isinstance(system, SimulatedSystem):
            raise UserError(
                f"{source.environment} is a real system, which cannot be played here; `mufield "
                f"evaluate {shlex.quote(str(self.policy))} SIMULATOR --import FILE` plays the "
                "policy there, and `mufield export` says what the model expects of it"
            )
        from ..finite.populations import play_populations

        settings: Any = {"episodes": self.episodes, "level": self.level, "seed": self.seed}
        rows = play_populations(system, profile, self.population, **settings, progress=True)
        if self.selfish:
            rows = [row | {"exploitability": None} for row in rows]
            rows[0]["exploitability"], value, gain = _selfish(system, profile)
            figures = {"value": value, "loss": rows[0]["value"] - value, "exploitability": gain}
            rows.append(rows[0] | {"by": "equilibrium"} | figures)
        named = [row | {"population": _name(row)} for row in rows]
        return Answer(rows, [_table(named)])


def _table(rows: list[dict[str, Any]]) -> Table:
    columns = {"population": "population", "J": "value", "from": "low", "to": "high"}
    more = ("loss", "exploitability", "satisfied", "margin")
    columns |= {name: name for name in more if name in rows[0]}
    return Table(in_percent(rows, "satisfied", "margin"), columns, texts=("population",))


def _selfish(system: "SimulatedSystem", profile: "Profile") -> tuple[float, float, float]:
    """The exploitability of a policy, J of an equilibrium, and the exploitability of that."""
    from ..flow.moves import MoveFlow, coarse_moves
    from ..games import MirrorDescent, exploitability

    flow, motion = system.reveal()
    listed = coarse_moves(flow.problem.actions)
    gain = exploitability(flow, motion, profile, listed)
    found = MirrorDescent(300).solve(MoveFlow(flow, motion, listed))
    return gain, float(found.value), float(found.exploitability)


def _name(row: dict[str, Any]) -> str:
    if row["by"] == "equilibrium":
        return "each agent for itself"
    size = row["population"]
    return "many, as planned" if size is None else f"{size:,} agents"


@dataclass(frozen=True, kw_only=True)
class Compare(Command, ComparisonConfig):
    """Compare learners with each other, with a random policy and with known motion.

    Results are kept in the directory: after an interruption, the same command goes on from the
    last episode. With other settings, only what depends on them is computed again.

    Attributes:
        out: Directory for comparison.json, .csv (the table), .png, .pdf, curves.csv and the jobs.
        on: Where jobs are computed: local, in processes of this machine; ray, on the Ray cluster
            that this machine belongs to, or else on one that is started here; ray://HOST:PORT or
            HOST:PORT, on that cluster.
        workers: Most jobs at a time, one process each; 0 computes in this one; else one a core.
        cores: Cores that each job may use; in this process, all.
    """

    environment: EnvironmentArgument
    imports: ImportFlag = None
    out: Path = Path("comparison")
    on: str = "local"
    workers: int | None = None
    cores: int = 1

    def __post_init__(self) -> None:
        """Leaves the checks to `ComparisonConfig`, so that errors are one line for people."""

    def __call__(self) -> Answer:
        given = {each.name: getattr(self, each.name) for each in fields(ComparisonConfig)}
        config = ComparisonConfig(**given)
        # Imported before anything is computed, in case packages are not installed.
        from ..compare.contenders import compare
        from ..jobs.processes import make_pool
        from ..viz import comparison_figure, save_figure

        try:
            pool = make_pool(self.on, self.workers, self.cores)
            comparison = compare(config, self.out, pool=pool, say=say)
        except KeyboardInterrupt:
            if self.out.exists():  # else nothing was begun yet
                say(f"stopped; the same command goes on from what is in {self.out}")
            raise
        for problem in comparison.problems:
            say(f"error: {problem}")
        results, rows = comparison.results, comparison.rows()
        shown: list[Table | str] = []
        if results:
            save_figure(comparison_figure(comparison), self.out / "comparison")
            # Notes are too long for a column and stand below the table.
            titles = {"mean": "J mean", "low": "95% from", "high": "to"}
            columns = {titles.get(n, n): n for n in rows[0] if n not in ("seeds", "note")}
            shown = [
                Table(in_percent(rows, "violated"), columns, texts=("contender",)),
                *(f"{result.name}: {result.remark}" for result in results if result.remark),
                *dict.fromkeys(result.counted for result in results if result.counted),
                f"table and figure: {self.out / 'comparison'}.json, .csv, .png and .pdf; tidy "
                f"rows: {self.out / 'curves.csv'}",
            ]
        return Answer(rows, shown, ExitCode.FAULT if comparison.problems else 0)


@dataclass(frozen=True, kw_only=True)
class Export(PolicyCommand):
    """Write the policy to use: of a run the one that all data make best, without exploring.

    A single file is for mufield itself. A directory gets the policy as arrays with a reader
    that needs only NumPy; it is compared with the policy on random inputs, and written only if it
    does the same. For a run's best policy the expected J is printed with an interval, from
    samples of the model.

    Attributes:
        out: A file .policy or .safetensors, or a directory; existing files are replaced.
    """

    out: Path = Path("deployed")

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
    last = "" if (J := identity.get("last")) is None else f", the last of which earned {J:.5g}"
    return [
        f"the policy: {identity['how']}",
        f"expected J: {identity['expected']:.5g}" + (interval if upper > lower else ""),
        f"data: {identity['transitions']:,} transitions, {identity['episodes']} episodes{last}",
    ]
