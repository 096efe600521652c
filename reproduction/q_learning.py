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

Here n counts the earlier updates of an entry, so the first update replaces its value. Q starts
from 0, nu from the uniform distribution; of equally good options the first is taken. At the last
step max Q_H is replaced by -log nu_H(x'), or by 0 if the last distribution is not paid.

With the paper's omega_nu = 0.05 the rate rho_nu is still 0.45 after ten million episodes, so nu is
no average: it remembers two or three episodes. Right after the update nu_h(x) >= rho_nu, so no
step pays more than omega_nu log(1 + k), which is then 0.81, while a uniform population is paid
log 104 = 4.64.

Without noise, a population that starts in one cell and takes single moves stays together in one
cell: then every greedy policy of the Standard formulation has J = 0.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from mufield.actions import MoveSet
from mufield.errors import UserError
from mufield.policies.base import Profile
from mufield.policies.tables import TablePolicy
from mufield.systems import SimulatedSystem

from .q_tables import Tables, tabulate


class Rates(NamedTuple):
    """The algorithm's parameters; see `QLearning`."""

    omega_q: float
    omega_nu: float
    epsilon: float


@dataclass(frozen=True, eq=False)
class QState:
    """What was learned so far, and all that is needed to go on.

    Attributes:
        q: The table Q_h(x, o).
        visits: Number of updates of each entry of Q.
        weights: The distributions nu_h, divided by ``scale``.
        scale: One factor for all weights, so that an episode need not shrink every weight.
        episodes: Number of episodes done.
        earned: Sum of all rewards -log nu_h(x_h) that the agent saw in them.
        generator: State of the random number generator (PCG64) as NumPy returns it.
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
    """The algorithm U2-MF-QL-FH: `init` makes a state, `advance` runs episodes."""

    episodes_at_once = 100_000
    """Episodes between two updates of the progress bar, and between two chances to interrupt."""

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
            omega_q: Exponent with which the learning rate of Q falls.
            omega_nu: Exponent with which the learning rate of the distributions falls; smaller
                than ``omega_q`` for mean-field control.
            epsilon: Probability of a random choice.
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
        """The state after more episodes; several calls give the same result as one."""
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
        """The greedy policies: the best option at each step and in each cell."""
        actions = self.system.problem.actions
        assert isinstance(actions, MoveSet)
        choice = jnp.asarray(state.q.argmax(axis=-1), dtype=jnp.int32)
        grid = self.system.problem.grid
        table = TablePolicy.mixing(actions.moves, actions.options[choice], grid)
        return Profile.stacked(table, self.tables.horizon)

    def estimate(self, state: QState) -> float:
        """J according to the Q-table: max Q_0(x, .) averaged over the initial distribution."""
        initial = np.asarray(self.system.problem.initial, dtype=float)
        return float(initial @ state.q[0].max(axis=-1))


@cache
def compiled_loop() -> Callable[..., tuple[float, float]]:
    """The loop over episodes, compiled by numba; it releases the interpreter's lock.

    It changes the arrays of a state in place, and returns the new scale and the rewards so far.
    """
    try:
        import numba
    except ImportError as error:
        raise ImportError("Q-learning needs numba; install it with: pip install numba") from error

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

    # If `QState.scale` falls below this, it is set back to 1, long before weights overflow.
    smallest_scale = 1e-100

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
            # All nu_h shrink by the same factor, so only the scale needs to change.
            rho_nu = (1.0 + k) ** -rates.omega_nu
            scale *= 1.0 - rho_nu
            if scale < smallest_scale:
                weights *= scale
                scale = 1.0
            gain = rho_nu / scale
            x = pick(tables.starts, generator.random())
            best = greedy(q[0, x])
            for h in range(steps):
                weights[h, x] += gain
                reward = tables.log_volume - np.log(scale * weights[h, x])
                # One number decides whether to choose at random, and which option.
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
