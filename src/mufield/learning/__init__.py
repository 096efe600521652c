"""M3-UCRL: plan optimistically, act once, learn from it, repeat."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
