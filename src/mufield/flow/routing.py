"""Sums of chosen entries, by gathers in both directions.

Moving mass between cells is a sparse matrix of zeros and ones. Adding into the destination is
slow in compiled CPU code and so is the gradient of a gather; storing for each output which
inputs it sums, and for each input which outputs it reaches, makes both directions gathers.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class Routing(eqx.Module):
    """The linear map ``y[j] = sum of x[i] over the inputs i that lead to j``.

    Attributes:
        incoming: Inputs of each output, padded with the number of inputs.
        outgoing: Outputs of each input, padded with the number of outputs.
    """

    incoming: Int[Array, "outputs most_inputs"]
    outgoing: Int[Array, "inputs most_outputs"]

    @classmethod
    def build(
        cls,
        inputs: Int[np.ndarray, "links"],
        outputs: Int[np.ndarray, "links"],
        n_inputs: int,
        n_outputs: int,
    ) -> "Routing":
        """Builds the map from its links, each from one input to one output."""
        return cls(
            incoming=jnp.asarray(_lists(outputs, inputs, n_outputs, pad=n_inputs)),
            outgoing=jnp.asarray(_lists(inputs, outputs, n_inputs, pad=n_outputs)),
        )

    def __call__(self, values: Float[Array, "inputs *rest"]) -> Float[Array, "outputs *rest"]:
        """Sums the inputs of each output."""
        return _route(values, self.incoming, self.outgoing)


@jax.custom_vjp
def _route(values: Array, incoming: Array, outgoing: Array) -> Array:
    padded = jnp.concatenate([values, jnp.zeros_like(values[:1])])
    if incoming.shape[1] == 1:
        return padded[incoming[:, 0]]
    return jnp.sum(padded[incoming], axis=1)


def _route_forward(values: Array, incoming: Array, outgoing: Array) -> tuple[Array, Any]:
    return _route(values, incoming, outgoing), (incoming, outgoing)


def _route_backward(tables: Any, cotangent: Array) -> tuple[Array, None, None]:
    incoming, outgoing = tables
    return _route(cotangent, outgoing, incoming), None, None


_route.defvjp(_route_forward, _route_backward)


def _lists(
    owners: Int[np.ndarray, "links"],
    members: Int[np.ndarray, "links"],
    n_owners: int,
    pad: int,
) -> Int[np.ndarray, "owners most"]:
    order = np.argsort(owners, kind="stable")
    owners, members = owners[order], members[order]
    counts = np.bincount(owners, minlength=n_owners)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    table = np.full((n_owners, max(1, int(counts.max(initial=0)))), pad, dtype=np.int32)
    table[owners, np.arange(len(owners)) - first[owners]] = members
    return table
