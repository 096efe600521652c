"""From a run's configuration to its problem, its system and its learner."""

import dataclasses
import inspect
import json
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..environments.registry import find, make_known
from ..episode import AbstractSystem, Known
from ..errors import UserError
from ..learning.believed import reward_family
from ..learning.gradient import GradientPlanner
from ..learning.m3ucrl import M3UCRL
from ..learning.mirror import MirrorPlanner
from ..learning.plan import AbstractPlanner
from ..models.base import AbstractModelFamily
from ..models.ensemble import DeepEnsemble
from ..models.gp import GaussianProcess
from ..policies.encoders import ENCODERS
from ..problem import Problem
from .config import RunConfig
from .imports import import_users as import_users
from .precision import check_precision

FAMILIES: dict[str, type[AbstractModelFamily]] = {
    "ensemble": DeepEnsemble,
    "gp": GaussianProcess,
}
PLANNERS: dict[str, tuple[type[AbstractPlanner], dict[str, Any]]] = {
    "mirror": (MirrorPlanner, {}),
    "network": (GradientPlanner, {"policy": "network"}),
    "table": (GradientPlanner, {"policy": "table"}),
}


WORDS: dict[str, dict[str, Any]] = {"mu": {word: kind() for word, kind in ENCODERS.items()}}
"""Settings that are objects in Python, with the words that stand for them in configurations."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a configuration stands for.

    Attributes:
        config: The configuration.
        problem: What is known.
        system: The simulator; none for a real system.
        learner: The learner.
    """

    config: RunConfig
    problem: Problem
    system: AbstractSystem | None
    learner: M3UCRL


def build(config: RunConfig, imports: str | None = None) -> Setup:
    """Builds a run's problem, system and learner.

    Args:
        config: The configuration.
        imports: The user's own file, if it is no longer where the configuration says.
    """
    check_precision(config)
    known = _known(config, imports)
    problem, family = _problem(known), _family(config)
    learner = M3UCRL(
        problem,
        family,
        _planner(config),
        optimism=config.optimism,
        scale=config.scale,
        first=config.first,
        estimate_noise=config.estimate_noise,
        reward_family=_reward_family(config, problem, family),
    )
    return Setup(config, problem, known if isinstance(known, AbstractSystem) else None, learner)


def with_reward_options(setup: Setup) -> Setup:
    """The setup with all settings of the reward's model written out, if it has one.

    Only a problem says whether its reward is hidden, so `resolve` cannot do it.
    """
    family = setup.learner.reward_family
    if family is None:
        return setup
    full = dataclasses.replace(setup.config, reward_options=_settings(family))
    return dataclasses.replace(setup, config=full)


def build_problem(config: RunConfig, imports: str | None = None) -> Problem:
    """What is known of a run's system; faster than all of `build`."""
    return _problem(_known(config, imports))


def resolve(config: RunConfig) -> RunConfig:
    """The configuration with all defaults written out, because those of the code may change."""
    import_users(config.imports)
    known = find(config.environment).options
    own = {name: value for name, value in known.items() if value is not inspect.Parameter.empty}
    settings, fixed = _settings(_planner(config)), PLANNERS[config.planner][1]
    return dataclasses.replace(
        config,
        options=_plain(own | config.options),
        model_options=_settings(_family(config)),
        planner_options={name: settings[name] for name in settings if name not in fixed},
    )


def _known(config: RunConfig, imports: str | None) -> Known:
    import_users(config.imports if imports is None else imports)
    return make_known(config.environment, **config.options)


def _problem(known: Known) -> Problem:
    return known if isinstance(known, Problem) else known.problem


def _family(config: RunConfig) -> AbstractModelFamily:
    family = FAMILIES[config.model]
    return family(**_checked(family, config.model_options, f"the model {config.model!r}"))


def _reward_family(
    config: RunConfig, problem: Problem, family: AbstractModelFamily
) -> AbstractModelFamily | None:
    if not problem.hides_reward:
        if config.reward_options:
            raise UserError(
                f"the reward of {config.environment!r} is known, so there is no model of it to "
                f"set {', '.join(sorted(config.reward_options))} of; leave out reward_options"
            )
        return None
    # A dataclass, though its type cannot say so.
    usual: Any = reward_family(family)
    name = f"the reward's model {config.model!r}"
    options = _checked(type(usual), config.reward_options, name)
    changed: AbstractModelFamily = dataclasses.replace(usual, **options)
    return changed


def _planner(config: RunConfig) -> AbstractPlanner:
    planner, fixed = PLANNERS[config.planner]
    name = f"the planner {config.planner!r}"
    return planner(**_checked(planner, config.planner_options, name, tuple(fixed)), **fixed)


def _checked(
    kind: type[Any], options: dict[str, Any], name: str, fixed: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The options in the types that the settings have; raises if there is no such setting."""
    known = {each.name: each.type for each in dataclasses.fields(kind) if each.name not in fixed}
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise UserError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    return {
        key: _of_type(known[key], _object(key, value, name), f"{name}: {key}")
        for key, value in options.items()
    }


def _object(setting: str, value: Any, name: str) -> Any:
    """The object that a word stands for; anything else as it is."""
    words = WORDS.get(setting, {})
    if words and isinstance(value, str) and value not in words:
        raise UserError(f"{name}: {setting} must be one of {', '.join(words)}, got {value!r}")
    return words.get(value, value) if isinstance(value, str) else value


def _of_type(kind: Any, value: Any, name: str) -> Any:
    if value is None:  # a default that JSON knows as null
        return None
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    adapter: TypeAdapter[Any] = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise UserError(f"{name} must be of the type {kind}, got {value!r}; correct it") from error


def _settings(module: Any) -> dict[str, Any]:
    return _plain({each.name: getattr(module, each.name) for each in dataclasses.fields(module)})


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """What JSON can hold, as it comes back from there."""
    kept = {}
    for name, value in values.items():
        words = [word for word, each in WORDS.get(name, {}).items() if each == value]
        if words:
            kept[name] = words[0]
            continue
        try:
            kept[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue  # such as functions: they are the code's own and cannot be set from outside
    return kept
