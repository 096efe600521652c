"""The public names of this package, each written once: `lazy_loader` reads them from here."""

from .ascent import StepRule as StepRule
from .bptt import BPTT as BPTT
from .bptt import BPTTResult as BPTTResult
from .certificate import Certificate as Certificate
from .certificate import certify as certify
from .concavity import OutsideClassError as OutsideClassError
from .gradient import GradientPlanner as GradientPlanner
from .kinds import Network as Network
from .kinds import Table as Table
from .mirror import MirrorAscent as MirrorAscent
from .mirror import MirrorResult as MirrorResult
from .mirror_planner import MirrorPlanner as MirrorPlanner
from .moves import Refinement as Refinement
from .planner import AbstractPlanner as AbstractPlanner
from .planner import Plan as Plan
from .shocks import PathPlan as PathPlan
from .shocks import plan_over_paths as plan_over_paths
