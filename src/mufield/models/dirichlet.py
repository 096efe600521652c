r"""A model of unknown probabilities on nodes: Dirichlet counts.

Of a node and an action (s, a) the successors are counted; with pseudo-counts $a_j$ the posterior is
a Dirichlet distribution with the parameters $a_j + n_j$. Two things are asked of the data:

- **Alike.** Are the successors of (s, a), in the order of their list, distributed as those of the
  same action in other nodes? Then (s, a) has further pseudo-counts, shared as counted there; how
  many is chosen for each (s, a) by its marginal likelihood.
- **A dependence** on mu, on the mass of the own node, or on the hour:

$$P(s' = j \mid s, a, \mu, h) = \sum_i \varphi_i(\mu, h)\, Q_i(j \mid s, a), \qquad
\varphi_i \ge 0, \quad \sum_i \varphi_i = 1.$$

With $\varphi = \mu$ an agent meets another one, whose node i decides by which $Q_i$ it moves: all
motions that are linear in mu, such as epidemics. Own mass and hour have hat functions $\varphi_i$.
The most probable $Q_i$ are found by accelerated expectation maximisation; each has pseudo-counts
around the mean of all. The data are worth $1 / \varphi^\top A^{-1} \varphi$ observations at
$\varphi$, with
$A = A_0 + \sum_n \varphi_n \varphi_n^\top$ as in linear regression: a crowd that was never seen
stays uncertain. For each (s, a) by itself, means depend on mu where evidence shows it, deviations
as strongly as data allow: similar crowds tell nothing.
"""

import math
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arrays import Action, Key, Mass, Scalar, State, Step
from ..actions import MoveSet, nearest_move
from ..errors import UserError, number
from ..problem import Motion, Problem
from ..space.measure import MeanField
from ..space.nodes import Nodes
from . import mixtures
from .base import AbstractModel, AbstractModelFamily, Prediction
from .data import Transitions
from .mixtures import Candidate, Crowd, Evidence, Table


def _phi(on: str, knots: Float[Array, "features"], mass: Mass, here: Scalar, step: Step) -> Array:
    """What probabilities of one agent depend on; own mass and hour with hat functions at knots."""
    if on in ("mu", "nothing"):
        return mass if on == "mu" else knots
    value = here if on == "own mass" else jnp.asarray(step, knots.dtype)
    place = jnp.interp(value, knots, jnp.arange(len(knots), dtype=knots.dtype))
    return jnp.maximum(1.0 - jnp.abs(place - jnp.arange(len(knots))), 0.0)


def _of_agent(phi: Any, state: State, action: Action, mu: MeanField) -> Array:
    return jnp.asarray(phi(mu.mass, mu.here, mu.step))


class DirichletModel(AbstractModel):
    """A posterior; its credible set is ``mean +- beta * epistemic`` of each successor.

    Attributes:
        means: The probabilities Q of each group.
        covariance: The inverse of A of each group.
        on: What they depend on: ``"nothing"``, ``"mu"``, ``"own mass"`` or ``"hour"``.
        shown: Whether there is evidence for the dependence.
    """

    beta: Scalar | float
    means: Float[Array, "groups slots features"]
    covariance: Float[Array, "groups features features"]
    on: str = eqx.field(static=True)
    knots: Float[Array, "features"]
    shown: Bool[Array, ""]
    prior: Float[Array, "groups slots"]
    groups: Int[Array, "cells moves"]
    moves: Float[Array, "moves action_dim"]

    def parameters(self, state: State, action: Action, mu: MeanField) -> Float[Array, "slots"]:
        """The posterior's parameters for one agent: as many as observations, shared as the mean."""
        group = self._group(state, action, mu)
        phi = _phi(self.on, self.knots, mu.mass, mu.here, mu.step)
        return self.means[group] @ phi / (phi @ self.covariance[group] @ phi)

    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """Mean, and deviations of the probabilities and of what is observed of them."""
        alpha = self.parameters(state, action, mu)
        # Successors that were not seen yet are nearly impossible, but that is not certain.
        wide = alpha + self.prior[self._group(state, action, mu)]
        share = wide / jnp.sum(wide)
        noise = jnp.sqrt(share * (1.0 - share) + 1e-12)
        return Prediction(alpha / jnp.sum(alpha), noise / jnp.sqrt(jnp.sum(alpha) + 1.0), noise)

    @property
    def finding(self) -> str:
        """See `AbstractModel`."""
        return self.on if bool(self.shown) else ""

    def draw(self, key: Key) -> Motion:
        """Probabilities drawn from the posterior; those of a group are the same at every call."""

        def motion(state: State, action: Action, mu: MeanField) -> Float[Array, "slots"]:
            alpha, own = self.parameters(state, action, mu), self._group(state, action, mu)
            logs = jax.random.loggamma(jax.random.fold_in(key, own), jnp.where(alpha > 0, alpha, 1))
            return jax.nn.softmax(jnp.where(alpha > 0, logs, -jnp.inf))

        return motion

    def _group(self, state: State, action: Action, mu: MeanField) -> Array:
        nearest, _ = nearest_move(self.moves, jnp.atleast_1d(action))
        return self.groups[mu.grid.index_of(state), nearest]


