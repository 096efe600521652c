r"""Fits mixtures of distributions to the moves of agents, and to those of a whole population.

An agent of group g, a node and an action or several that are alike, goes on to successor j with the
probability $\sum_i \varphi_i Q_i(j \mid g)$; see `dirichlet`. Tracked agents say which it was. The
population's masses before and after a move say less, but of all nodes:

$$\mu'(s') = \sum_{s, a} \mu(s)\, \pi(a \mid s) \sum_i \varphi_i\, Q_i(s' \mid s, a).$$

They count as N agents of whom is known to which nodes they came, but not where from. The most
probable Q have the greatest posterior density given both; its slope is the expected number of
agents that followed each $Q_i$ to each successor, as in expectation maximisation. What stays
unknown is that of a linear regression with these observations: masses tell actions apart that were
mixed in other shares at other times, and others not.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

Table = Float[np.ndarray, "groups slots"]
Means = Float[np.ndarray, "groups slots 1"]
Parts = Float[np.ndarray, "groups slots features"]
Covariances = Float[np.ndarray, "groups features features"]


class Crowd(NamedTuple):
    """Moves of the population.

    Attributes:
        joint: Mass of each node that took each action and followed each Q.
        agents: How many agents came to each node.
        reach: Sparse; 1 where a successor, in the order of nodes and successors, is a node.
        groups: The group of each node and action.
        moment: When.
    """

    joint: Float[np.ndarray, "cells seen moves features"]
    agents: Float[np.ndarray, "cells seen"]
    reach: Any
    groups: Int[np.ndarray, "cells moves"]
    moment: Int[np.ndarray, "seen"]

    def expected(self, found: Parts) -> tuple[Parts, Float[np.ndarray, "seen"]]:
        """Expected numbers of agents that followed each Q, and log-probabilities by moment."""
        (cells, seen, moves, features), slots = self.joint.shape, found.shape[1]
        rows = self.joint.reshape(cells, seen, moves * features)
        table = found[self.groups].swapaxes(2, 3).reshape(cells, moves * features, slots)
        flows = (rows @ table).swapaxes(1, 2).reshape(cells * slots, seen)
        reached = np.maximum(self.reach.T @ flows, 1e-12)
        ratio = (self.reach @ (self.agents / reached)).reshape(cells, slots, seen)
        came = table * (rows.swapaxes(1, 2) @ ratio.swapaxes(1, 2))
        counts = np.zeros_like(found)
        by_move = came.reshape(*self.groups.shape, features, slots).swapaxes(2, 3)
        np.add.at(counts, self.groups, by_move)
        return counts, np.sum(self.agents * np.log(reached), axis=0)

    def shares(self, groups: int) -> Float[np.ndarray, "groups seen"]:
        """The share of the population in each group."""
        found = np.zeros((groups, len(self.moment)))
        np.add.at(found, self.groups, self.joint.sum(axis=3).swapaxes(1, 2))
        return found


class Evidence(NamedTuple):
    """What was seen: of tracked agents the group, the successor, phi and when; and the crowd."""

    group: Int[np.ndarray, "rows"]
    slot: Int[np.ndarray, "rows"]
    phi: Float[np.ndarray, "rows features"]
    moment: Int[np.ndarray, "rows"]
    crowd: Crowd | None

    def counts(self, like: Table) -> Table:
        """How often each successor of each group was observed."""
        found = np.zeros_like(like)
        np.add.at(found, (self.group, self.slot), 1.0)
        return found

    def half(self, odd: int) -> "Evidence":
        """What was seen at odd moments, or at even ones."""
        mine, crowd = self.moment % 2 == odd, self.crowd
        if crowd is not None:
            own = crowd.moment % 2 == odd
            crowd = crowd._replace(
                joint=crowd.joint[:, own], agents=crowd.agents[:, own], moment=crowd.moment[own]
            )
        return Evidence(self.group[mine], self.slot[mine], self.phi[mine], self.moment[mine], crowd)

    def expected(self, found: Parts) -> tuple[Parts, float]:
        """Expected numbers of agents that followed each Q, and the log-probability."""
        followed = self.phi * found[self.group, self.slot]
        chance = np.maximum(followed.sum(axis=1, keepdims=True), 1e-300)
        counts = np.zeros_like(found)
        np.add.at(counts, (self.group, self.slot), followed / chance)
        logs = float(np.sum(np.log(chance)))
        if self.crowd is None:
            return counts, logs
        others, moments = self.crowd.expected(found)
        return counts + others, logs + float(np.sum(moments))

    def score(self, found: Parts) -> Float[np.ndarray, "groups"]:
        """Log-probability by group, of the crowd's moves by their share of it."""
        score = np.zeros(len(found))
        chance = np.sum(self.phi * found[self.group, self.slot], axis=1)
        np.add.at(score, self.group, np.log(np.maximum(chance, 1e-12)))
        if self.crowd is not None:
            score += self.crowd.shares(len(found)) @ self.crowd.expected(found)[1]
        return score


