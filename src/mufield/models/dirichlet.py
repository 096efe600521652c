r"""A model of unknown probabilities on nodes: Dirichlet counts.

Of a node and an action the observed successors are counted. With pseudo-counts $a_j$ of the prior
the posterior of the probabilities is a Dirichlet distribution with the parameters

$$\alpha_j(\mu, h) = a_j + b\, m_j + \sum_i K\big((\mu, h), (\mu_i, h_i)\big)\, 1[s'_i = j],$$

where i runs over the observed moves from this node with this action. The weights K are 1 if the
motion seems to depend neither on mu nor on the hour; otherwise moves count less that were observed
in other crowds or at other hours, $K = e^{-d^2 / 2 w^2}$, and b further pseudo-counts are shared as
in the mean m over all crowds and hours, which is what is known of those that were not observed. The
widths w are chosen by how well moves that are left out are predicted.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._types import Action, Key, Scalar, State
from ..actions import MoveSet
from ..checks import number
from ..errors import UserError
from ..problem import Motion, Problem
from ..space.measure import MeanField
from ..space.nodes import Nodes
from .base import AbstractModel, AbstractModelFamily, Prediction
from .data import Transitions

Counts = Float[np.ndarray, "moments groups slots"]


class DirichletModel(AbstractModel):
    """Posterior counts; a credible set is ``mean +- beta * epistemic`` of each successor.

    Attributes:
        beta: See `AbstractModel`.
        prior: Pseudo-counts of each group's successors; zero where there is none.
        counts: Observed successors of each moment and group; all moments are one if nothing
            depends on mu or the hour.
        mass: The population at each moment.
        hour: The step of each moment.
        width: Widths of the weights: in total variation of mu, and in steps; infinite for no
            dependence.
        groups: The group of each node and action.
        moves: The actions.
    """

    beta: Scalar | float
    prior: Float[Array, "groups slots"]
    counts: Float[Array, "moments groups slots"]
    mass: Float[Array, "moments cells"]
    hour: Float[Array, "moments"]
    groups: Int[Array, "cells moves"]
    moves: Float[Array, "moves action_dim"]
    width: tuple[float, float] = eqx.field(static=True)

    def parameters(self, state: State, action: Action, mu: MeanField) -> Float[Array, "slots"]:
        """The posterior's parameters alpha for one agent."""
        group = self._group(state, action, mu)
        return self.prior[group] + self._weights(mu) @ self.counts[:, group]

    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """Mean, and deviations of the probabilities and of what is observed of them."""
        alpha = self.parameters(state, action, mu)
        total = jnp.sum(alpha)
        mean = alpha / total
        noise = jnp.sqrt(mean * (1.0 - mean) + 1e-30)
        return Prediction(mean, noise / jnp.sqrt(total + 1.0), noise)

    def draw(self, key: Key) -> Motion:
        """Probabilities drawn from the posterior; those of a group are the same at every call."""

        def motion(state: State, action: Action, mu: MeanField) -> Float[Array, "slots"]:
            alpha = self.parameters(state, action, mu)
            there, own = alpha > 0, jax.random.fold_in(key, self._group(state, action, mu))
            logs = jax.random.loggamma(own, jnp.where(there, alpha, 1.0))
            return jax.nn.softmax(jnp.where(there, logs, -jnp.inf))

        return motion

    def _group(self, state: State, action: Action, mu: MeanField) -> Array:
        apart = jnp.sum((self.moves - jnp.atleast_1d(action)) ** 2, axis=-1)
        return self.groups[mu.grid.index_of(state), jnp.argmin(apart)]

    def _weights(self, mu: MeanField) -> Float[Array, "moments"]:
        logs = jnp.zeros(len(self.hour), dtype=self.counts.dtype)
        if math.isfinite(self.width[0]):
            apart = 0.5 * jnp.sum(jnp.abs(self.mass - mu.mass), axis=1)
            logs = logs - 0.5 * (apart / self.width[0]) ** 2
        if math.isfinite(self.width[1]):
            logs = logs - 0.5 * ((self.hour - mu.step) / self.width[1]) ** 2
        return jnp.exp(logs)


