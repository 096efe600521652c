"""Fleets of vehicles: trips and passengers, city maps, demand from records, the fluid programme."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
