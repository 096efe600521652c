"""The public names of this package, each written once: `lazy_loader` reads them from here."""

from .constraint import Constraint as Constraint
from .lagrangian import ConstraintRule as ConstraintRule
from .lagrangian import InfeasibleError as InfeasibleError
from .limits import cells_at_most as cells_at_most
from .limits import entropy_at_least as entropy_at_least
from .limits import mass_at_least as mass_at_least
from .limits import mass_at_most as mass_at_most
