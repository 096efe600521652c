"""The public names of this package, each written once: `lazy_loader` reads them from here."""

from .base import AbstractModel as AbstractModel
from .base import AbstractModelFamily as AbstractModelFamily
from .base import Prediction as Prediction
from .base import Residuals as Residuals
from .base import predict_rows as predict_rows
from .data import Transitions as Transitions
from .data import with_population as with_population
from .dirichlet import DirichletCounts as DirichletCounts
from .ensemble import DeepEnsemble as DeepEnsemble
from .features import FeatureMap as FeatureMap
from .gp import GaussianProcess as GaussianProcess
from .gp import TheoryBeta as TheoryBeta
from .kernels import AbstractKernel as AbstractKernel
from .kernels import AbstractPrior as AbstractPrior
from .kernels import Additive as Additive
from .kernels import ControlAffine as ControlAffine
from .kernels import Linear as Linear
from .kernels import Matern32 as Matern32
from .kernels import Product as Product
from .kernels import Select as Select
from .kernels import SquaredExponential as SquaredExponential
from .kernels import Structured as Structured
from .kernels import Sum as Sum
from .likelihood import Search as Search
