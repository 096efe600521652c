r"""The bounds of App. "Regret Bound Proof" and theorem GPRegretBound.

Powers of $\overline{L}$ overflow on long horizons, so that all bounds are natural logarithms.

Where print and proof differ, these are what the proofs give:

- Lemma MFFlowW1Bound sums from i = 0. Sec. 5 prints i = 1, which would leave no error after the
  first step.
- Step 2 of the lemma's proof is not valid as printed. It integrates an inequality against the
  signed measure $\tilde\mu - \mu$; and it could not be mended, because the imagined motion
  $\tilde f$ need not be continuous, so that $\Phi(\cdot, \pi, \tilde f)$ has no Lipschitz
  constant. The lemma is true nevertheless: go through $\Phi(\tilde\mu, \pi, f)$ instead of
  $\Phi(\mu, \pi, \tilde f)$. Then
  $W_1(\Phi(\tilde\mu, \tilde f), \Phi(\tilde\mu, f)) \le 2 \beta \int \|\sigma\| d\tilde\mu$,
  and the integral changes by at most $2 L_\sigma (1 + L_\pi) W_1$ when $\mu$ takes the place of
  $\tilde\mu$ in its three places (twice the constant, because the measure and the argument
  change); and $W_1(\Phi(\tilde\mu, f), \Phi(\mu, f)) \le 2 L_f (1 + L_\pi) W_1$ along the best
  coupling. The sum is the printed recursion, constant for constant.
- The proof of theorem main carries a factor p under the root that comes from nowhere; without it
  the steps hold. It gives $\beta_{T-1}$, where the theorem prints $\beta_T$.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from .constants import Constants

Log = float
"""Natural logarithm of a bound; minus infinity for a bound of zero."""


@dataclass(frozen=True, eq=False)
class FlowBound:
    r"""Bounds of $W_1(\tilde\mu_h, \mu_h)$ for h = 0, ..., H (lemma MFFlowW1Bound), as logarithms.

    Attributes:
        closed: The lemma as stated.
        recursion: The line of its proof before the one is added to the growth: sharper.
    """

    closed: Float[np.ndarray, "moments"]
    recursion: Float[np.ndarray, "moments"]


def flow_bound(constants: Constants, beta: float, doubts: Float[np.ndarray, "steps"]) -> FlowBound:
    r"""How far apart the imagined and the realised flow can be.

    $$W_1(\tilde\mu_h, \mu_h) \le 2 \kappa \beta \, \overline{L}^{h-1} \sum_{i=0}^{h-1}
    \int \|\sigma(s, \pi_i(s, \mu_i), \mu_i)\|_2 \, \mu_i(ds)$$

    Args:
        constants: The constants; only the policy that was run must satisfy $L_\pi$.
        beta: Scale of a band that holds both motions, the true and the imagined one.
        doubts: The integrals, one for each step.
    """
    source = _log(2 * constants.stretch.value * beta) + _logs(doubts)
    growth = _log(constants.growth(beta))
    step = _log(constants.step_growth(beta))
    total = np.logaddexp.accumulate(source)
    powers = np.array([h * growth if h else 0.0 for h in range(len(doubts))])
    recursion = [-math.inf]
    for each in source:
        before = recursion[-1]
        carried = step + before if before > -math.inf else before
        recursion.append(float(np.logaddexp(carried, each)))
    return FlowBound(np.concatenate([[-math.inf], powers + total]), np.asarray(recursion))


def gap_bound(constants: Constants, distances: Float[np.ndarray, "moments"]) -> Log:
    r"""Lemma regretOptBound: what optimism can expect too much, from the flows' distances.

    $$r_t \le \tilde J(\pi_t, \tilde f) - J(\pi_t) \le 2 L_r (1 + L_\pi) \sum_h
    W_1(\tilde\mu_h, \mu_h)$$

    Args:
        constants: The constants.
        distances: Logarithms of the distances, or of bounds of them, one for each paid moment.
    """
    factor = 2 * constants.reward.value * (1 + constants.policy.value)
    return _log(factor) + float(np.logaddexp.reduce(distances))


def episode_bound(
    constants: Constants, beta: float, doubts: Float[np.ndarray, "steps"], paid: int
) -> Log:
    r"""Lemma episodeRegretSquareBound: the regret of one episode, from the doubts along it.

    $$r_t \le 4 \kappa \beta L_r (1 + L_\pi) \overline{L}^{H-1} H \sum_h \int \|\sigma\| d\mu_h$$

    Args:
        constants: The constants.
        beta: Scale of the band.
        doubts: Integrals of the standard deviation, one for each step.
        paid: Number of paid distributions, the paper's H.
    """
    return _prefix(constants, beta, paid) + math.log(paid) + _log(float(np.sum(doubts)))


def regret_bound(
    constants: Constants, beta: float, complexity: Log, episodes: int, paid: int
) -> Log:
    r"""Theorem main, with the constant that its proof gives.

    $$R_T \le 4 \kappa \beta_{T-1} L_r (1 + L_\pi) \overline{L}_{T-1}^{H-1} \sqrt{H^3 T I_T}$$

    Args:
        constants: The constants, for the policies of all episodes.
        beta: $\beta_{T-1}$, the greatest scale of the band so far.
        complexity: Logarithm of $I_T$, or of an upper bound of it.
        episodes: T.
        paid: Number of paid distributions, the paper's H.
    """
    inside = 3 * math.log(paid) + math.log(episodes) + complexity
    return _prefix(constants, beta, paid) + 0.5 * inside


def process_regret_bound(
    constants: Constants,
    beta: float,
    factor: Log,
    information: float,
    episodes: int,
    paid: int,
) -> Log:
    r"""Theorem GPRegretBound: theorem main with $I_T \le C \gamma$.

    With the paper's $\lambda = p H$ and $k \le 1$, $C = 2 e p H$ and

    $$R_T \le 4 \sqrt{2 e p} \, \kappa \beta_{T-1} L_r (1 + L_\pi) \overline{L}_{T-1}^{H-1} H^2
    \sqrt{T \gamma_{pHT}}.$$

    Args:
        constants: The constants.
        beta: $\beta_{T-1}$.
        factor: Logarithm of C (`complexity.log_stale_factor`, or that of 2 e p H).
        information: An upper bound of $\gamma_{pHT}$.
        episodes: T.
        paid: Number of paid distributions, the paper's H.
    """
    return regret_bound(constants, beta, factor + _log(information), episodes, paid)


def _prefix(constants: Constants, beta: float, paid: int) -> Log:
    factor = 4 * constants.stretch.value * beta * constants.reward.value
    powers = (paid - 1) * _log(constants.growth(beta)) if paid > 1 else 0.0
    return _log(factor * (1 + constants.policy.value)) + powers


def _log(value: float) -> Log:
    return math.log(value) if value > 0 else -math.inf


def _logs(values: Float[np.ndarray, "entries"]) -> Float[np.ndarray, "entries"]:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.asarray(values, dtype=float)))
