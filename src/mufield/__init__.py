"""mufield: policies for very large populations whose law of motion is unknown.

Names are loaded when they are first used, so that ``import mufield`` and the command line's help
are fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._runtime import enable_compilation_cache

if TYPE_CHECKING:
    from .environments import catalogue as catalogue
    from .environments import make as make
    from .environments import register as register
    from .episode import AbstractSystem as AbstractSystem
    from .episode import Episode as Episode
    from .flow.moves import MoveFlow as MoveFlow
    from .flow.objective import Flow as Flow
    from .flow.objective import Rollout as Rollout
    from .learning.gradient import GradientPlanner as GradientPlanner
    from .learning.m3ucrl import M3UCRL as M3UCRL
    from .learning.mirror import MirrorPlanner as MirrorPlanner
    from .learning.run import learn as learn
    from .learning.run import learn_many as learn_many
    from .models.base import AbstractModel as AbstractModel
    from .models.base import AbstractModelFamily as AbstractModelFamily
    from .models.base import Prediction as Prediction
    from .models.data import Transitions as Transitions
    from .models.ensemble import DeepEnsemble as DeepEnsemble
    from .models.gp import GaussianProcess as GaussianProcess
    from .models.gp import TheoryBeta as TheoryBeta
    from .planning.bptt import BPTT as BPTT
    from .planning.certificate import Certificate as Certificate
    from .planning.certificate import certify as certify
    from .planning.known import plan_network as plan_network
    from .planning.known import plan_table as plan_table
    from .planning.mirror import MirrorAscent as MirrorAscent
    from .planning.spread import plan_spread as plan_spread
    from .policies.base import AbstractPolicy as AbstractPolicy
    from .policies.base import ActionLaw as ActionLaw
    from .policies.base import Profile as Profile
    from .policies.base import as_profile as as_profile
    from .policies.files import load_policy as load_policy
    from .policies.files import read_info as read_info
    from .policies.files import save_policy as save_policy
    from .policies.network import network_profile as network_profile
    from .policies.randomised import RandomisedPolicy as RandomisedPolicy
    from .policies.randomised import UniformRandom as UniformRandom
    from .policies.randomised import option_policy as option_policy
    from .policies.randomised import random_policy as random_policy
    from .policies.randomised import spread_actions as spread_actions
    from .policies.spread import SpreadTable as SpreadTable
    from .policies.tabular import TabularPolicy as TabularPolicy
    from .problem import Box as Box
    from .problem import GaussianNoise as GaussianNoise
    from .problem import MoveSet as MoveSet
    from .problem import NeighbourNoise as NeighbourNoise
    from .problem import Problem as Problem
    from .space.grid import Grid as Grid
    from .space.maps import FOUR_ROOMS as FOUR_ROOMS
    from .space.measure import MeanField as MeanField
    from .space.measure import density as density
    from .space.measure import entropy as entropy
    from .space.measure import expectation as expectation
    from .space.measure import from_density as from_density
    from .space.measure import histogram as histogram
    from .space.measure import log_mass as log_mass
    from .space.measure import point_mass as point_mass
    from .space.measure import sample as sample
    from .space.measure import uniform as uniform
    from .space.move import Move as Move
    from .space.move import move as move
    from .space.transport import wasserstein as wasserstein
    from .systems import SimulatedSystem as SimulatedSystem

_HOME = {
    "environments": ("catalogue", "make", "register"),
    "episode": ("AbstractSystem", "Episode"),
    "flow.moves": ("MoveFlow",),
    "flow.objective": ("Flow", "Rollout"),
    "learning.gradient": ("GradientPlanner",),
    "learning.m3ucrl": ("M3UCRL",),
    "learning.mirror": ("MirrorPlanner",),
    "learning.run": ("learn", "learn_many"),
    "models.base": ("AbstractModel", "AbstractModelFamily", "Prediction"),
    "models.data": ("Transitions",),
    "models.ensemble": ("DeepEnsemble",),
    "models.gp": ("GaussianProcess", "TheoryBeta"),
    "planning.bptt": ("BPTT",),
    "planning.certificate": ("Certificate", "certify"),
    "planning.known": ("plan_network", "plan_table"),
    "planning.mirror": ("MirrorAscent",),
    "planning.spread": ("plan_spread",),
    "policies.base": ("AbstractPolicy", "ActionLaw", "Profile", "as_profile"),
    "policies.files": ("load_policy", "read_info", "save_policy"),
    "policies.network": ("network_profile",),
    "policies.randomised": (
        "RandomisedPolicy",
        "UniformRandom",
        "option_policy",
        "random_policy",
        "spread_actions",
    ),
    "policies.spread": ("SpreadTable",),
    "policies.tabular": ("TabularPolicy",),
    "problem": ("Box", "GaussianNoise", "MoveSet", "NeighbourNoise", "Problem"),
    "space.grid": ("Grid",),
    "space.maps": ("FOUR_ROOMS",),
    "space.measure": (
        "MeanField",
        "density",
        "entropy",
        "expectation",
        "from_density",
        "histogram",
        "log_mass",
        "point_mass",
        "sample",
        "uniform",
    ),
    "space.move": ("Move", "move"),
    "space.transport": ("wasserstein",),
    "systems": ("SimulatedSystem",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)
__version__ = "0.1.0"

enable_compilation_cache()


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
