"""What commands are given: a run, or a policy file with the name of an environment."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..runs.config import read_config

if TYPE_CHECKING:
    from ..episode import Known
    from ..policies.base import Profile
    from ..problem import Problem
    from ..runs.layout import RunFiles


def prepare(directory: Path) -> None:
    """Sets JAX to the run's number format, before anything is computed."""
    config = read_config(directory)
    from ..runs.surroundings import set_precision

    set_precision(config.precision)


def open_run(directory: Path) -> "RunFiles":
    """Reads a run, to compute in its own number format."""
    prepare(directory)
    from ..runs.layout import RunFiles

    return RunFiles(directory)


@dataclass(frozen=True)
class PolicySource:
    """A policy, and what it is for.

    Attributes:
        profile: The policy.
        environment: Name of the system.
        known: The system, or the problem of a real one.
        problem: What is known of it.
        identity: Where the policy comes from, in values that JSON has.
    """

    profile: "Profile"
    environment: str
    known: "Known"
    problem: "Problem"
    identity: dict[str, Any]


def load_source(
    path: Path,
    environment: str,
    options: dict[str, Any],
    imports: str | None,
    *,
    episode: str = "best",
) -> PolicySource:
    """Reads a policy and builds its system; raises if the two do not fit.

    Args:
        path: A policy file, or the directory of a run.
        environment: Name of the system; empty for that of the run.
        options: Its options, in place of the run's.
        imports: Where the user's own file is; by default where the run says.
        episode: Which of a run's policies: ``"best"``, ``"last"``, ``"asked"`` or a number.
    """
    identity: dict[str, Any] = {}
    if path.is_dir():
        run = open_run(path)
        environment = environment or run.config.environment
        options = run.config.options | options
        imports = imports or run.config.imports
        path, identity = _of_run(run, episode)
    if not environment:
        raise UserError(
            f"{path} does not say where it is to be played; name the environment after it, "
            "`mufield list` shows them"
        )
    from .._files import file_digest
    from ..environments.registry import make_known
    from ..policies.base import as_profile
    from ..policies.files import load_policy, read_info, read_precision
    from ..problem import Problem
    from ..runs.surroundings import import_users, set_precision

    if not identity:
        if read_precision(path) == "float64":  # else it would lose digits
            set_precision("float64")
        identity = read_info(path)
    import_users(imports)
    known = make_known(environment, **options)
    problem = known if isinstance(known, Problem) else known.problem
    profile = as_profile(load_policy(path), problem.horizon)
    _check_cells(profile, problem, path, environment)
    identity = identity | {"environment": environment, "options": options}
    identity |= {"file": path.name, "sha256": file_digest(path)}
    return PolicySource(profile, environment, known, problem, identity)


def _of_run(run: "RunFiles", episode: str) -> tuple[Path, dict[str, Any]]:
    """The file of one of a run's policies, and what tells it apart from others."""
    number, config = run.episode_number(episode, planned=True), run.config
    return run.path("policies", number), {
        "run": config.identity,
        "directory": run.directory.resolve().name,
        "label": config.label,
        "seed": config.seed,
        "episode": number,
        "policy": run.plan_id(number),
    }


def _check_cells(profile: "Profile", problem: "Problem", path: Path, environment: str) -> None:
    """Raises if a table of moves or actions is for another number of cells."""
    from ..policies.tables import TablePolicy

    policy, cells = profile.at(0), problem.grid.n_cells
    if isinstance(policy, TablePolicy) and policy.rows not in (1, cells):
        raise UserError(
            f"the policy {path} is for {policy.rows} cells, and {environment} has {cells}; name "
            "the environment and the options that it was planned for"
        )
