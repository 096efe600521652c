"""U2-MF-QL-FH: unified two-timescale mean-field Q-learning, finite horizon.

Angiuli, Fouque, Lauriere, "Reinforcement learning for mean field games, with applications to
economics" (2021): the model-free rival of App. "Comparison to model-free reinforcement learning"
(label appendix:comparison). One agent walks through the discrete rooms, episode after episode, and
learns a table of Q-values and an estimate nu_h of the population's distribution at each step h.
In episode k = 1, 2, ..., at step h and in the cell x:

    nu_h     <- nu_h + rho_nu (delta_x - nu_h)                   rho_nu = (1 + k)^-omega_nu
    o         = argmax Q_h(x, .); any option with probability epsilon
    x'        ~ the option's law of the next cell
    Q_h(x, o) <- Q_h(x, o) + rho_Q (-log nu_h(x) + max Q_{h+1}(x', .) - Q_h(x, o))
                                                                 rho_Q = (1 + n_h(x, o))^-omega_Q

Here n counts the updates of an entry before this one, so the first of them replaces what was
there. Q starts from 0, nu from the even distribution; of equally good options the first is taken.
At the last step -log nu_H(x') stands for max Q_H, or 0 if the last distribution is not paid.

With the paper's omega_nu = 0.05 the rate rho_nu is still 0.45 after ten million episodes, so nu is
no average: it remembers two or three episodes. Right after the update nu_h(x) >= rho_nu, so no
step pays more than omega_nu log(1 + k), which is 0.81, where an even population is paid
log 104 = 4.64.

Without noise, single moves lead a population that starts in one cell from cell to cell as a
whole: then every greedy policy of the Standard formulation has J = 0.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from ..errors import UserError
from ..policies.base import Profile
from ..policies.tables import option_policy
from ..problem import MoveSet
from ..systems import SimulatedSystem
from .tables import Tables, tabulate

SMALLEST_SCALE = 1e-100
"""Below it the distributions are scaled anew, long before their numbers overflow."""


class Rates(NamedTuple):
    """The algorithm's numbers.

    Attributes:
        omega_q: How fast the learning rate of Q falls.
        omega_nu: How fast that of the distributions falls.
        epsilon: Share of random choices.
    """

    omega_q: float
    omega_nu: float
    epsilon: float


@dataclass(frozen=True, eq=False)
class QState:
    """What was learned so far, and all that is needed to go on.

    Attributes:
        q: Q_h(x, o).
        visits: How often each entry of it was updated.
        weights: The distributions nu_h, divided by `scale`.
        scale: Shrinks in every episode, so that not every weight has to.
        episodes: Number of episodes done.
        earned: Sum of all rewards -log nu_h(x_h) that the agent saw in them.
        generator: State of the random numbers (PCG64), as NumPy and JSON have it.
    """

    q: Float[np.ndarray, "steps cells options"]
    visits: Int[np.ndarray, "steps cells options"]
    weights: Float[np.ndarray, "steps_and_end cells"]
    scale: float
    episodes: int
    earned: float
    generator: dict[str, Any]

    @property
    def nu(self) -> Float[np.ndarray, "steps_and_end cells"]:
        """The estimated distributions nu_0, ..., nu_H."""
        return self.scale * self.weights


class QLearning:
    """U2-MF-QL-FH: `init`, `advance` and what its state says.

    Attributes:
        system: The system it learns in.
        tables: The transitions of that system.
        rates: omega_Q, omega_nu and epsilon.
    """

    def __init__(
        self,
        system: SimulatedSystem,
        *,
        omega_q: float = 0.7,
        omega_nu: float = 0.05,
        epsilon: float = 0.15,
    ):
        """Tabulates a system; the defaults are the paper's.

        Args:
            system: A system of finitely many options, whose reward is -log mu.
            omega_q: How fast the learning rate of Q falls.
            omega_nu: How fast that of the distributions falls; smaller than ``omega_q`` for
                mean-field control.
            epsilon: Share of random choices.
        """
        for name, omega in (("omega_q", omega_q), ("omega_nu", omega_nu)):
            if not 0 < omega <= 1:
                raise UserError(f"{name} must be more than 0 and at most 1, got {omega}")
        if not 0 <= epsilon <= 1:
            raise UserError(f"epsilon must be between 0 and 1, got {epsilon}")
        self.system = system
        self.tables = tabulate(system)
        self.rates = Rates(float(omega_q), float(omega_nu), float(epsilon))

    def init(self, seed: int) -> QState:
        """The state before the first episode."""
        steps, cells, options = self.tables.shape
        return QState(
            q=np.zeros((steps, cells, options)),
            visits=np.zeros((steps, cells, options), dtype=np.int64),
            weights=np.full((steps + 1, cells), 1.0 / cells),
            scale=1.0,
            episodes=0,
            earned=0.0,
            generator=dict(np.random.PCG64(seed).state),
        )

    def advance(self, state: QState, episodes: int) -> QState:
        """The state after more episodes; how they are cut into calls makes no difference."""
        if episodes < 0:
            raise UserError(f"expected a number of episodes of at least 0, got {episodes}")
        q, visits, weights = state.q.copy(), state.visits.copy(), state.weights.copy()
        source = np.random.PCG64()
        source.state = cast(Any, state.generator)
        scale, earned = compiled_loop()(
            self.tables,
            self.rates,
            q,
            visits,
            weights,
            np.random.Generator(source),
            state.episodes,
            episodes,
            state.scale,
            state.earned,
        )
        return replace(
            state,
            q=q,
            visits=visits,
            weights=weights,
            scale=scale,
            episodes=state.episodes + int(episodes),
            earned=earned,
            generator=dict(source.state),
        )

    def profile(self, state: QState) -> Profile:
        """The greedy policies: the best option of each step and cell."""
        actions = self.system.problem.actions
        assert isinstance(actions, MoveSet)
        choice = jnp.asarray(state.q.argmax(axis=-1), dtype=jnp.int32)
        return Profile.stacked(option_policy(actions, choice), self.tables.horizon)

    def estimate(self, state: QState) -> float:
        """The Q-table's own word on J: max Q_0(x, .) averaged over the initial distribution."""
        initial = np.asarray(self.system.problem.initial, dtype=float)
        return float(initial @ state.q[0].max(axis=-1))

    def settings(self) -> dict[str, Any]:
        """What a state belongs to, as JSON has it."""
        steps, cells, options = self.tables.shape
        return {
            "steps": steps,
            "cells": cells,
            "options": options,
            "pay_end": self.tables.pay_end,
            **self.rates._asdict(),
            "tables": self.tables.fingerprint(),
        }


