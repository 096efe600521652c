"""Commands about a run, several runs or a policy: their arguments, and how these are read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..errors import UserError
from ..runs.config import read_config
from .flags import Command, Environment
from .output import print_notes, waiting

if TYPE_CHECKING:
    from ..episode import SystemOrProblem
    from ..policies.base import Profile
    from ..problem import Problem
    from ..runs.files import RunFiles
    from ..runs.session import Session

ImportAgain = Annotated[
    str | None,
    tyro.conf.arg(
        name="import",
        metavar="FILE",
        help="The Python file with your own environment, which will be executed. Needed once on "
        "each computer, and again when the file has changed or moved.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunCommand(Command):
    """A command about one run.

    Attributes:
        run: Directory of the run.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    imports: ImportAgain = None

    @contextmanager
    def session(self, title: str) -> Iterator["Session"]:
        """The open run, while people see that the command is at work."""
        prepare(self.run)
        from ..runs.session import open_run

        with waiting(title), open_run(self.run, imports=self.imports) as session:
            print_changes(self.run)
            yield session
            print_notes(session.store.notes)


NEEDED = tyro.conf.arg(metavar="RUN", help_behavior_hint="(required)")


@dataclass(frozen=True, kw_only=True)
class RunsCommand(Command):
    """A command about several runs.

    Attributes:
        runs: Directories of the runs; several are drawn into the same curves.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, NEEDED] = ()
    imports: ImportAgain = None


@dataclass(frozen=True)
class PolicySource:
    """A policy, the system or problem that it is for, and where it comes from, as JSON.

    ``path`` is its file; None for the random policy.
    """

    profile: "Profile"
    environment: str
    known: "SystemOrProblem"
    problem: "Problem"
    identity: dict[str, Any]
    path: Path | None


@dataclass(frozen=True, kw_only=True)
class PolicyCommand(Command):
    """A command about a policy and the environment that it is for.

    Attributes:
        policy: Directory of a run; a policy file; or the word random, for uniform random moves.
        environment: Name of the environment; that of the run if a run is given.
        options: Options of the environment, such as horizon=10; the others are the run's.
        episode: Which policy of a run: best, of which the model expects the highest J; cautious,
            whose J has the highest lower end; that of an episode; or asked, but not told yet.
    """

    policy: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="POLICY")]
    environment: Environment = ""
    options: dict[str, Any] = field(default_factory=dict)
    episode: Annotated[str, tyro.conf.arg(metavar="{best,cautious,best-episode,last,asked,N}")] = (
        "best"
    )
    imports: ImportAgain = None

    def load(self) -> PolicySource:
        """Reads the policy and builds its system; raises if the two do not fit."""
        path: Path | None = self.policy
        assert path is not None
        environment, options, named = self.environment, self.options, None
        identity: dict[str, Any] = {}
        if path.is_dir():
            run = read_run(path)
            environment = environment or run.config.environment
            options = run.config.options | options
            named = run.config.imports
            path, identity = _of_run(run, self.episode, self.imports)
        if not environment:
            remedy = "name the environment after it, `mufield list` shows them"
            raise UserError(f"{path} does not say where it is to be played; {remedy}")
        from ..environments.registry import make
        from ..io.policies import load_policy, read_info, read_precision
        from ..io.sealed import file_digest
        from ..policies.base import checked_profile
        from ..policies.tables import random_policy
        from ..runs.build import problem_of
        from ..runs.surroundings import import_named, set_precision

        if path == Path("random") and not path.exists():
            path, identity = None, {"file": "random"}
        elif not identity:
            if read_precision(path) == "float64":  # in float32 the policy would lose digits
                set_precision("float64")
            identity = read_info(path)
        import_named(named, self.imports)
        known = make(environment, **options)
        problem = problem_of(known)
        try:
            policy = random_policy(problem) if path is None else load_policy(path)
            profile = checked_profile(policy, problem)
        except UserError as error:
            raise UserError(f"{path} is no policy for {environment}: {error}") from error
        identity = identity | {"environment": environment, "options": options}
        if path is not None:
            identity |= {"file": path.name, "sha256": file_digest(path)}
        return PolicySource(profile, environment, known, problem, identity, path)


def prepare(directory: Path) -> None:
    """Sets JAX to the run's number format, before anything is computed."""
    config = read_config(directory)
    from ..runs.surroundings import set_precision

    set_precision(config.precision)


def print_changes(directory: Path) -> None:
    """Says which versions have changed since a run began."""
    from ..runs.layout import read_versions
    from ..runs.surroundings import changes_since

    print_notes(changes_since(read_versions(directory)))


def read_run(directory: Path) -> "RunFiles":
    """Reads a run, and sets JAX to its number format."""
    prepare(directory)
    from ..runs.files import RunFiles

    return RunFiles(directory)


def _of_run(run: "RunFiles", which: str, imports: str | None) -> tuple[Path, dict[str, Any]]:
    from ..runs.session import open_run

    config = run.config
    about: dict[str, Any] = {"run": config.identity, "directory": run.directory.resolve().name}
    about |= {"label": config.label, "seed": config.seed}
    if which not in ("best", "cautious"):
        number = run.episode_number(which, planned=True)
        return run.policy_path(number), about | {"policy": run.policy_id(number), "episode": number}
    with open_run(run.directory, imports=imports) as session:
        plan, store = session.best(cautious=which == "cautious"), session.store
        names = ("how", "expected", "lower", "upper", "transitions")
        facts = {name: getattr(plan, name) for name in names}
        facts |= {"level": plan.draws / (plan.draws + 1), "episodes": store.episodes}
        facts["last"] = store.earned[-1].value if store.earned else None
        return store.best_path(which), about | {"policy": store.best_id(which), **facts}
