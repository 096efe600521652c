"""Landing on nodes: the motion's probabilities of successors are the kernel itself."""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Mass
from ..space.nodes import Nodes
from .tables import Routing
from .windows import AbstractLanding, SourceMass, Std, WindowMass


class ToSuccessors(AbstractLanding):
    r"""Mass goes to the successors of nodes: $\mu'(j) = \sum_{k,m} J(k, m) P(j \mid k, m)$.

    A window is the list of a node's successors, or all nodes. Work and memory are linear in the
    number of entries of all windows.

    Attributes:
        arrival: From (node, successor) to the node that this is; None if windows are all nodes.
    """

    arrival: Routing | None
    reach: tuple[int, ...] = eqx.field(static=True)

    @property
    def window(self) -> tuple[int, ...]:
        """Number of successors."""
        return self.reach

    def __call__(
        self, joint: SourceMass, targets: Float[Array, "sources moves slots"], std: Std
    ) -> Mass:
        """See `AbstractLanding`; targets are probabilities."""
        return self.arrive(jnp.einsum("km,kme->ke", joint, targets))

    def kernel(self, targets: Float[Array, "sources slots"], std: Std) -> WindowMass:
        """See `AbstractLanding`; the probabilities themselves."""
        return targets

    def arrive(self, landed: WindowMass) -> Mass:
        """See `AbstractLanding`."""
        if self.arrival is None:
            return jnp.sum(landed, axis=0)
        return self.arrival(landed.reshape(-1))


@lru_cache(maxsize=32)
def build_successors(nodes: Nodes) -> ToSuccessors:
    """The landing of nodes."""
    with jax.ensure_compile_time_eval():
        arrival = None
        if nodes.successors is not None:
            arrival = Routing.to_ends(nodes.successors, nodes.n_cells)
        return ToSuccessors(arrival=arrival, reach=(nodes.slots,))
