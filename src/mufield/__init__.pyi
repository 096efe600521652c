"""The public names, each written once: `lazy_loader` reads them from here."""

from . import constraints as constraints
from . import fleet as fleet
from . import flow as flow
from . import games as games
from . import learning as learning
from . import models as models
from . import planning as planning
from . import policies as policies
from ._runtime import enable_compilation_cache as enable_compilation_cache
from .actions import Box as Box
from .actions import MoveSet as MoveSet
from .environments.four_rooms import FOUR_ROOMS as FOUR_ROOMS
from .environments.registry import catalogue as catalogue
from .environments.registry import make as make
from .environments.registry import register as register
from .episode import AbstractSystem as AbstractSystem
from .episode import Episode as Episode
from .errors import UserError as UserError
from .flow.flow import Flow as Flow
from .flow.moves import MoveFlow as MoveFlow
from .io.log import read_log as read_log
from .io.policies import load_policy as load_policy
from .io.policies import save_policy as save_policy
from .io.rows import as_transitions as as_transitions
from .learning.m3ucrl import M3UCRL as M3UCRL
from .learning.optimism import Bonus as Bonus
from .learning.optimism import Greedy as Greedy
from .learning.optimism import Hallucinated as Hallucinated
from .learning.optimism import Thompson as Thompson
from .learning.run import learn as learn
from .models.ensemble import DeepEnsemble as DeepEnsemble
from .models.gp import GaussianProcess as GaussianProcess
from .planning.certificate import certify as certify
from .planning.gradient import GradientPlanner as GradientPlanner
from .planning.gradient import plan as plan
from .planning.kinds import Network as Network
from .planning.kinds import Table as Table
from .planning.mirror import MirrorAscent as MirrorAscent
from .planning.mirror_planner import MirrorPlanner as MirrorPlanner
from .policies.base import Profile as Profile
from .policies.base import as_profile as as_profile
from .policies.tables import TablePolicy as TablePolicy
from .policies.tables import random_policy as random_policy
from .problem import Problem as Problem
from .shocks import Shocks as Shocks
from .space.grid import Grid as Grid
from .space.measure import MeanField as MeanField
from .space.measure import entropy as entropy
from .space.measure import from_density as from_density
from .space.measure import histogram as histogram
from .space.measure import log_mass as log_mass
from .space.measure import point_mass as point_mass
from .space.measure import sample as sample
from .space.measure import uniform as uniform
from .space.measure import wasserstein as wasserstein
from .space.move import GaussianNoise as GaussianNoise
from .space.move import NeighbourNoise as NeighbourNoise
from .space.nodes import Nodes as Nodes
from .systems import SimulatedSystem as SimulatedSystem

# isort: split

__version__: str
