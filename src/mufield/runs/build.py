"""From a run's configuration to its problem, its system and its learner."""

import dataclasses
import inspect
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar, get_args

from pydantic import ConfigDict, PydanticUserError, TypeAdapter

from ..environments.registry import find, make
from ..episode import AbstractSystem, SystemOrProblem
from ..errors import UserError
from ..fleet.fluid import for_fleet
from ..fleet.passengers import Passengers
from ..learning.m3ucrl import M3UCRL
from ..learning.optimism import AbstractOptimism, Bonus, Greedy, Hallucinated, Thompson
from ..learning.run import check_scouts
from ..learning.safety import ModelSamples
from ..models.base import AbstractModelFamily
from ..models.dirichlet import DirichletCounts
from ..models.ensemble import DeepEnsemble
from ..models.gp import GaussianProcess, TheoryBeta
from ..models.kernels import Additive, ControlAffine, Structured
from ..planning.gradient import GradientPlanner
from ..planning.kinds import Network, Table
from ..planning.mirror_planner import MirrorPlanner
from ..planning.planner import AbstractPlanner
from ..policies.encoders import ENCODERS
from ..problem import Problem
from .config import OptimismName, RunConfig
from .surroundings import check_precision, import_named, import_users

T = TypeVar("T")

NAMED_SETTINGS: dict[str, Mapping[str, type[Any]]] = {
    "mu": ENCODERS,
    "prior": {"structured": Structured, "control affine": ControlAffine, "additive": Additive},
    "beta": {"theory": TheoryBeta},
    "model": {"gp": GaussianProcess, "ensemble": DeepEnsemble, "counts": DirichletCounts},
    "optimism": {k.__name__.lower(): k for k in (Hallucinated, Bonus, Thompson, Greedy)},
}
"""Settings whose values are objects in Python. In a configuration a word stands for an object with
its defaults, a table for one with other settings: ``mu = {name = "pooled", cells = 6}``."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """A configuration and what it describes; a real system has no simulator, `system` is None."""

    config: RunConfig
    problem: Problem
    system: AbstractSystem | None
    learner: M3UCRL


def build(config: RunConfig, imports: str | None = None) -> Setup:
    """Builds a run's problem, system and learner; writes out defaults of the reward's model.

    ``imports`` is the user's own file, to be executed, and where it is now. Without it, the one
    that the configuration names is executed only if the user asked for it before (`trust`).
    """
    check_precision(config.precision)
    known = _known(config, imports)
    config = resolve(config) if config.model is None else config
    problem, family = problem_of(known), _family(config)
    rewards = _reward_family(config, problem, family)
    if rewards is not None:
        config = dataclasses.replace(config, reward_options=_settings(rewards))
    learner = M3UCRL(
        for_population(problem, config.population),
        family,
        _planner(config),
        optimism=_optimism(config, config.optimism),
        scouts=_optimism(config, config.scouts),
        random_first=1.0 if config.first == "random" else None,
        reward_family=rewards,
        pessimism=_pessimism(config, problem),
        greedy_fallback=config.greedy_fallback,
    )
    system = known if isinstance(known, AbstractSystem) else None
    if system is not None:
        check_scouts(system, learner)
    return Setup(config, problem, system, learner)


def build_problem(config: RunConfig, imports: str | None = None) -> Problem:
    """The problem alone; faster than `build`."""
    return problem_of(_known(config, imports))


def resolve(config: RunConfig) -> RunConfig:
    """The configuration with all defaults written out, because defaults may change."""
    import_users(config.imports)
    if config.model is None:
        on_nodes = problem_of(make(config.environment, **config.options)).on_nodes
        config = dataclasses.replace(config, model="counts" if on_nodes else "gp")
    known, planner = find(config.environment).options, _planner(config)
    own = {name: value for name, value in known.items() if value is not inspect.Parameter.empty}
    return dataclasses.replace(
        config,
        optimism=config.optimism or ("greedy" if config.scouts else "hallucinated"),
        options=_plain(own | config.options),
        model_options=_settings(_family(config)),
        planner_options=_settings(getattr(planner, "policy", None)) | _settings(planner),
    )


def _known(config: RunConfig, imports: str | None) -> SystemOrProblem:
    import_named(config.imports, imports)
    return make(config.environment, **config.options)


def for_population(problem: Problem, size: int | None, *, seen: int = -1) -> Problem:
    """The problem to plan in for a population of this size: fleets may have another."""
    if size is None or not isinstance(getattr(problem.trips, "chance", None), Passengers):
        return problem
    return for_fleet(problem, size, seen=seen)


def problem_of(known: SystemOrProblem) -> Problem:
    """The problem of a system, or the problem itself."""
    return known if isinstance(known, Problem) else known.problem


def _family(config: RunConfig) -> AbstractModelFamily:
    assert config.model is not None  # `resolve` has chosen one
    kind: type[AbstractModelFamily] = NAMED_SETTINGS["model"][config.model]
    return _make(kind, config.model_options, f"the model {config.model!r}")


def _reward_family(
    config: RunConfig, problem: Problem, family: AbstractModelFamily
) -> AbstractModelFamily | None:
    if not problem.hides_reward:
        if config.reward_options:
            what = f"there is no model of it to set {', '.join(sorted(config.reward_options))} of"
            known = f"the reward of {config.environment!r} is known"
            raise UserError(f"{known}, so {what}; leave out reward_options")
        return None
    usual = family.for_rewards()
    options = _checked(type(usual), config.reward_options, f"the reward's model {config.model!r}")
    return dataclasses.replace(usual, **options)


def _planner(config: RunConfig) -> AbstractPlanner:
    what, options = f"the planner {config.planner!r}", dict(config.planner_options)
    if config.planner == "mirror":
        return _make(MirrorPlanner, options, what)
    # A configuration has the policy's options and those of `GradientPlanner` in one table.
    kind: type[Any] = {"network": Network, "table": Table}[config.planner]
    own = {e.name: options.pop(e.name) for e in dataclasses.fields(kind) if e.name in options}
    return _make(GradientPlanner, options, what, policy=_make(kind, own, what))


def _optimism(config: RunConfig, name: OptimismName | None) -> AbstractOptimism | None:
    if name is None:
        return None
    kind: type[AbstractOptimism] = NAMED_SETTINGS["optimism"][name]
    scaled = config.scale is not None and issubclass(kind, Hallucinated | Bonus)
    return kind(config.scale) if scaled else kind()


def _pessimism(config: RunConfig, problem: Problem) -> ModelSamples | None:
    if problem.constraints is not None:
        return ModelSamples(draws=0) if config.pessimism == "none" else ModelSamples()
    if config.pessimism != "samples":
        raise UserError(f"{config.environment!r} has no constraints; leave out pessimism")
    return None


def _make(kind: type[T], options: dict[str, Any], what: str, **fixed: Any) -> T:
    """Makes an object of a dataclass from settings of a configuration; `_settings` is the inverse.

    ``what`` names the object in errors; ``fixed`` are settings that a configuration cannot choose.
    """
    own = _checked(kind, options, what, fixed)
    try:
        return kind(**own, **fixed)
    except UserError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"{what} cannot have the settings {own}: {error}; correct them") from error


def _checked(
    kind: type[Any], options: dict[str, Any], what: str, fixed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Plain settings as values of the dataclass's types; raises for unknown names and values."""
    fixed = fixed or {}
    known = {e.name: e.type for e in dataclasses.fields(kind) if e.name not in fixed}
    if unknown := sorted(options.keys() - known.keys()):
        # The policy's options belong to the same table, so they are listed, too.
        plans = [each for each in fixed.values() if dataclasses.is_dataclass(each)]
        beside = [e.name for each in plans for e in dataclasses.fields(each)]
        has = ", ".join([*known, *beside]) or "none"
        raise UserError(f"{what} has no option {', '.join(unknown)}; it has {has}")
    return {name: _value(name, known[name], value, what) for name, value in options.items()}


