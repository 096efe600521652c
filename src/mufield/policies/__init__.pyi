"""The public names of this package, each written once: `lazy_loader` reads them from here."""

from .base import AbstractPolicy as AbstractPolicy
from .base import ActionLaw as ActionLaw
from .base import Profile as Profile
from .base import as_profile as as_profile
from .base import saved_as as saved_as
from .encoders import AbstractEncoder as AbstractEncoder
from .encoders import Around as Around
from .encoders import Centre as Centre
from .encoders import Clock as Clock
from .encoders import Here as Here
from .encoders import Joined as Joined
from .encoders import LogHere as LogHere
from .encoders import Pooled as Pooled
from .encoders import Seen as Seen
from .encoders import Unseen as Unseen
from .network import network_profile as network_profile
from .tables import TablePolicy as TablePolicy
from .tables import random_policy as random_policy
from .tables import uniform_policy as uniform_policy