@cache
def compiled_loop() -> Callable[..., tuple[float, float]]:
    """The episodes as machine code, by numba; they run without Python's lock.

    Arguments are the tables, the rates, the arrays of a state (which are changed), the random
    numbers, the episodes done and those to do, the scale and the rewards so far; the last two
    come back.
    """
    try:
        import numba
    except ImportError as error:
        raise ImportError(
            "Q-learning needs numba; install it with: pip install 'mufield[qlearning]'"
        ) from error

    def jit(function: Any) -> Any:
        # Under test, functions are wrapped to check their arguments.
        return numba.njit(nogil=True)(inspect.unwrap(function))

    @jit
    def pick(chances: Float[np.ndarray, "entries"], draw: float) -> int:
        entry = 0
        while draw >= chances[entry]:
            entry += 1
        return entry

    @jit
    def greedy(values: Float[np.ndarray, "options"]) -> int:
        best, top = 0, values[0]
        for option in range(1, len(values)):
            if values[option] > top:
                best, top = option, values[option]
        return best

    @jit
    def run(
        tables: Tables,
        rates: Rates,
        q: np.ndarray,
        visits: np.ndarray,
        weights: np.ndarray,
        generator: np.random.Generator,
        done: int,
        count: int,
        scale: float,
        earned: float,
    ) -> tuple[float, float]:
        steps, _, options = q.shape
        for k in range(done + 1, done + count + 1):
            # All nu_h shrink by the same factor: that is one number, not a loop over the cells.
            rho_nu = (1.0 + k) ** -rates.omega_nu
            scale *= 1.0 - rho_nu
            if scale < SMALLEST_SCALE:
                weights *= scale
                scale = 1.0
            gain = rho_nu / scale
            x = pick(tables.starts, generator.random())
            best = greedy(q[0, x])
            for h in range(steps):
                weights[h, x] += gain
                reward = tables.log_volume - np.log(scale * weights[h, x])
                # One draw says whether to choose at random, and then what.
                draw = generator.random()
                option = best
                if draw < rates.epsilon:
                    option = min(int(draw / rates.epsilon * options), options - 1)
                branch = pick(tables.chances[x, option], generator.random())
                y = tables.ends[x, option, branch]
                ahead = 0.0
                if h + 1 < steps:
                    best = greedy(q[h + 1, y])
                    ahead = q[h + 1, y, best]
                else:
                    weights[steps, y] += gain
                    if tables.pay_end:
                        ahead = tables.log_volume - np.log(scale * weights[steps, y])
                        earned += ahead
                rho_q = (1.0 + visits[h, x, option]) ** -rates.omega_q
                q[h, x, option] += rho_q * (reward + ahead - q[h, x, option])
                visits[h, x, option] += 1
                earned += reward
                x = y
        return scale, earned

    loop: Callable[..., tuple[float, float]] = run
    return loop
