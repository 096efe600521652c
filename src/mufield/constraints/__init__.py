"""Constraints on the population: functions c(mu) >= 0, and how plans and learners satisfy them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
