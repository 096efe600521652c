"""Games: agents who each maximise their own reward, and tolls that make them do what is best."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
