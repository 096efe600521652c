"""Policies: what an agent does, seen from its own state and the population's distribution."""

import importlib
from typing import Any

import lazy_loader

_own_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__.append("read_info")


def __getattr__(name: str) -> Any:
    if name == "read_info":  # It belongs to files, in a layer above this one.
        return importlib.import_module("mufield.io.policies").read_info
    return _own_name(name)
