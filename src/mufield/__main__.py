"""``python -m mufield``: the command line, where its program is not on the path."""

import sys

from .cli import main

sys.exit(main())
