"""The public names of this package, each written once: `lazy_loader` reads them from here."""

from .constraint import Constraint as Constraint
from .constraint import cells_at_most as cells_at_most
from .constraint import entropy_at_least as entropy_at_least
from .constraint import mass_at_least as mass_at_least
from .constraint import mass_at_most as mass_at_most
from .lagrangian import ConstraintRule as ConstraintRule
from .lagrangian import InfeasibleError as InfeasibleError
