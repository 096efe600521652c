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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from mufield.errors import UserError, number

Log = float
"""Natural logarithm of a bound; minus infinity for a bound of zero."""

SYMBOLS = {
    "L_f": "motion",
    "L_sigma": "spread",
    "L_pi": "policy",
    "L_r": "reward",
    "kappa": "stretch",
}
"""Symbols of the constants, and what they are called in `Constants`."""


@dataclass(frozen=True)
class Constants:
    r"""The constants of Sec. 5; infinite where none is known.

    Attributes:
        motion: $L_f$ of assumption LipschitzDynamics.
        spread: $L_\sigma$ of assumption LipschitzModelStd.
        policy: $L_\pi$ of assumption LipschitzPolicyAndReward. For a randomised policy it is the
            Lipschitz constant of the action's law in W1; the proofs then hold as they stand.
        reward: $L_r$ of the same assumption.
        stretch: $\kappa$, by how much rounding to cells can increase the distance of two agents
            (`grid_stretch`). It is 1 in the paper, which has no grid.
    """

    motion: float = math.inf
    spread: float = math.inf
    policy: float = math.inf
    reward: float = math.inf
    stretch: float = 1.0

    @classmethod
    def given(cls, values: Mapping[str, Any], stretch: float) -> "Constants":
        """Reads a user's constants, by their symbols, such as ``L_f``."""
        for symbol in values:
            if symbol not in SYMBOLS:
                raise UserError(f"there is no constant {symbol!r}; there are {', '.join(SYMBOLS)}")
        named = {SYMBOLS[each]: number(value, each, 0.0) for each, value in values.items()}
        return cls(**{"stretch": stretch, **named})

    def step_growth(self, beta: float) -> float:
        r"""Growth of W1 in a step: $2 \kappa (1 + L_\pi) (L_f + 2 \beta L_\sigma)$."""
        return self.stretch * 2 * (1 + self.policy) * (self.motion + 2 * beta * self.spread)

    def growth(self, beta: float) -> float:
        r"""$\overline{L}$ of theorem main: the paper adds one, so that its powers never fall."""
        return 1 + self.step_growth(beta)


def grid_stretch(noise_std: Sequence[float], cell_size: Sequence[float]) -> float:
    r"""Kappa, for noise and cells with one entry for each axis; derived in docs/theory.md.

    On one axis it is $\Delta \sum_k \varphi_\sigma(k \Delta)$, infinite without noise; of p axes
    the greatest counts, times $\sqrt{p}$. The borders of the space bring agents nearer to each
    other; walls inside it may tear them apart, so that no constant holds at their ends.
    """

    def of_axis(std: float, size: float) -> float:
        if std == 0:
            return math.inf
        step = size / std
        if step < 0.5:  # the sum is one up to 1e-34
            return 1.0
        widest = math.ceil(40.0 / step)  # beyond 40 standard deviations the density is zero
        edges = step * np.arange(-widest, widest + 1)
        return float(step * np.sum(np.exp(-0.5 * edges**2)) / math.sqrt(2 * math.pi))

    return math.sqrt(len(cell_size)) * max(map(of_axis, noise_std, cell_size))


def flow_bound(
    constants: Constants, beta: float, deviations: Float[np.ndarray, "steps"]
) -> Float[np.ndarray, "moments"]:
    r"""Lemma MFFlowW1Bound: how far apart the imagined and the realised flow can be.

    Returns logarithms of bounds of $W_1(\tilde\mu_h, \mu_h)$ for h = 0, ..., H: the recursion in
    the lemma's proof, which is sharper than its statement
    $2 \kappa \beta \, \overline{L}^{h-1} \sum_{i<h} \text{deviations}_i$.
    """
    source = log(2 * constants.stretch * beta) + logs(deviations)
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
    factor = 2 * constants.reward * (1 + constants.policy)
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


def power(value: Log) -> str:
    """Formats a value given by its natural logarithm, if large or small as a power of ten."""
    if math.isinf(value):
        return "infinite" if value > 0 else "0"
    digits = value / math.log(10)
    return f"{math.exp(value):.4g}" if -4 < digits < 5 else f"10^{digits:.1f}"


def _prefix(constants: Constants, beta: float, paid: int) -> Log:
    factor = 4 * constants.stretch * beta * constants.reward
    powers = (paid - 1) * log(constants.growth(beta)) if paid > 1 else 0.0
    return log(factor * (1 + constants.policy)) + powers
