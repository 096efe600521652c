"""The public names of this package, each written once: `lazy_loader` reads them from here."""

from .flow import Flow as Flow
from .moves import MoveFlow as MoveFlow
from .rollout import Rollout as Rollout
from .windows import WindowSettings as WindowSettings
