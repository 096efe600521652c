"""mufield: policies for very large populations whose law of motion is unknown.

The public names stand in ``__init__.pyi``. They are loaded when they are first used, so that
``import mufield`` and the command line's help are fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.2.0"
