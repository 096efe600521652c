"""The public names of this package, each written once: `lazy_loader` reads them from here."""

from .flow import Flow as Flow
from .flow import WindowSettings as WindowSettings
from .moves import MoveFlow as MoveFlow
from .paths import PathRollouts as PathRollouts
from .paths import over_paths as over_paths
from .rollout import Rollout as Rollout
