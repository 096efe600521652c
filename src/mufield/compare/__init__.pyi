from .comparison import Comparison as Comparison
from .comparison import ComparisonConfig as ComparisonConfig
from .comparison import Result as Result
from .contenders import Contender as Contender
from .contenders import contender as contender
from .run import compare as compare
