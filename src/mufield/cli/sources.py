"""Commands about a run, several runs or a policy: their arguments, and how these are read."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..errors import UserError
from ..runs.config import read_config
from .flags import Command, ImportFlag
from .output import say

if TYPE_CHECKING:
    from ..episode import Known
    from ..policies.base import Profile
    from ..problem import Problem
    from ..runs.files import RunFiles

RunArgument = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True, kw_only=True)
class OfRun(Command):
    """A command about one run."""

    run: RunArgument
    """Directory of the run."""

    imports: ImportFlag = None
    """Your own Python file, to be executed: where it is now, if it is not where it was when the run
    began, or if you have not asked for it yet, as it is now, on this computer."""

    def named_runs(self) -> Sequence[Path]:
        """The run."""
        return (self.run,)


@dataclass(frozen=True, kw_only=True)
class OfRuns(Command):
    """A command about several runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Directories of the runs, or of sweeps; several are drawn into the same curves."""

    imports: ImportFlag = None
    """Your own Python file, to be executed: where it is now, if it is not where it was when the run
    began, or if you have not asked for it yet, as it is now, on this computer."""

    def named_runs(self) -> Sequence[Path]:
        """The runs."""
        return self.runs


@dataclass(frozen=True, kw_only=True)
class OfPolicy(Command):
    """A command about a policy and the environment that it is for."""

    policy: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="POLICY")]
    """The directory of a run, simulated or real, or a policy file."""

    environment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[ENVIRONMENT]")] = ""
    """Name of the environment; that of the run if a run is given."""

    options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment, such as horizon=10; the others are the run's."""

    episode: Annotated[str, tyro.conf.arg(metavar="{best,best-episode,last,asked,N}")] = "best"
    """Which policy of a run: the one that all data make best, as `mufield policy` writes it; that
    of an episode; or the one that was asked for, but whose episode was not told yet."""

    imports: ImportFlag = None
    """Python file or module to import first, which registers your own environment; also for a run
    whose file you have not asked for yet, as it is now, on this computer."""

    def named_runs(self) -> Sequence[Path]:
        """The run, if it is one."""
        return (self.policy,)

    def load(self) -> "PolicySource":
        """Reads the policy and builds its system; raises if the two do not fit."""
        path, environment = self.policy, self.environment
        options, named = self.options, None
        identity: dict[str, Any] = {}
        if path.is_dir():
            run = read_run(path)
            environment = environment or run.config.environment
            options = run.config.options | options
            named = run.config.imports
            if self.episode == "best":
                path, identity = _best_of_run(run, self.imports)
            else:
                path, identity = _of_run(run, self.episode)
        if not environment:
            raise UserError(
                f"{path} does not say where it is to be played; name the environment after it, "
                "`mufield list` shows them"
            )
        from ..environments.registry import make_known
        from ..io.policies import load_policy, read_info, read_precision
        from ..io.sealed import file_digest
        from ..policies.base import fitting_profile
        from ..problem import Problem
        from ..runs.surroundings import import_named, import_users, set_precision

        if not identity:
            if read_precision(path) == "float64":  # in float32 the policy would lose digits
                set_precision("float64")
            identity = read_info(path)
        if self.imports is None:
            import_named(named)
        else:
            import_users(self.imports)
        known = make_known(environment, **options)
        problem = known if isinstance(known, Problem) else known.problem
        try:
            profile = fitting_profile(load_policy(path), problem)
        except UserError as error:
            raise UserError(f"{path} is no policy for {environment}: {error}") from error
        identity = identity | {"environment": environment, "options": options}
        identity |= {"file": path.name, "sha256": file_digest(path)}
        return PolicySource(profile, environment, known, problem, identity)


@dataclass(frozen=True)
class PolicySource:
    """A policy, the system or problem that it is for, and where it comes from, as JSON."""

    profile: "Profile"
    environment: str
    known: "Known"
    problem: "Problem"
    identity: dict[str, Any]


def of_sweeps(runs: Sequence[Path], most: int) -> list[Path]:
    """The directories of runs; in the place of a sweep's, those of its runs with the highest J."""
    from ..runs.sweep import is_sweep, read_sweep

    found: list[Path] = []
    for directory in runs:
        if not is_sweep(directory):
            found.append(directory)
            continue
        best = [run.summary.directory for run in read_sweep(directory).complete[:most]]
        if not best:
            raise UserError(
                f"the sweep {directory} has no complete run yet; `mufield runs {directory}` says "
                "how far they are"
            )
        found += best
    return found


def prepare(directory: Path) -> None:
    """Sets JAX to the run's number format, before anything is computed."""
    config = read_config(directory)
    from ..runs.surroundings import set_precision

    set_precision(config.precision)


def confirm(runs: Sequence[Path]) -> None:
    """At a terminal, asks whether to execute the Python files that runs name, if that is new."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    for directory in runs:
        there = (directory / "config.json").exists()
        source = read_config(directory).imports if there else None
        if source is None:
            continue
        from ..runs.surroundings import agree, needs_consent

        if needs_consent(source):
            say(f"{directory} needs the Python code {source}, which can do all that you can.")
            sys.stderr.write("Execute it, now and for as long as it does not change? [y/N] ")
            sys.stderr.flush()
            if sys.stdin.readline().strip().lower() in ("y", "yes"):
                agree(source)


def read_run(directory: Path) -> "RunFiles":
    """Reads a run, and sets JAX to its number format."""
    prepare(directory)
    from ..runs.files import RunFiles

    return RunFiles(directory)


def _of_run(run: "RunFiles", episode: str) -> tuple[Path, dict[str, Any]]:
    """The file of one of a run's policies, and what identifies it."""
    number = run.episode_number(episode, planned=True)
    return run.policy_path(number), _identity(run, run.policy_id(number), episode=number)


def _best_of_run(run: "RunFiles", imports: str | None) -> tuple[Path, dict[str, Any]]:
    """The file of the policy that all data make best, and what identifies it."""
    from ..runs.session import open_run

    with open_run(run.directory, imports=imports) as session:
        plan, store = session.best(), session.store
        facts = {"expected": plan.expected, "lower": plan.lower, "upper": plan.upper}
        facts |= {"episodes": store.episodes, "transitions": plan.transitions}
        return store.best_path("best"), _identity(run, store.best_id("best"), **facts)


def _identity(run: "RunFiles", policy: str, **more: Any) -> dict[str, Any]:
    config = run.config
    return {
        "run": config.identity,
        "directory": run.directory.resolve().name,
        "label": config.label,
        "seed": config.seed,
        "policy": policy,
        **more,
    }
