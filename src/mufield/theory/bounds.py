r"""The paper's bounds of distances and regret, and the constants that they are made of.

Powers of $\overline{L}$ overflow on long horizons, so all bounds are natural logarithms. Where
print and proof of the paper differ, the formulas are what the proofs give (docs/theory.md).

Three arguments recur. ``beta`` is the scale of a confidence band that holds both the true and the
imagined motion, the largest of all episodes. ``deviations`` has one entry for each step: the
model's standard deviation averaged over the population,
$\int \|\sigma(s, \pi_h(s), \mu_h)\| \mu_h(ds)$.
``paid`` is the number of distributions that earn a reward, the paper's H.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from ..errors import UserError

Log = float
"""Natural logarithm of a bound; minus infinity for a bound of zero."""

Source = Literal["given", "bound", "estimate"]
"""``"given"`` by the user; ``"bound"``, which the true constant cannot exceed; ``"estimate"``, the
largest value that was seen, which the true constant can only exceed."""

SYMBOLS = {
    "motion": "L_f",
    "spread": "L_sigma",
    "policy": "L_pi",
    "reward": "L_r",
    "stretch": "kappa",
    "norm": "B_f",
}


@dataclass(frozen=True)
class Constant:
    """A value and its source: what is computed from an estimate is not proven."""

    value: float
    source: Source
    note: str = ""

    def __post_init__(self) -> None:
        if not self.value >= 0:
            raise UserError(f"a constant must be 0 or more, got {self.value}")


@dataclass(frozen=True)
class Constants:
    r"""All constants of Sec. 5.

    Attributes:
        motion: $L_f$ of assumption LipschitzDynamics.
        spread: $L_\sigma$ of assumption LipschitzModelStd.
        policy: $L_\pi$ of assumption LipschitzPolicyAndReward. For a randomised policy it is the
            Lipschitz constant of the action's law in W1; the proofs then hold as they stand.
        reward: $L_r$ of the same assumption.
        stretch: $\kappa$, by how much rounding to cells can increase the distance of two agents
            (`constants.grid_stretch`). It is 1 in the paper, which has no grid.
        norm: $B_f$ of assumption RKHS, for the scaled displacement; None if there is no kernel.
    """

    motion: Constant
    spread: Constant
    policy: Constant
    reward: Constant
    stretch: Constant
    norm: Constant | None = None

    @property
    def estimated(self) -> list[str]:
        """Names of the constants that are only estimates; B_f enters through beta alone."""
        names = [each.name for each in fields(self) if each.name != "norm"]
        return [name for name in names if getattr(self, name).source == "estimate"]

    def step_growth(self, beta: float) -> float:
        r"""Growth of W1 in a step: $2 \kappa (1 + L_\pi) (L_f + 2 \beta L_\sigma)$."""
        kappa, pi = self.stretch.value, self.policy.value
        return kappa * 2 * (1 + pi) * (self.motion.value + 2 * beta * self.spread.value)

    def growth(self, beta: float) -> float:
        r"""$\overline{L}$ of theorem main: the paper adds one, so that its powers never fall."""
        return 1 + self.step_growth(beta)


def given_constants(given: Mapping[str, Any]) -> dict[str, Constant]:
    """Reads a user's constants, called by name (``motion``) or by symbol (``L_f``)."""
    names = {symbol: name for name, symbol in SYMBOLS.items()} | {n: n for n in SYMBOLS}
    found = {}
    for key, value in given.items():
        if key not in names:
            known = ", ".join(f"{name} ({symbol})" for name, symbol in SYMBOLS.items())
            raise UserError(f"there is no constant {key!r}; there are {known}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"the constant {key} must be a number, got {value!r}")
        found[names[key]] = Constant(float(value), "given")
    return found


def flow_bound(
    constants: Constants, beta: float, deviations: Float[np.ndarray, "steps"]
) -> Float[np.ndarray, "moments"]:
    r"""Lemma MFFlowW1Bound: how far apart the imagined and the realised flow can be.

    Returns logarithms of bounds of $W_1(\tilde\mu_h, \mu_h)$ for h = 0, ..., H: the recursion in
    the lemma's proof, which is sharper than its statement
    $2 \kappa \beta \, \overline{L}^{h-1} \sum_{i<h} \text{deviations}_i$.
    """
    source = log(2 * constants.stretch.value * beta) + logs(deviations)
    growth = log(constants.step_growth(beta))
    bounds = [-math.inf]
    for each in source:
        carried = growth + bounds[-1] if bounds[-1] > -math.inf else -math.inf
        bounds.append(float(np.logaddexp(carried, each)))
    return np.asarray(bounds)


def gap_bound(constants: Constants, distances: Float[np.ndarray, "moments"]) -> Log:
    r"""Lemma regretOptBound: by how much a plan can overestimate J, from the flows' distances.

    $$r_t \le \tilde J(\pi_t, \tilde f) - J(\pi_t) \le 2 L_r (1 + L_\pi) \sum_h
    W_1(\tilde\mu_h, \mu_h)$$

    ``distances`` are logarithms of the distances, or of bounds of them, at the paid moments.
    """
    factor = 2 * constants.reward.value * (1 + constants.policy.value)
    return log(factor) + float(np.logaddexp.reduce(distances))


def episode_bound(
    constants: Constants, beta: float, deviations: Float[np.ndarray, "steps"], paid: int
) -> Log:
    r"""Lemma episodeRegretSquareBound: the regret of one episode, from the deviations along it.

    $$r_t \le 4 \kappa \beta L_r (1 + L_\pi) \overline{L}^{H-1} H \sum_h \int \|\sigma\| d\mu_h$$
    """
    return _prefix(constants, beta, paid) + math.log(paid) + log(float(np.sum(deviations)))


def regret_bound(
    constants: Constants, beta: float, complexity: Log, episodes: int, paid: int
) -> Log:
    r"""Theorem main, with the constant that its proof gives.

    $$R_T \le 4 \kappa \beta_{T-1} L_r (1 + L_\pi) \overline{L}_{T-1}^{H-1} \sqrt{H^3 T I_T}$$

    ``complexity`` is the logarithm of $I_T$, or of an upper bound of it; ``episodes`` is T. With
    $C \gamma$ for $I_T$ (`information.log_stale_factor`) this is theorem GPRegretBound.
    """
    inside = 3 * math.log(paid) + math.log(episodes) + complexity
    return _prefix(constants, beta, paid) + 0.5 * inside


def log(value: float) -> Log:
    """The logarithm, minus infinity at zero."""
    return math.log(value) if value > 0 else -math.inf


def logs(values: Float[np.ndarray, "entries"]) -> Float[np.ndarray, "entries"]:
    """Logarithms, minus infinity at zeros."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.asarray(values, dtype=float)))


def _prefix(constants: Constants, beta: float, paid: int) -> Log:
    factor = 4 * constants.stretch.value * beta * constants.reward.value
    powers = (paid - 1) * log(constants.growth(beta)) if paid > 1 else 0.0
    return log(factor * (1 + constants.policy.value)) + powers
