r"""A model of unknown probabilities on nodes: Dirichlet counts.

Of a node and an action (s, a) the observed successors are counted. With the pseudo-counts
$a_j$ of the prior, the posterior of the probabilities is a Dirichlet distribution with the
parameters $a_j + n_j$. Two things are asked of the data, and believed where evidence is for them:

- **Alike.** Are the successors of (s, a), in the order of their list, distributed as those of the
  same action in other nodes? Then the prior of (s, a) has further pseudo-counts, shared as counted
  there; how many is chosen for each (s, a) by its marginal likelihood.
- **A dependence** on mu, on the mass of the own node, or on the hour:

$$P(s' = j \mid s, a, \mu, h) = \sum_i \varphi_i(\mu, h)\, Q_i(j \mid s, a), \qquad
\varphi_i \ge 0, \quad \sum_i \varphi_i = 1.$$

With $\varphi = \mu$ an agent meets another one, whose node i decides by which $Q_i$ it moves: all
motions that are linear in mu, such as epidemics. Own mass and hour have hat functions $\varphi_i$
around evenly spaced knots. The $Q_i$ are the most probable ones, found by expectation maximisation,
where each has pseudo-counts that are shared as in the mean over all crowds and hours. What was
observed is worth as many observations at $\varphi$ as in linear regression,
$1 / \varphi^\top A^{-1} \varphi$ with $A = A_0 + \sum_n \varphi_n \varphi_n^\top$, so that a crowd
that was never seen stays uncertain. A dependence on the own mass or the hour needs evidence; one on
mu is believed until there is evidence against it, because crowds that hardly differ tell nothing.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._types import Action, Key, Scalar, State
from ..actions import MoveSet
from ..checks import number
from ..errors import UserError
from ..problem import Motion, Problem
from ..space.measure import MeanField
from ..space.nodes import Nodes
from .base import AbstractModel, AbstractModelFamily, Prediction
from .data import Transitions

Table = Float[np.ndarray, "groups slots"]


class Dependence(eqx.Module):
    """What probabilities depend on besides node and action; calling it gives the phi of one agent.

    Attributes:
        on: ``"nothing"``, ``"mu"``, ``"own mass"`` or ``"hour"``.
        knots: Where the hat functions of an own mass or an hour have their tops.
    """

    on: str = eqx.field(static=True)
    knots: Float[Array, "features"]

    def __call__(self, state: State, action: Action, mu: MeanField) -> Float[Array, "features"]:
        """Weights that are not negative and sum to one."""
        if self.on == "mu":
            return mu.mass
        if self.on == "nothing":
            return jnp.ones_like(self.knots)
        value = mu.here if self.on == "own mass" else jnp.asarray(mu.step, self.knots.dtype)
        place = (value - self.knots[0]) / (self.knots[1] - self.knots[0])
        place = jnp.clip(place, 0.0, len(self.knots) - 1.0)
        return jnp.maximum(1.0 - jnp.abs(place - jnp.arange(len(self.knots))), 0.0)


class DirichletModel(AbstractModel):
    """A posterior; its credible set is ``mean +- beta * epistemic`` of each successor.

    Attributes:
        beta: See `AbstractModel`.
        means: The probabilities Q of each group.
        covariance: The inverse of A of each group.
        dependence: The phi.
        shown: Whether there is evidence for the dependence.
        groups: The group of each node and action.
        moves: The actions.
    """

    beta: Scalar | float
    means: Float[Array, "groups slots features"]
    covariance: Float[Array, "groups features features"]
    dependence: Dependence
    shown: Bool[Array, ""]
    groups: Int[Array, "cells moves"]
    moves: Float[Array, "moves action_dim"]

    def parameters(self, state: State, action: Action, mu: MeanField) -> Float[Array, "slots"]:
        """The posterior's parameters for one agent: as many as observations, shared as the mean."""
        group, phi = self._group(state, action, mu), self.dependence(state, action, mu)
        return self.means[group] @ phi / (phi @ self.covariance[group] @ phi)

    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """Mean, and deviations of the probabilities and of what is observed of them."""
        alpha = self.parameters(state, action, mu)
        total = jnp.sum(alpha)
        mean = alpha / total
        noise = jnp.sqrt(mean * (1.0 - mean) + 1e-12)
        return Prediction(mean, noise / jnp.sqrt(total + 1.0), noise)

    @property
    def finding(self) -> str:
        """See `AbstractModel`."""
        return self.dependence.on if bool(self.shown) else ""

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