def mixture(evidence: Evidence, mean: Means, spread: Any, steps: int) -> Parts:
    """The most probable Q with pseudo-counts ``spread`` around their mean."""
    found = np.repeat(mean, evidence.phi.shape[1], axis=-1)
    if found.shape[-1] == 1 or np.min(spread) >= 1e6:
        return found
    return most_probable(evidence, np.reshape(spread, (-1, 1, 1)) * found, steps)


def most_probable(evidence: Evidence, around: Parts, steps: int, enough: float = 0.1) -> Parts:
    """The Q of greatest posterior density with the pseudo-counts ``around``, found by SQUAREM.

    Varadhan and Roland, "Simple and globally convergent methods for accelerating the convergence
    of any EM algorithm" (2008). The density is log-concave, so that no start is a wrong one, and
    its slope bounds what is missing: it ends below ``enough``, or when the steps are used up.
    """

    def expected(found: Parts) -> tuple[Parts, float]:
        counts, logs = evidence.expected(found)
        every = np.log(np.where(around > 0, np.maximum(found, 1e-300), 1.0))
        return counts + around, logs + float(np.sum(around * every))

    def normal(found: Parts) -> Parts:
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    found = 0.9 * normal(around) + 0.1 * normal(1.0 * (around > 0))
    counts, density = expected(found)
    for _ in range(steps):
        slope = np.divide(counts, found, out=np.zeros_like(found), where=found > 0)
        if slope.max(axis=1).sum() - counts.sum() <= enough:
            break
        once = normal(counts)
        counts, least = expected(once)
        twice = normal(counts)
        step, bend = once - found, twice - 2.0 * once + found
        far = max(1.0, math.sqrt(np.sum(step**2) / max(np.sum(bend**2), 1e-300)))
        found = normal(np.maximum(found + 2.0 * far * step + far**2 * bend, 0.01 * twice))
        counts, density = expected(found)
        if density < least:
            found, (counts, density) = twice, expected(twice)
    return found


def covariance(evidence: Evidence, prior: Table, mean: Table, spread: Any) -> Covariances:
    """The inverse of A by group; a successor of mean probability p has p (1 - p) times it.

    A priori all Q of a group share an error, of variance 1 over the prior's pseudo-counts, and each
    has its own around their mean, of variance 1 over the pseudo-counts ``spread``.
    """
    features = evidence.phi.shape[1]
    apart = np.eye(features) - 1.0 / features
    before = 1.0 / prior.sum(axis=1)[:, None, None] + apart / np.maximum(spread, 0.3)[:, None, None]
    information = np.linalg.inv(before)
    np.add.at(information, evidence.group, evidence.phi[:, :, None] * evidence.phi[:, None])
    found = np.linalg.inv(information)
    if evidence.crowd is None:
        return found
    return _after_crowd(evidence.crowd, found, mean * (1.0 - mean))


