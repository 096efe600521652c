"""The configuration of a run. No JAX here, so that the command line's help comes at once."""

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..errors import UserError
from ..io import disk
from ..io.atomic import check_file

TABLES = {"environment": "options", "model": "model_options", "planner": "planner_options"}
"""In a file of settings, these may be tables that hold ``name`` and the options side by side."""

ModelName = Literal["gp", "ensemble", "counts"]
PlannerName = Literal["mirror", "network", "table"]
OptimismName = Literal["hallucinated", "bonus", "thompson", "greedy"]
FirstName = Literal["prior", "random"]
PessimismName = Literal["samples", "none"]
Precision = Literal["float32", "float64"]


@dataclass(frozen=True)
class RunConfig:
    """What describes a run completely; the command line makes its flags and their help from it.

    Attributes:
        environment: Name of a system or problem; `mufield list` shows them, --import brings your
            own.
        options: Options of the environment, such as horizon=10.
        imports: Python file with your own systems (by @mufield.register); it is executed.
        seed: Seed of all randomness.
        agents: Number of agents that a simulator tracks in each episode.
        episodes: Number of episodes that the run is to have; more may follow.
        population: Size of the real population, if it is to be planned for: a fleet's plans send
            some more vehicles where chance decides how many arrive, and what `export` promises of a
            policy includes chance. By default the limit of many.
        model: Statistical model: by default gp, on nodes counts, the only one for them.
        model_options: Settings of the model, such as beta=3,mu=local.
        planner: Randomised policies by mirror ascent, or deterministic networks or tables.
        planner_options: Settings of the planner, such as sweeps=60.
        optimism: Kind of optimism of the population: by default hallucinated; with scouts, greedy.
        scouts: Kind of optimism of the tracked agents' own policy, by which they explore without
            constraints; by default they follow the population's policy.
        scale: Share of the model's band that plans use, or the bonus's weight; by default what one
            move would teach, or two thirds.
        greedy_fallback: Run the greedy plan where the optimistic one promises less than it costs if
            the model's mean is right; the paper's algorithm does not.
        first: Plan the first episode under the model's prior, or run a random policy.
        pessimism: Where the environment has constraints: satisfy them in samples of the model, or
            only as planned, which is not safe.
        reward_options: Settings of the model of the reward, where the environment hides it; it is
            of the same kind as the motion's.
        reference: J of a reference plan, for the regret.
        judge: On a simulator, plan once more in every episode, without optimism, and note what that
            policy earns; nothing is learned from it. It takes one more plan an episode.
        precision: Number format of all computations.
        label: Tells runs apart that share all else; `mufield new` draws one if there is none.
    """

    # Read by pydantic when a file is checked.
    version: ClassVar[int] = 1
    """Version of the format of run directories; later ones are refused."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"allow_inf_nan": False}

    environment: str
    options: dict[str, Any] = field(default_factory=dict)
    imports: str | None = None
    seed: int = 0
    agents: int = 1
    episodes: int = 30
    population: int | None = None
    model: ModelName | None = None
    model_options: dict[str, Any] = field(default_factory=dict)
    planner: PlannerName = "mirror"
    planner_options: dict[str, Any] = field(default_factory=dict)
    optimism: OptimismName | None = None
    scouts: OptimismName | None = None
    scale: float | None = None
    greedy_fallback: bool = True
    first: FirstName = "prior"
    pessimism: PessimismName = "samples"
    reward_options: dict[str, Any] = field(default_factory=dict)
    reference: float | None = None
    judge: bool = True
    precision: Precision = "float32"
    label: str = ""

    def __post_init__(self) -> None:
        sizes = [("agents", 1), ("episodes", 1), ("seed", 0)]
        for name, least in [*sizes, *([("population", 1)] if self.population is not None else [])]:
            if not least <= (value := getattr(self, name)) < 2**31:
                wanted = f"{least} or more, and less than 2^31"
                raise UserError(f"{name} must be {wanted}, got {value}; correct it")

    @property
    def identity(self) -> str:
        """Digest that names the run in its files; equal for runs that must have equal results."""
        document = replace(self, episodes=1).document()
        del document["judge"]  # it changes nothing that is learned
        unset = [name for name in ("population", "scouts") if document[name] is None]
        own = {name: value for name, value in document.items() if name not in unset}
        return short_digest(json.dumps(own, sort_keys=True))

    def document(self) -> dict[str, Any]:
        """The configuration as JSON, with the version of the format."""
        return json.loads(json.dumps(asdict(self) | {"format": self.version}, allow_nan=False))


def short_digest(*lines: str) -> str:
    """Names what some lines of text say."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter  # slow to import and to build

    return TypeAdapter(RunConfig)


def parse_config(document: Any, source: str) -> RunConfig:
    """Checks a configuration; raises UserError that names the source and the field."""
    from pydantic import ValidationError

    if isinstance(document, dict):
        document = dict(document)
        later = document.pop("format", RunConfig.version)
        if isinstance(later, int) and later > RunConfig.version:
            what = f"in version {later} of the format; this one reads up to {RunConfig.version}"
            raise UserError(f"{source} was written by a newer mufield, {what}; upgrade mufield")
        known = [each.name for each in fields(RunConfig)]
        if unknown := sorted(document.keys() - set(known)):
            what = f"there is no setting {', '.join(unknown)}; there are {', '.join(known)}"
            raise UserError(f"{source}: {what}")
    try:
        return _adapter().validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        own = first.get("ctx", {}).get("error")
        if isinstance(own, UserError):  # raised by `RunConfig.__post_init__`
            raise UserError(f"{source}: {own}") from error
        where = ".".join(str(key) for key in first["loc"]) or "its contents"
        what = f"{where} is wrong ({first['msg']}), got {first['input']!r}"
        raise UserError(f"{source}: {what}; correct it") from error


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a JSON or TOML file, not checked yet.

    The environment, the model and the planner may be tables: ``[model]`` with ``name`` and the
    options is returned as ``model`` and ``model_options``.
    """
    check_file(path, 1 << 20)  # larger files are no settings
    try:
        text = disk.read_bytes(path).decode()
        document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        # Also refuses numbers that are not finite, and those that no computer holds.
        json.loads(json.dumps(document, allow_nan=False), parse_int=_whole)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise UserError(f"{path} is not {kind}: {error}; correct it") from error
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected settings by name, got {type(document).__name__}")
    return _without_tables(document, path)


def _whole(text: str) -> int:
    if abs(number := int(text)) >= 2**63:
        raise ValueError("a number is too large")
    return number


def _without_tables(document: dict[str, Any], path: Path) -> dict[str, Any]:
    for name, options in TABLES.items():
        if not isinstance(document.get(name), dict):
            continue
        if options in document:
            what = f"the options of the {name} stand in [{name}] and in {options}"
            raise UserError(f"{path}: {what}; write them in one place")
        table = document.pop(name)
        if (chosen := table.pop("name", None)) is not None:  # else a flag or the default says which
            document[name] = chosen
        document[options] = table
    return document


def read_config(directory: Path) -> RunConfig:
    """The configuration of a run."""
    path = directory / "config.json"
    if not disk.kind(path):
        begin = "begin one with `mufield train` or `mufield new`"
        raise UserError(f"there is no run in {directory}; {begin}")
    return parse_config(read_settings(path), str(path))
