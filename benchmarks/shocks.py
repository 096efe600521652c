r"""Plans for problems with shocks (common noise) against optima that are known.

**sis.** The share x of ill agents follows $x' = .7 x + b x (1 - x)(1 - d)$; healthy agents keep
apart with probability d. It costs $x + .5 (1 - x) d$, discounted by .5. The shock b is .5, .81 or
1.8 with probabilities (.1, .8, .1), independent by step and seen before agents decide. Two nodes,
healthy and ill; d is the randomised policy of the healthy ones. The optimum over all policies, also
those that remember all shocks, is computed by dynamic programming over x.

**lq.** Agents on a line move by $s' = s + a + \xi + \sigma w$ and pay
$q (s - m)^2 + c m^2 + r a^2$, m their mean. The shock $\xi = \pm d$ moves the mean alone, so the
deviations from it have the Riccati equation of a problem without shocks and the mean its own:

$$P_h = q + \frac{r P_{h+1}}{r + P_{h+1}}, \qquad S_h = \frac{r Q_{h+1}}{r + Q_{h+1}}, \qquad
Q_h = c + S_h.$$

The shock is seen before the action, so the least cost is
$P_0 v_0 + Q_0 m_0^2 + \sigma^2 \sum_{h \ge 1} P_h + d^2 \sum_{h < H} S_h$. A twelfth of a squared
cell is added to the variances, as in ``closed_forms.py``.

**demand.** Manhattan's taxis, whose demand is as usual, or doubled in the south and halved in the
north, or the other way round; the next step's is the same with probability 0.8. Paths are drawn; J,
with its standard error, and perfect information are of other paths than the plan's. What a policy
that sees the shock gains over one that does not is shown, without a claim on how much.

Of the first two, policies are tables by step, the last shocks and cell; all paths are computed.
Claims: J within 1% of the optimum; where it is proved, the bound by perfect information is not
below the optimum (of the epidemic, whose motion sees mu, it is only the best that was found); a
shock with a single value changes no bit of a plan, and its sweeps are at most 5% slower.

Run ``python benchmarks/shocks.py [section ...]``.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Report, options_of, run_sections, time_side_by_side

import mufield as mf
from mufield.planning import plan_over_paths

NEAR = 0.01
RATES, CHANCES = (0.5, 0.81, 1.8), (0.1, 0.8, 0.1)


def sis(horizon: int, ill: float) -> tuple[mf.Flow, Any]:
    """The epidemic as a problem on two nodes, and its motion."""

    def motion(node: jax.Array, action: jax.Array, mu: mf.MeanField) -> jax.Array:
        caught = jnp.minimum(mu.shock * mu.mass[1] * (1 - action), 1.0)
        return jnp.where(node == 0, jnp.array([1 - caught, caught]), jnp.array([0.3, 0.7]))

    problem = mf.Problem(
        space=mf.Nodes(["healthy", "ill"]),
        actions=["meet", "keep apart"],
        reward=lambda node, action, mu: -jnp.where(node == 1, 1.0, 0.5 * action),
        horizon=horizon,
        initial=[1 - ill, ill],
        discount=0.5,
        shocks=mf.Shocks(RATES, CHANCES),
    )
    return mf.Flow(problem), motion


def sis_optimum(horizon: int, ill: float) -> float:
    """J of the best policy, by dynamic programming over the share of ill agents."""
    x, d = np.linspace(0, 1, 4001), np.linspace(0, 1, 401)
    values = np.zeros_like(x)
    for _ in range(horizon):
        share, cost = x[:, None], []
        for rate, chance in zip(RATES, CHANCES, strict=True):
            after = 0.7 * share + (1 - share) * np.minimum(rate * share * (1 - d), 1)
            paid = share + 0.5 * (1 - share) * d + 0.5 * np.interp(after, x, values)
            cost.append(chance * paid.min(axis=1))
        values = np.sum(cost, axis=0)
    return -float(np.interp(ill, x, values))


def epidemic(report: Report, options: argparse.Namespace) -> None:
    """The section ``sis``."""
    for ill in (0.3,) if options.quick else (0.3, 0.6):
        (flow, motion), best = sis(5, ill), sis_optimum(5, ill)
        plans = {
            memory: plan_over_paths(flow, motion, memory=memory, sweeps=120, perfect=memory == 1)
            for memory in (0, 1, 3)
        }
        _rows(report, f"sis, {ill:.0%} ill at first", best, plans)


def linear_quadratic(
    mean: float, shock: float, *, horizon: int = 5
) -> tuple[mf.Flow, Any, jax.Array, float]:
    """The problem, its motion, moves, and its greatest J."""
    q, c, r, sigma, deviation = 0.5, 1.5, 1.0, 0.3, 0.4
    grid = mf.Grid.box(-3.0, 3.0, 60)

    def reward(state: jax.Array, action: jax.Array, mu: mf.MeanField) -> jax.Array:
        middle = mu.mass @ jnp.asarray(mu.grid.centres[:, 0], dtype=mu.mass.dtype)
        return -(q * (state[0] - middle) ** 2 + c * middle**2 + r * action[0] ** 2)

    problem = mf.Problem(
        space=grid,
        actions=mf.Box(-1.2, 1.2, dim=1),
        initial=mf.from_density(grid, lambda s: jnp.exp(-0.5 * ((s[0] - mean) / deviation) ** 2)),
        reward=reward,
        horizon=horizon,
        noise=sigma,
        max_move=1.2 + shock,
        shocks=mf.Shocks([-shock, shock], [0.5, 0.5]),
    )
    centres, mass = grid.centres[:, 0], np.asarray(problem.initial, dtype=float)
    m = float(mass @ centres)
    variance = float(mass @ (centres - m) ** 2)
    p = big_q = cost = 0.0
    spread = sigma**2 + grid.cell_size[0] ** 2 / 12
    for _ in range(horizon):
        s = r * big_q / (r + big_q)
        cost += spread * p + shock**2 * s
        p, big_q = q + r * p / (r + p), c + s
    best = -(p * variance + big_q * m**2 + cost)
    moves = jnp.linspace(-1.2, 1.2, 25)[:, None]
    return mf.Flow(problem), lambda s, a, mu: s + a + mu.shock, moves, best


def line(report: Report, options: argparse.Namespace) -> None:
    """The section ``lq``."""
    for mean, shock in ((1.0, 0.4),) if options.quick else ((1.0, 0.4), (-0.5, 0.6)):
        flow, motion, moves, best = linear_quadratic(mean, shock)
        plans = {
            memory: plan_over_paths(
                flow, motion, actions=moves, memory=memory, sweeps=150, perfect=memory == 1
            )
            for memory in (0, 1, 3)
        }
        _rows(report, f"linear-quadratic, shock {shock}", best, plans)


def _rows(report: Report, name: str, best: float, plans: dict[int, Any]) -> None:
    """The table and the claims of one problem."""
    report.row(f"{name}: optimum", f"{best:.5f}")
    for memory, plan in plans.items():
        seen = ("none", "the present", "the last two", "the last three")[memory]
        report.row(f"{name}: sees {seen}", f"{float(plan.value):.5f}")
    gain = (float(plans[1].value) - float(plans[0].value)) / abs(best)
    report.row(f"{name}: gain of seeing the present shock", f"{gain:.2%} of the optimum")
    upper, proved = float(plans[1].upper), plans[1].proved
    kind = "proved" if proved else "found"
    report.row(f"{name}: perfect information ({kind})", f"{upper:.5f}")
    away = (best - float(plans[3].value)) / abs(best)
    report.claim(f"{name}: share of the optimum that is missing", away, NEAR, side="at most")
    if proved:  # else it is no bound, only the best that was found
        below = (best - upper) / abs(best)
        report.claim(f"{name}: bound below the optimum by", below, 0.0, side="at most")


def single(report: Report, options: argparse.Namespace) -> None:
    """The section ``single``: a shock with one value."""
    grid = mf.Grid.box((0, 0), (40, 40), (40, 40))
    settings: dict[str, Any] = {
        "space": grid,
        "actions": mf.Box(-1.0, 1.0, dim=2),
        "initial": mf.point_mass(grid, 2, 2),
        "reward": lambda s, a, mu: -mf.log_mass(mu.here) - 0.1 * a @ a,
        "horizon": 10,
        "noise": 0.4,
        "max_move": 1.0,
    }
    shocks, motion = mf.Shocks([1.0], [1.0]), lambda s, a, mu: s + a
    moves = mf.Box(-1.0, 1.0, dim=2).points(5)
    plain, flow = (mf.Flow(mf.Problem(**settings, shocks=each)) for each in (None, shocks))
    sweeps = 200
    ascend = eqx.filter_jit(mf.MirrorAscent(sweeps, bound=False).ascend)

    @eqx.filter_jit
    def valued(weights: jax.Array) -> jax.Array:
        return plain.value(mf.MoveFlow(plain, motion, moves).profile(weights), motion)

    def without() -> tuple[jax.Array, jax.Array]:
        known = mf.MoveFlow(plain, motion, moves)
        weights = ascend(known, starts=[known.uniform()])[0].weights
        return weights, valued(weights)

    def with_one() -> tuple[jax.Array, jax.Array]:
        found = plan_over_paths(flow, motion, actions=moves, sweeps=sweeps, perfect=False)
        table: Any = found.profile.join(found.profile.per_step)
        return table.policy.weights[:, 0], found.value

    (ours, value), (theirs, known) = with_one(), without()
    same = bool(jnp.all(ours == theirs)) and float(value) == float(known)
    report.claim("bits that one value changes", 0.0 if same else 1.0, 0.0, side="at most")
    sides = {"plain": lambda: jax.block_until_ready(without()), "shock": with_one}
    taken = time_side_by_side(sides, rounds=5 if options.quick else 15)
    ratio = taken["shock"].best / taken["plain"].best
    report.claim("time of a plan with one value over without", ratio, 1.05, side="at most")


def taxis() -> tuple[mf.Flow, Any]:
    """Manhattan with a demand that moves north and south."""
    flow, motion = mf.make("manhattan", horizon=6).reveal()
    problem = flow.problem
    fleet: Any = problem.trips
    north = jnp.asarray(problem.grid.centres[:, 1] > np.mean(problem.grid.centres[:, 1]))

    def of_today(part: Any, demand: Any, mu: mf.MeanField) -> Any:
        """A copy whose demand is that under the shock."""
        levels = jnp.where(north, mu.shock[1], mu.shock[0])
        return eqx.tree_at(demand, part, levels.astype(demand(part).dtype) * demand(part))

    def chance(state: jax.Array, mu: mf.MeanField) -> jax.Array:
        return of_today(fleet.chance, lambda each: each.demand, mu)(state, mu)

    def reward(state: jax.Array, action: jax.Array, mu: mf.MeanField) -> jax.Array:
        paid: Any = problem.reward
        return of_today(paid, lambda each: each.passengers.demand, mu)(state, action, mu)

    stays = 0.7 * np.eye(3) + 0.1
    shocks = mf.Shocks([[1, 1], [2, 0.5], [0.5, 2]], [0.6, 0.2, 0.2], stays, moves=False)
    trips = mf.fleet.Trips(chance, fleet.matrix)
    known = {"space": problem.grid, "actions": problem.actions, "initial": problem.initial}
    moved = {"horizon": 6, "noise": problem.noise.std, "max_move": problem.max_move}
    changed = mf.Problem(**known, **moved, reward=reward, trips=trips, shocks=shocks)
    return mf.Flow(changed), motion


def demand(report: Report, options: argparse.Namespace) -> None:
    """The section ``demand``."""
    flow, motion = taxis()
    settings: dict[str, Any] = {"actions": mf.Box(-1.0, 1.0, dim=2).points(5), "samples": 24}
    plans = {
        memory: plan_over_paths(
            flow, motion, memory=memory, sweeps=60, perfect=memory == 1, **settings
        )
        for memory in (0, 1)
    }
    error = float(plans[1].outcomes.standard_error)
    for memory, seen in ((0, "none"), (1, "the present")):
        value = float(plans[memory].value)
        report.row(f"taxis: sees {seen}", f"{value:.4f}, standard error {error:.2g} (same paths)")
    report.row("taxis: perfect information (found)", f"{float(plans[1].upper):.4f}")
    gain = plans[1].outcomes.rollouts.value - plans[0].outcomes.rollouts.value
    known = float(jnp.mean(gain) / (plans[1].upper - plans[0].value))
    report.row("taxis: share of the gain by perfect information that seeing brings", f"{known:.1%}")
    report.claim("taxis: gain of seeing the shock", float(jnp.mean(gain)), 0.0, side="at least")


if __name__ == "__main__":
    sections = {"sis": epidemic, "lq": line, "single": single, "demand": demand}
    run_sections("shocks", options_of(__doc__), sections, quick=("sis", "lq", "single"))