def _after_crowd(crowd: Crowd, known: Covariances, variance: Table) -> Covariances:
    """Covariances once the crowd's moves are seen, too.

    The mass that came to a node is a sum of entries Q_i(node | s, a), weighted by the mass that
    took (s, a) and followed Q_i: a linear regression for each node, whose noise is that of counting
    ``crowd.agents``. It conditions the entries that lead there. A group has one covariance for all
    its successors: their mean, weighted by their ``variance``.
    """
    (_, seen, moves, features), followed = crowd.joint.shape, crowd.joint.swapaxes(1, 2)
    slots, agents = variance.shape[1], crowd.agents.sum(axis=0)
    total, weight = np.zeros_like(known), np.zeros(len(known))
    for node, column in enumerate(crowd.reach.T):
        before, slot = np.divmod(column.indices, slots)  # from where, and as which successor
        group = crowd.groups[before].reshape(-1)
        prior = variance[group, np.repeat(slot, moves)]
        share = crowd.agents[node] / agents
        noise = np.maximum(share * (1.0 - share), 1e-4) / agents  # seldom exactly none come
        weights = followed[before].reshape(-1, seen, features)
        after = _conditioned(weights, prior[:, None, None] * known[group], noise)
        np.add.at(total, group, prior[:, None, None] * after)
        np.add.at(weight, group, prior**2)
    return total / np.maximum(weight, 1e-300)[:, None, None]


def _conditioned(
    weights: Float[np.ndarray, "entries seen features"],
    known: Float[np.ndarray, "entries features features"],
    noise: Float[np.ndarray, "seen"],
) -> Float[np.ndarray, "entries features features"]:
    """Covariances of independent entries after weighted sums of all of them were seen with noise.

    The block of each entry of the joint covariance, as in a Kalman update.
    """
    entries, seen, features = weights.shape
    rows = weights.swapaxes(0, 1).reshape(seen, -1) / np.sqrt(noise)[:, None]
    # Of many moments, as many sums of them as there are numbers say the same.
    rest: Any = np.linalg.qr(rows, mode="r")
    weights = rest.reshape(-1, entries, features).swapaxes(0, 1)
    crossed = weights @ known  # covariance of the sums with each entry
    of_sums = np.einsum("esk,etk->st", crossed, weights, optimize=True) + np.eye(weights.shape[1])
    gain = np.linalg.solve(of_sums, crossed.swapaxes(0, 1).reshape(len(of_sums), -1))
    gain = gain.reshape(-1, entries, features).swapaxes(0, 1)
    return known - crossed.swapaxes(1, 2) @ gain


class Candidate(NamedTuple):
    """What probabilities may depend on, the knots of its hat functions, and the evidence."""

    on: str
    knots: Any
    evidence: Evidence


def selected(
    candidates: Sequence[Candidate],
    prior: Table,
    spreads: Sequence[float],
    needed: float,
    steps: int,
) -> tuple[Candidate, np.ndarray, np.ndarray, bool]:
    """The candidate that best predicts the moments that it was not fitted to.

    Also returns each group's pseudo-counts around the mean, for means and for deviations, and
    whether all data together are evidence of a dependence. ``prior`` are pseudo-counts of the mean;
    ``needed`` is the gain in held-out log-probability that counts as evidence.
    """
    plain = next(each.evidence for each in candidates if each.on == "nothing")
    tried = np.array([*sorted(spreads), 1e6])  # with the last, all Q are the same
    same = len(tried) - 1
    halves = [most_probable(plain.half(odd), prior[..., None], steps) for odd in (0, 1)]

    def held_out(evidence: Evidence) -> Float[np.ndarray, "spreads groups"]:
        """Log-probability by group of odd moments given the even ones, and reverse."""
        found = np.zeros((len(tried), len(prior)))
        for odd, mean in enumerate(halves):
            known, new = evidence.half(odd), evidence.half(1 - odd)
            fits = (mixture(known, mean, np.full(len(mean), each), steps // 3) for each in tried)
            found += [new.score(fit) for fit in fits]
        return found

    total = np.array([-np.inf])
    for place, each in enumerate(candidates):
        found = held_out(each.evidence)
        if found.sum(axis=1).max() > total.max() + needed * (place > 0):
            best, scores, total = each, found, found.sum(axis=1)
    # Means of a group depend on it where evidence shows it.
    shown = scores.max(axis=0) > scores[same] + needed
    of_means = np.where(shown, np.argmax(scores, axis=0), same)
    # Deviations depend on it as strongly as data allow: by the least spread that costs neither the
    # group nor all of them together more than the evidence.
    cost = np.maximum((total.max() - total)[:, None], scores.max(axis=0) - scores)
    of_deviations = np.argmax(cost <= np.maximum(needed, cost.min(axis=0)), axis=0)
    depends = bool(total.max() > total[same] + needed)
    return best, tried[of_means], tried[of_deviations], depends