def _value(setting: str, kind: Any, value: Any, what: str) -> Any:
    """Turns a plain value into one of the setting's `NAMED_SETTINGS`, or into the type."""
    held = tuple(each for each in get_args(kind) or (kind,) if isinstance(each, type))
    words = {word: k for word, k in NAMED_SETTINGS.get(setting, {}).items() if issubclass(k, held)}
    if words and isinstance(value, str | dict):
        own = {"name": value} if isinstance(value, str) else dict(value)
        word = own.pop("name", None)
        if word not in words:
            raise UserError(f"{what}: {setting} must be one of {', '.join(words)}, got {word!r}")
        return _make(words[word], own, f"{what}: {setting} {word!r}")
    if value is None:  # a default that JSON knows as null
        return None
    settings = ConfigDict(arbitrary_types_allowed=True)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind, config=settings)
        found = adapter.validate_python(value)
        # Python takes true for 1, and 1e39 for a whole number; JAX counts to 2^31 - 1.
        odd = isinstance(value, bool) and not isinstance(found, bool)
        if odd or (isinstance(found, int) and abs(found) >= 2**31):
            raise ValueError("of another kind, or too large")
        return found
    except (ValueError, PydanticUserError) as error:
        wanted = f"one of {', '.join(words)}, or " if words else ""
        raise UserError(
            f"{what}: {setting} must be {wanted}of the type {kind}, got {value!r}; correct it"
        ) from error


def _settings(made: Any) -> dict[str, Any]:
    """The fields of a dataclass object, as a configuration has them; none of nothing."""
    known = () if made is None else dataclasses.fields(made)
    return _plain({each.name: getattr(made, each.name) for each in known})


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON gives them back; those that it cannot hold are left out."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        words = [word for word, kind in NAMED_SETTINGS.get(name, {}).items() if type(value) is kind]
        if words:
            own = _settings(value)
            kept[name] = {"name": words[0], **own} if own else words[0]
            continue
        with suppress(TypeError, ValueError):  # such as functions, which no configuration can set
            kept[name] = json.loads(json.dumps(value, allow_nan=False))
    return kept