class DirichletCounts(AbstractModelFamily):
    """Dirichlet counts for problems on `mufield.Nodes`; see the module.

    Attributes:
        prior: Pseudo-counts of each node and action, shared evenly by its successors.
        beta: Half-width of the credible set, in deviations.
        groups: One number for each node and action; pairs with equal numbers are alike: their
            successors, in the order of their lists, have the same probabilities. By default the
            data decide.
        alike: Pseudo-counts, shared as in other nodes, that are tried for each node and action.
        spread: Pseudo-counts of each Q around the mean over all crowds and hours that are tried.
        knots: Number of hat functions for the own mass and the hour.
        evidence: By how much the logarithm of the probability of moves that are left out must rise
            for a dependence to be believed, or fall for one on mu to be given up.
        most: Numbers that a model may have; a dependence that needs more is not tried.
    """

    prior: float = 0.1
    beta: float = 2.0
    groups: Any = None
    alike: tuple[float, ...] = (0.0, 3.0, 30.0)
    spread: tuple[float, ...] = (0.3, 10.0)
    knots: int = 6
    evidence: float = 5.0
    most: int = 10_000_000

    def __check_init__(self) -> None:
        number(self.prior, "the prior's pseudo-counts", 1e-9)
        number(self.beta, "beta", 0.0)

    def fit(self, data: Transitions, key: Key) -> DirichletModel:
        """Counts the observed successors; see `AbstractModelFamily.fit`."""
        if data.of_reward:
            return self.for_rewards()  # type: ignore[return-value]
        problem, dtype = data.problem, data.problem.initial.dtype
        groups, prior = self._groups(problem)
        group, slot = _group_of(data, groups), observed_slots(data)
        if self.groups is None:
            prior = prior + _as_in_other_nodes(
                _counts(prior, group, slot), prior, groups, self.alike
            )
        chosen, spread = Dependence("nothing", jnp.ones(1, dtype)), math.inf
        phi = np.ones((len(data), 1))
        plain = best = _held_out(prior, group, slot, phi, spread, data.moment)
        for dependence in self._tried(data, prior):
            found = data.map(dependence)
            scores = {
                tried: _held_out(prior, group, slot, found, tried, data.moment)
                for tried in self.spread
            }
            tried = max(scores, key=lambda tried: scores[tried])
            # Crowds that hardly differ say nothing for or against a dependence on mu.
            needed = -self.evidence if dependence.on == "mu" else self.evidence
            if scores[tried] > best + needed:
                best = max(best, scores[tried])
                chosen, spread, phi = dependence, tried, found
        assert isinstance(problem.actions, MoveSet)
        return DirichletModel(
            beta=jnp.asarray(self.beta, dtype),
            means=jnp.asarray(_most_probable(prior, group, slot, phi, spread), dtype),
            covariance=jnp.asarray(_covariance(prior, group, phi, spread), dtype),
            dependence=chosen,
            shown=jnp.asarray(chosen.on != "nothing" and best > plain + self.evidence),
            groups=jnp.asarray(groups, jnp.int32),
            moves=problem.actions.moves.astype(dtype),
        )

    def _tried(self, data: Transitions, prior: Table) -> list[Dependence]:
        """The dependences that the data could show."""
        if not len(data):
            return []
        problem, dtype = data.problem, data.problem.initial.dtype
        here = data.mass[data.moment, problem.grid.index_of(data.states)]
        hours = min(self.knots, int(data.step.max()) + 1)
        found = {
            "mu": np.zeros(problem.grid.n_cells),
            "own mass": np.linspace(0.0, here.max(), self.knots),
            "hour": np.linspace(0.0, data.step.max(), hours),
        }
        varies = {"mu": np.ptp(here), "own mass": np.ptp(here), "hour": np.ptp(data.step)}
        return [
            Dependence(on, jnp.asarray(knots, dtype))
            for on, knots in found.items()
            if varies[on] > 0 and len(knots) * (prior.size + len(prior) * len(knots)) <= self.most
        ]

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


