"""The contenders, one class each: the jobs that it needs, what their results say; and `compare`."""

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np

from ..actions import MoveSet
from ..errors import UserError
from ..fleet.fluid import fleet_parts
from ..jobs.compute import OWN_LEARNERS, simulated, system_of
from ..jobs.job import Job, JobResult, JobStore, learning_job, system_job
from ..jobs.pool import AbstractPool, SameProcess, compute_missing
from ..planning.concavity import why_unbounded
from ..planning.kinds import Table
from ..runs.build import build, resolve
from ..runs.config import ModelName, RunConfig, parse_config
from ..runs.surroundings import current_precision, import_users
from ..systems import SimulatedSystem
from .comparison import Comparison, ComparisonConfig, Result

OwnFunction = Callable[..., Sequence[float] | Mapping[int, float]]


class Arena:
    """The system that contenders share, and the learners' configuration with all defaults."""

    def __init__(self, config: ComparisonConfig):
        """Builds the system; raises if there is none of that name or with these options."""
        import_users(config.imports)
        self.config = config
        names = ("environment", "options", "imports", "episodes", "agents", "model")
        settings = {n: getattr(config, n) for n in (*names, "model_options", "planner_options")}
        settings |= {"judge": False, "precision": current_precision()}
        self.run: RunConfig = resolve(parse_config(settings, "the comparison"))
        self.settings = {"environment": config.environment, "options": self.run.options}
        problem = system_of(self.settings).problem
        self.horizon: int = problem.horizon
        self.constrained: bool = problem.constraints is not None
        self.points: int | None = self.run.planner_options["points"]

    def system(self, who: str) -> SimulatedSystem:
        """The system; raises, in the name of ``who``, if its motion is not known."""
        return simulated(self.settings, who)

    def job(self, name: str, kind: str, **settings: Any) -> Job:
        """A job of a contender; settings replace those of the arena."""
        own = {"precision": self.run.precision, "imports": self.config.imports}
        return system_job(name, kind, **(self.settings | own | settings))


@dataclass(frozen=True)
class Contender(ABC):
    """One of those who are compared."""

    name: str

    @abstractmethod
    def jobs(self, arena: Arena) -> list[Job]:
        """A job for each seed, or one if nothing is random; raises if it cannot play there."""

    @abstractmethod
    def result(self, arena: Arena, found: Sequence[JobResult]) -> Result:
        """Puts the results of its jobs together."""


