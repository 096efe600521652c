from .config import ComparisonConfig as ComparisonConfig
from .contenders import Contender as Contender
from .contenders import contender as contender
from .result import Comparison as Comparison
from .result import Result as Result
from .run import compare as compare