def _counts(like: Table, group: Any, slot: Any) -> Table:
    """How often each successor of each group was observed."""
    found = np.zeros_like(like)
    np.add.at(found, (group, slot), 1.0)
    return found


def _as_in_other_nodes(
    counts: Table, prior: Table, groups: Int[np.ndarray, "cells moves"], tried: tuple[float, ...]
) -> Table:
    """Pseudo-counts for each group, shared as counted in the groups that are alike.

    Each group takes one of the ``tried`` numbers of pseudo-counts, that under which its own counts
    have the greatest probability (Dirichlet-multinomial) times the share of groups that take it.
    """
    from scipy.special import gammaln  # slow to import

    action = np.zeros(len(counts), dtype=int)
    action[groups] = np.arange(groups.shape[1])
    numbers, shares = np.asarray(tried), np.full(len(tried), 1.0 / len(tried))
    taken = np.full(len(counts), len(tried) - 1)
    observed = counts.sum(axis=1) > 0
    for _ in range(4):
        pooled = np.zeros((groups.shape[1], counts.shape[1]))
        np.add.at(pooled, action, counts * (numbers[taken] > 0)[:, None])
        others = pooled[action] - counts * (numbers[taken] > 0)[:, None]
        others = np.where(prior > 0, others, 0.0)
        total = others.sum(axis=1, keepdims=True)
        options = np.minimum(numbers[:, None, None], total) * others / np.maximum(total, 1e-300)
        alpha = prior + options
        slots = gammaln(alpha + counts) - gammaln(np.where(alpha > 0, alpha, 1.0))
        score = np.sum(np.where(alpha > 0, slots, 0.0), axis=-1)
        score += gammaln(alpha.sum(axis=-1)) - gammaln((alpha + counts).sum(axis=-1))
        taken = np.argmax(score + np.log(shares)[:, None], axis=0)
        kinds = np.bincount(taken[observed], minlength=len(tried)) + 1.0
        shares = kinds / kinds.sum()
    return np.asarray(options[taken, np.arange(len(counts))])


def _most_probable(
    prior: Table, group: Any, slot: Any, phi: Any, spread: float, sweeps: int = 100
) -> Float[np.ndarray, "groups slots features"]:
    """The most probable Q, by expectation maximisation over which of them each move followed."""
    mean = prior + _counts(prior, group, slot)
    mean /= mean.sum(axis=1, keepdims=True)
    found = np.repeat(mean[..., None], phi.shape[1], axis=-1)
    if phi.shape[1] == 1:
        return found
    for _ in range(sweeps):
        followed = phi * found[group, slot]
        followed /= followed.sum(axis=1, keepdims=True)
        found = np.repeat(spread * mean[..., None], phi.shape[1], axis=-1)
        np.add.at(found, (group, slot), followed)
        found /= found.sum(axis=1, keepdims=True)
    return found


def _covariance(
    prior: Table, group: Any, phi: Any, spread: float
) -> Float[np.ndarray, "groups features features"]:
    """The inverse of A: a priori Q are uncertain together, by the prior, and each by ``spread``."""
    features = phi.shape[1]
    before = 1.0 / prior.sum(axis=1)[:, None, None] + np.eye(features) / spread
    information = np.linalg.inv(before)
    np.add.at(information, group, phi[:, :, None] * phi[:, None])
    return np.linalg.inv(information)


def _held_out(prior: Table, group: Any, slot: Any, phi: Any, spread: float, moment: Any) -> float:
    """Log-probability of moves at even moments given those at odd ones, and vice versa."""
    score = 0.0
    for half in range(2):
        out = moment % 2 == half
        fitted = _most_probable(prior, group[~out], slot[~out], phi[~out], spread)
        chance = np.sum(phi[out] * fitted[group[out], slot[out]], axis=1)
        score += float(np.sum(np.log(np.maximum(chance, 1e-12))))
    return score


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
