"""The public names of this package, each written once: `lazy_loader` reads them from here."""

from .base import AbstractModel as AbstractModel
from .base import AbstractModelFamily as AbstractModelFamily
from .base import Prediction as Prediction
from .calibration import EmpiricalBeta as EmpiricalBeta
from .data import KnownNoise as KnownNoise
from .data import LearnedNoise as LearnedNoise
from .data import Transitions as Transitions
from .ensemble import DeepEnsemble as DeepEnsemble
from .gp import GaussianProcess as GaussianProcess
from .gp import TheoryBeta as TheoryBeta
from .gp import TheoryNoise as TheoryNoise
from .kernels import AbstractKernel as AbstractKernel
from .kernels import Linear as Linear
from .kernels import Matern32 as Matern32
from .kernels import Matern52 as Matern52
from .kernels import Product as Product
from .kernels import Select as Select
from .kernels import SquaredExponential as SquaredExponential
from .kernels import Sum as Sum
from .priors import AbstractPrior as AbstractPrior
from .priors import Additive as Additive
from .priors import Steered as Steered
from .priors import Structured as Structured