class DirichletCounts(AbstractModelFamily):
    """Dirichlet counts for problems on `mufield.Nodes`; see the module.

    Attributes:
        prior: Pseudo-counts, shared evenly by the successors; in means a hundredth of them.
        beta: Half-width of the credible set, in deviations.
        groups: A number for each node and action; equal ones share counts. None: data decide.
        alike: Pseudo-counts, shared as in other nodes, that are tried for each node and action.
        spread: Pseudo-counts tried for each Q around their mean; deviations use at least 0.3.
        knots: Number of hat functions for the own mass and the hour.
        evidence: Gain in held-out log-probability that counts as showing a dependence.
        limit: The most agents that the population's mass counts as.
        steps: The most steps of a fit; a third of them where fits are compared.
        most: Numbers that a model may have; a dependence that needs more is not tried.
    """

    prior: float = 0.1
    beta: float = 2.0
    groups: Any = None
    alike: tuple[float, ...] = (0.0, 3.0, 30.0, 300.0)
    spread: tuple[float, ...] = (0.01, 0.3, 10.0)
    knots: int = 6
    evidence: float = 5.0
    limit: float = 1_000.0
    steps: int = 100
    most: int = 3_000_000

    def __check_init__(self) -> None:
        number(self.prior, "the prior's pseudo-counts", 1e-9)
        number(self.beta, "beta", 0.0)

    def fit(self, data: Transitions, key: Key) -> DirichletModel:
        """Counts the observed successors; see `AbstractModelFamily.fit`."""
        if data.of_reward:
            self.for_rewards()
        groups, pseudo = self._groups(data.problem)
        candidates = self._candidates(data, groups, pseudo)
        plain = next(each.evidence for each in candidates if each.on == "nothing")
        of_means, of_deviations = self._priors(plain, groups, pseudo)
        mean = mixtures.most_probable(plain, of_means[..., None], self.steps)
        settings = self.spread, self.evidence, self.steps
        best, of_group, of_deviation, shown = mixtures.selected(candidates, of_means, *settings)
        # Variances of successors that were not seen yet are small, but not zero.
        likely = (mean[..., 0] + pseudo) / (1.0 + pseudo.sum(axis=1, keepdims=True))
        known = best.evidence, of_deviations, likely, of_deviation
        dtype = data.problem.initial.dtype
        return DirichletModel(
            beta=jnp.asarray(self.beta, dtype),
            means=jnp.asarray(mixtures.mixture(best.evidence, mean, of_group, self.steps), dtype),
            covariance=jnp.asarray(mixtures.covariance(*known), dtype),
            on=best.on,
            knots=best.knots,
            prior=jnp.asarray(pseudo, dtype),
            shown=jnp.asarray(shown),
            groups=jnp.asarray(groups, jnp.int32),
            moves=cast(MoveSet, data.problem.actions).moves.astype(dtype),
        )

    def _priors(
        self, plain: Evidence, groups: Int[np.ndarray, "cells moves"], pseudo: Table
    ) -> tuple[Table, Table]:
        """Pseudo-counts of the means, and of the deviations; with those that other nodes give."""
        of_means = 0.01 * pseudo  # means follow the counts; deviations are what the prior is for
        if self.groups is not None:
            return of_means, of_means + pseudo
        of_each = plain.counts(of_means)[groups], of_means[groups]
        alike = _as_in_other_nodes(*of_each, self.alike).reshape(of_means.shape)
        # The fewest pseudo-counts that are tried guess a mean; they are no observations.
        fewest = 1.001 * min(filter(None, self.alike), default=0.0)
        observed = alike * (alike.sum(axis=1, keepdims=True) > fewest)
        return of_means + alike, of_means + pseudo + observed

    def _candidates(
        self, data: Transitions, groups: Int[np.ndarray, "cells moves"], pseudo: Table
    ) -> list[Candidate]:
        """What probabilities may depend on, as far as data vary and numbers are not too many."""
        here = data.mass[data.moment, data.problem.grid.index_of(data.states)]
        last, varies = int(data.step.max(initial=0)), bool(np.any(here != here[:1]))
        knots = {
            "mu": np.zeros(data.problem.grid.n_cells if varies else 0),
            "nothing": np.ones(1),
            "own mass": np.linspace(0.0, here.max(initial=0.0), self.knots if varies else 0),
            "hour": np.linspace(0.0, last, min(self.knots, last + 1) if last else 0),
        }
        seen, found = _observed(data, groups), []
        for on, at in knots.items():
            numbers = len(at) * (pseudo.size + len(pseudo) * len(at))
            if on == "nothing" or 0 < numbers <= self.most:
                phi = eqx.Partial(_phi, on, jnp.asarray(at, data.problem.initial.dtype))
                shares = data.map(eqx.Partial(_of_agent, phi))
                crowd = self._crowd(data, groups, phi, len(at))
                observed = Evidence(*seen, shares, data.moment, crowd)
                found.append(Candidate(on, phi.args[1], observed))
        return found

    def _crowd(
        self, data: Transitions, groups: Int[np.ndarray, "cells moves"], phi: Any, features: int
    ) -> Crowd | None:
        """The population's moves, of the last moments that are not more numbers than allowed."""
        seen, nodes = data.population, cast(Nodes, data.problem.grid)
        if seen is None or not len(seen.moment):
            return None
        from scipy.sparse import csr_matrix  # slow to import

        last = -max(1, self.most // (groups.size * features))
        joint, after, agents, moment, step = (each[last:] for each in jax.tree.leaves(seen))
        mass = joint.sum(axis=2)
        of_nodes = jax.vmap(jax.vmap(phi, (None, 0, None)), (0, 0, 0))
        shares = np.asarray(of_nodes(*(jnp.asarray(each) for each in (mass, mass, step))))
        followed = np.einsum("tsa,tsk->stak", joint, shares)
        every, listed = np.arange(nodes.n_cells), nodes.successors
        ends = np.tile(every, len(every)) if listed is None else listed.reshape(-1)
        there = np.flatnonzero(ends >= 0)
        reach = csr_matrix((np.ones(len(there)), (there, ends[there])), (len(ends), len(groups)))
        counted = (after * np.minimum(agents, self.limit)[:, None]).T
        return Crowd(followed, counted, reach, groups, moment)

    def check(self, problem: Problem) -> None:
        """Raises on grids, and for groups of another shape."""
        self._groups(problem)

    def for_rewards(self) -> Any:
        """Raises: rewards on nodes are not modelled."""
        raise UserError("a hidden reward cannot be learned on nodes yet; give the problem's reward")

    def _groups(self, problem: Problem) -> tuple[Int[np.ndarray, "cells moves"], Table]:
        """The group of each node and action, and the prior of each group."""
        nodes, actions = problem.grid, problem.actions
        if not isinstance(nodes, Nodes) or not isinstance(actions, MoveSet):
            raise UserError("DirichletCounts needs nodes, not a grid; take GaussianProcess()")
        shape = (nodes.n_cells, len(actions.moves))
        own = np.arange(math.prod(shape)).reshape(shape)
        given = own if self.groups is None else np.asarray(self.groups)
        if given.shape != shape or given.dtype.kind not in "iu":
            raise UserError(
                f"groups must be integers of the shape {shape}, got {given.dtype} {given.shape}"
            )
        groups = np.unique(given, return_inverse=True)[1].reshape(shape)
        listed = True if nodes.successors is None else (nodes.successors >= 0)[:, None]
        members = np.zeros((groups.max() + 1, nodes.target_size), dtype=bool)
        np.logical_or.at(members, groups, listed)
        return groups, self.prior * members / members.sum(axis=1, keepdims=True)


def _observed(data: Transitions, groups: Int[np.ndarray, "cells moves"]) -> tuple[Any, Any]:
    """The group of each move, and which successor it led to; raises if that is not listed."""
    nodes, actions = cast(Nodes, data.problem.grid), cast(MoveSet, data.problem.actions)
    start, end = nodes.index_of(data.states), nodes.index_of(data.next_states)
    group = groups[start, nearest_move(np.asarray(actions.moves), data.actions)[0]]
    if nodes.successors is None:
        return group, end
    same = nodes.successors[start] == end[:, None]
    if not same.any(axis=1).all():
        row = int(np.argmin(same.any(axis=1)))
        raise UserError(
            f"a move from {nodes.place(int(start[row]))} to {nodes.place(int(end[row]))} was "
            "observed, which is not among its successors; list it in the problem's nodes"
        )
    return group, np.argmax(same, axis=1)


def _as_in_other_nodes(
    counts: Float[np.ndarray, "cells moves slots"], prior: Any, tried: tuple[float, ...]
) -> Float[np.ndarray, "cells moves slots"]:
    """Pseudo-counts, shared as in other nodes: of the ``tried`` numbers of them the likeliest.

    That is by the own counts' probability (Dirichlet-multinomial) times the share of its users.
    """
    from scipy.special import gammaln  # slow to import

    numbers, shares = np.asarray(tried), cast(Any, np.ones(len(tried)))
    taken = np.full(counts.shape[:2], len(tried) - 1)
    for _ in range(4):
        mine = counts * (numbers[taken] > 0)[..., None]
        others = np.where(prior > 0, mine.sum(axis=0) - mine, 0.0)
        total = np.maximum(others.sum(axis=-1, keepdims=True), 1e-9)
        options = others * np.minimum(numbers[:, None, None, None] / total, 1.0)
        alpha = prior + options
        slots = gammaln(alpha + counts) - gammaln(np.where(alpha > 0, alpha, 1.0))
        score = np.sum(np.where(alpha > 0, slots, 0.0), axis=-1)
        score += gammaln(alpha.sum(axis=-1)) - gammaln((alpha + counts).sum(axis=-1))
        taken = np.argmax(score + np.log(shares)[:, None, None], axis=0)
        shares = np.bincount(taken[counts.any(axis=-1)], minlength=len(tried)) + 1.0
    return np.asarray(np.take_along_axis(options, taken[None, ..., None], axis=0)[0])
