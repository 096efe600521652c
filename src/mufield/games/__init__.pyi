"""The public names of this package, each written once: `lazy_loader` reads them from here."""

from .response import Followers as Followers
from .response import Response as Response
from .response import exploitability as exploitability
from .response import respond as respond
from .solvers import AbstractSolver as AbstractSolver
from .solvers import Equilibrium as Equilibrium
from .solvers import EquilibriumPlanner as EquilibriumPlanner
from .solvers import FictitiousPlay as FictitiousPlay
from .solvers import GameState as GameState
from .solvers import MirrorDescent as MirrorDescent
from .tolls import Anarchy as Anarchy
from .tolls import Tolls as Tolls
from .tolls import anarchy as anarchy
from .tolls import priced as priced
from .tolls import sharpened as sharpened
from .tolls import tolls as tolls