@dataclass(frozen=True)
class FunctionLearner(Contender):
    """A learner of the user's own; `contender` registers it."""

    def jobs(self, arena: Arena) -> list[Job]:
        """Lets it learn once for each seed."""
        config, name = arena.config, self.name
        shared = {"learner": name, "episodes": config.episodes, "agents": config.agents}
        return [arena.job(f"{name}-{seed}", "own", **shared, seed=seed) for seed in config.seeds]

    def result(self, arena: Arena, found: Sequence[JobResult]) -> Result:
        """The mean J of the last episodes counts."""
        curves = np.array([each.figures["values"] for each in found])
        count = curves.shape[1]
        last = max(1, min(5, count // 3))  # so that its first attempts never count
        which = f"its mean over episodes {count - last + 1} to {count}"
        which = which if last > 1 else f"that of its last episode, {count}"
        moves = arena.horizon * arena.config.agents * np.arange(1, count + 1)  # seen by then
        rows = [row for each in found for row in each.figures.get("rows", ())]
        margins = [row["margin"] for row in rows if "margin" in row]
        return Result(
            self.name,
            seconds=sum(each.seconds for each in found),
            finals=tuple(map(float, curves[:, -last:].mean(axis=1))),
            transitions=tuple(map(int, found[0].figures.get("transitions", moves))),
            curves=tuple(tuple(map(float, curve)) for curve in curves),
            episodes=count,
            counted=f"J of a learner is {which}",
            violated=float(np.mean(np.array(margins) < -0.01)) if margins else None,
        )


@dataclass(frozen=True)
class Learner(FunctionLearner):
    """M3-UCRL with a kind of optimism or of pessimism, and perhaps another family of models."""

    settings: dict[str, str] = field(default_factory=dict)
    family: str = ""

    def jobs(self, arena: Arena) -> list[Job]:
        """A run for each seed."""
        if "pessimism" in self.settings and not arena.constrained:
            what = f"needs a system with constraints, but {arena.config.environment} has none"
            leave = f"leave {self.name} out, or compare in four-rooms-doors"
            raise UserError(f"{self.name} {what}; {leave}")
        document = arena.run.document() | self.settings
        if self.family and self.family != arena.run.model:  # whose settings have other names
            document |= {"model": self.family, "model_options": {}}
        runs = [parse_config(document | {"seed": seed}, self.name) for seed in arena.config.seeds]
        build(runs[0])  # raises, before anything is written, if such a learner cannot be
        name = self.name.replace(":", "-")
        return [learning_job(f"{name}-{run.seed}", run) for run in runs]


@dataclass(frozen=True)
class Reference(Contender):
    """A policy that nobody has to learn: the random one, or what a fleet does without a plan."""

    fleet: bool = False
    unbounded: ClassVar[str] = ""  # what is said where nothing bounds the optimum

    def jobs(self, arena: Arena) -> list[Job]:
        """Plays it once."""
        problem = arena.system(self.name).problem
        if not self.fleet:
            return [arena.job(self.name, "random")]
        fleet_parts(problem)  # raises if there are no passengers
        return [arena.job(self.name, "fleet", policy=self.name)]

    def result(self, arena: Arena, found: Sequence[JobResult]) -> Result:
        """J, and a bound if there is one."""
        (done,) = found
        upper: float | None = done.figures.get("upper")
        remark = self.unbounded
        if upper is not None:
            which = "that satisfies the constraints " if arena.constrained else ""
            bound = math.ceil(100 * upper) / 100  # rounded up, so that it remains a bound
            remark = f"no policy on the learners' moves {which}earns more than {bound:.2f}"
        finals = (done.figures["value"],)
        return Result(self.name, done.seconds, finals, remark, upper=upper)


@dataclass(frozen=True)
class Known(Reference):
    """Plans with the true motion.

    By mirror ascent over the moves that the learners plan with, so that its certificate bounds them
    as well. Where there is no certificate and actions form a box, also by gradient ascent for a
    table of actions; the better of the two counts.
    """

    unbounded: ClassVar[str] = (
        "a better plan may exist: J is not concave, as the motion or trips depend on mu or the "
        "reward is not concave in it, so nothing bounds the optimum"
    )

    def jobs(self, arena: Arena) -> list[Job]:
        """Plans once."""
        system = arena.system(self.name)
        # With trips vehicles of a cell must part, which a single action for each cell cannot say.
        mixes = not why_unbounded(*system.reveal()) or system.problem.trips is not None
        table = {"steps": Table().steps, "learning_rate": Table().learning_rate}
        more = {} if mixes or isinstance(system.problem.actions, MoveSet) else {"table": table}
        # It stops after these sweeps, or this near to the optimum.
        settings = {"points": arena.points, "sweeps": 400, "gap": 0.05}
        return [arena.job(self.name, "mirror", **settings, **more)]


@dataclass(frozen=True)
class Fluid(Reference):
    """Plans for a fleet by the fluid linear programme, with the true motion."""

    def jobs(self, arena: Arena) -> list[Job]:
        """Plans with five moves on each axis; the bound is for all that the learners plan with."""
        fleet_parts(arena.system(self.name).problem)
        return [arena.job(self.name, "fluid", points=5, tried=arena.points or 9)]


CONTENDERS: dict[str, Contender] = {
    each.name: each
    for each in (
        Learner("m3ucrl", {"optimism": "hallucinated"}),
        Learner("greedy", {"optimism": "greedy"}),
        Learner("thompson", {"optimism": "thompson"}),
        Learner("bonus", {"optimism": "bonus"}),
        Learner("scouts", {"optimism": "greedy", "scouts": "hallucinated"}),
        Learner("unsafe", {"pessimism": "none"}),
        Reference("random"),
        Known("known"),
        Reference("stay", fleet=True),
        Reference("demand", fleet=True),
        Fluid("fluid"),
    )
}
"""All contenders by name."""


def contender(name: str) -> Callable[[OwnFunction], OwnFunction]:
    """Registers a learner of your own as a contender, as a decorator.

    The function gets the system, an `AbstractSystem`, and ``episodes``, ``agents`` and ``seed`` by
    name. It returns the J of each episode; or, if it is evaluated more rarely, a mapping from the
    number of moves that it had seen to J. Write it into a file that ``--import`` or
    ``ComparisonConfig(imports=...)`` names, so that workers find it as well.
    """
    if name in CONTENDERS and type(CONTENDERS[name]) is not FunctionLearner:
        raise UserError(f"the contender {name!r} is mufield's own; choose another name")

    def register(learner: OwnFunction) -> OwnFunction:
        OWN_LEARNERS[name] = learner
        CONTENDERS[name] = FunctionLearner(name)
        return learner

    return register


def enter(name: str) -> Contender:
    """The contender of a name, which may name a family of models: ``m3ucrl:ensemble``."""
    own, _, family = name.partition(":")
    if own not in CONTENDERS:
        raise UserError(f"no contender is named {own!r}; there are {', '.join(CONTENDERS)}")
    found, families = CONTENDERS[own], get_args(ModelName)
    if not family:
        return found
    if not isinstance(found, Learner) or family not in families:
        who = ", ".join(each.name for each in CONTENDERS.values() if isinstance(each, Learner))
        which = f"a family of models, one of {', '.join(families)}, as in m3ucrl:ensemble"
        raise UserError(f"no contender is named {name!r}; {who} may name {which}")
    return Learner(name, found.settings, family)


def compare(
    config: ComparisonConfig,
    directory: Path | None = None,
    *,
    pool: AbstractPool | None = None,
    progress: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Compares contenders in one system.

    All arguments are checked before the first job is computed. After an interruption, the same
    call goes on from the last episode.

    Args:
        config: What to compare.
        directory: Where jobs are kept, to be used again by other comparisons, and where
            ``comparison.json``, ``comparison.csv`` (the table) and ``curves.csv`` (tidy rows) are
            written; None to keep nothing.
        pool: The workers, such as ``LocalProcesses(2)``; by default this process. Scripts that ask
            for processes need ``if __name__ == "__main__":``.
        progress: Whether to show a bar.
        say: Called with a line of text about each job.
    """
    if directory is None:
        with tempfile.TemporaryDirectory() as kept_for_now:
            return compare(config, Path(kept_for_now), pool=pool, progress=progress, say=say)
    store, arena = JobStore(directory), Arena(config)
    jobs = [(each, each.jobs(arena)) for each in map(enter, config.contenders)]
    wanted = [job for _, own in jobs for job in own]
    with store.writing():
        ended = compute_missing(wanted, store, pool or SameProcess(), progress=progress, say=say)
        problems = tuple(finished.problem for finished in ended if finished.problem)
        results = []
        for each, own in jobs:
            found = [result for job in own if (result := store.find(job))]
            if len(found) == len(own):
                results.append(each.result(arena, found))
        documents = {each.name: [job.document() for job in own] for each, own in jobs}
        comparison = Comparison(config, tuple(results), documents, problems)
        comparison.write(directory)
    return comparison
