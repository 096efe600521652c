"""The public names of this package, each written once: `lazy_loader` reads them from here."""

from .best import BestPlan as BestPlan
from .m3ucrl import M3UCRL as M3UCRL
from .metrics import EpisodeMetrics as EpisodeMetrics
from .optimism import AbstractOptimism as AbstractOptimism
from .optimism import Bonus as Bonus
from .optimism import Greedy as Greedy
from .optimism import Hallucinated as Hallucinated
from .optimism import Thompson as Thompson
from .run import LearnResult as LearnResult
from .run import learn as learn
from .safety import ModelSamples as ModelSamples
from .state import LearnerState as LearnerState
