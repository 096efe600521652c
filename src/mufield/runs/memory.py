"""A planner's memory as named arrays, and back."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten_with_path, tree_map_with_path

from .._files import unusable
from ..policies.document import leaf_name

PREFIX = "memory."


def tree_arrays(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree by the paths to them."""
    leaves = tree_flatten_with_path(eqx.filter(tree, eqx.is_array))[0]
    return {PREFIX + leaf_name(path): np.asarray(leaf) for path, leaf in leaves}


def fill_tree(template: Any, arrays: dict[str, np.ndarray], path: Path) -> Any:
    """The template with stored arrays in the places of its own, or of their shapes.

    Args:
        template: A tree of the same structure; shapes and number formats are compared.
        arrays: What `tree_arrays` gave, perhaps among others.
        path: The file that they came from, for errors.
    """
    stored = {name: array for name, array in arrays.items() if name.startswith(PREFIX)}

    def one(place: Any, leaf: Any) -> Any:
        name = PREFIX + leaf_name(place)
        if name not in stored:
            raise unusable(path, f"it lacks {name}")
        array = stored.pop(name)
        if (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            raise unusable(
                path,
                f"{name} should be {leaf.dtype} of the shape {leaf.shape}, but is {array.dtype} "
                f"of the shape {array.shape}",
            )
        return jnp.asarray(array)

    slots, rest = eqx.partition(template, _is_slot)
    filled = eqx.combine(tree_map_with_path(one, slots), rest)
    if stored:
        raise unusable(path, f"it holds {next(iter(stored))}, which this planner does not know")
    return filled


def _is_slot(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