class DirichletCounts(AbstractModelFamily):
    """Dirichlet counts for problems on `mufield.Nodes`; see the module.

    Attributes:
        prior: Pseudo-counts of each node and action, shared evenly by its successors.
        beta: Half-width of the credible set, in deviations.
        groups: One number for each node and action; pairs with equal numbers are alike: their
            successors, in the order of their lists, have the same probabilities. By default all
            differ.
        mu_widths: Widths in total variation that are tried for a dependence on mu.
        hour_widths: Widths that are tried for a dependence on the hour, as shares of the horizon.
        evidence: By how much the logarithm of the probability of the observed moves must rise for
            a dependence to be believed.
        borrowed: The pseudo-counts b where there is a dependence.
        most: Numbers that counts by moment may have; if there were more, none is tried.
    """

    prior: float = 0.1
    beta: float = 2.0
    groups: Any = None
    mu_widths: tuple[float, ...] = (0.3, 0.1, 0.03)
    hour_widths: tuple[float, ...] = (0.3, 0.1)
    evidence: float = 5.0
    borrowed: float = 2.0
    most: int = 20_000_000

    def __check_init__(self) -> None:
        number(self.prior, "the prior's pseudo-counts", 1e-9)
        number(self.beta, "beta", 0.0)

    def fit(self, data: Transitions, key: Key) -> DirichletModel:
        """Counts the observed successors; see `AbstractModelFamily.fit`."""
        if data.of_reward:
            return self.for_rewards()  # type: ignore[return-value]
        problem, dtype = data.problem, data.problem.initial.dtype
        groups, prior = self._groups(problem)
        slots, group = observed_slots(data), _group_of(data, groups)
        moments, row_moment = np.unique(data.moment, return_inverse=True)
        hour = np.zeros(len(moments))
        hour[row_moment] = data.step
        mass = data.mass[moments]
        counts = np.zeros((len(moments), *prior.shape))
        width = (math.inf, math.inf)
        if counts.size <= self.most:
            np.add.at(counts, (row_moment, group, slots), 1.0)
            width = self._widths(counts, prior, mass, hour, (row_moment, group, slots), problem)
        if any(map(math.isfinite, width)):
            every = prior + counts.sum(axis=0)
            prior = prior + self.borrowed * every / every.sum(axis=1, keepdims=True)
        else:
            counts = np.zeros((1, *prior.shape))
            np.add.at(counts[0], (group, slots), 1.0)
            mass, hour = np.zeros((1, problem.grid.n_cells)), np.zeros(1)
        assert isinstance(problem.actions, MoveSet)
        return DirichletModel(
            beta=jnp.asarray(self.beta, dtype),
            prior=jnp.asarray(prior, dtype),
            counts=jnp.asarray(counts, dtype),
            mass=jnp.asarray(mass, dtype),
            hour=jnp.asarray(hour, dtype),
            groups=jnp.asarray(groups, jnp.int32),
            moves=problem.actions.moves.astype(dtype),
            width=width,
        )

    def check(self, problem: Problem) -> None:
        """Raises on grids, and for groups of another shape."""
        self._groups(problem)

    def for_rewards(self) -> AbstractModelFamily:
        """Raises: rewards on nodes are not modelled."""
        raise UserError("a hidden reward cannot be learned on nodes yet; give the problem's reward")

    def _groups(
        self, problem: Problem
    ) -> tuple[Int[np.ndarray, "cells moves"], Float[np.ndarray, "groups slots"]]:
        """The group of each node and action, and the prior of each group."""
        nodes, actions = problem.grid, problem.actions
        if not isinstance(nodes, Nodes) or not isinstance(actions, MoveSet):
            raise UserError(
                "DirichletCounts models probabilities on nodes, and the problem has a grid; take "
                "GaussianProcess() or DeepEnsemble()"
            )
        shape = (nodes.n_cells, len(actions.moves))
        groups = np.arange(math.prod(shape)).reshape(shape)
        if self.groups is not None:
            given = np.asarray(self.groups)
            if given.shape != shape or given.dtype.kind not in "iu":
                raise UserError(
                    f"groups must be whole numbers of the shape {shape}, nodes by actions, got "
                    f"{given.dtype} of the shape {given.shape}"
                )
            groups = np.unique(given, return_inverse=True)[1].reshape(shape)
        exists = np.ones((nodes.n_cells, nodes.slots), dtype=bool)
        if nodes.successors is not None:
            exists = nodes.successors >= 0
        members = np.zeros((groups.max() + 1, nodes.slots), dtype=bool)
        np.logical_or.at(members, groups, exists[:, None])
        return groups, self.prior * members / members.sum(axis=1, keepdims=True)

    def _widths(
        self, counts: Counts, prior: Any, mass: Any, hour: Any, rows: Any, problem: Problem
    ) -> tuple[float, float]:
        """The widths under which moves that are left out have the greatest probability."""
        none, (moment, group, slot) = (math.inf, math.inf), rows
        if len(slot) == 0:
            return none
        apart = 0.5 * np.abs(mass[:, None] - mass).sum(axis=-1)
        late = np.abs(hour[:, None] - hour)
        flat = counts.reshape(len(counts), -1)
        observed = np.eye(prior.shape[1])[slot]
        others = (prior + counts.sum(axis=0))[group] - observed

        def score(width: tuple[float, float]) -> float:
            weights = np.exp(-0.5 * (apart / width[0]) ** 2 - 0.5 * (late / width[1]) ** 2)
            alpha = (weights @ flat).reshape(counts.shape) + prior
            own = alpha[moment, group] - observed
            if width != none:
                own = own + self.borrowed * others / others.sum(axis=1, keepdims=True)
            chance = own[np.arange(len(slot)), slot] / own.sum(axis=-1)
            return float(np.sum(np.log(np.maximum(chance, 1e-12))))

        tried = [(width, math.inf) for width in self.mu_widths]
        tried += [(math.inf, width * problem.horizon) for width in self.hour_widths]
        scores = {width: score(width) for width in tried}
        best = max(scores, key=lambda width: scores[width])
        return best if scores[best] > score(none) + self.evidence else none


def observed_slots(data: Transitions) -> Any:
    """Which of its node's successors each observed move led to; raises if it is none of them."""
    nodes = data.problem.grid
    assert isinstance(nodes, Nodes)
    start, end = nodes.index_of(data.states), nodes.index_of(data.next_states)
    if nodes.successors is None:
        return np.asarray(end)
    same = nodes.successors[start] == end[:, None]
    if not same.any(axis=1).all():
        row = int(np.argmin(same.any(axis=1)))
        raise UserError(
            f"a move from {nodes.place(int(start[row]))} to {nodes.place(int(end[row]))} was "
            "observed, which is not among its successors; list it in the problem's nodes"
        )
    return np.argmax(same, axis=1)


def _group_of(data: Transitions, groups: Int[np.ndarray, "cells moves"]) -> Any:
    """The group of each observed move."""
    assert isinstance(data.problem.actions, MoveSet)
    moves = np.asarray(data.problem.actions.moves)
    apart = np.sum((data.actions[:, None] - moves) ** 2, axis=-1)
    return groups[data.problem.grid.index_of(data.states), np.argmin(apart, axis=1)]
