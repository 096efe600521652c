from .comparison import Comparison as Comparison
from .comparison import ComparisonConfig as ComparisonConfig
from .comparison import Result as Result
from .contenders import Contender as Contender
from .contenders import compare as compare
from .contenders import contender as contender
