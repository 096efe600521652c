"""Policies: what an agent does, seen from its own state and the population's distribution."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
