"""How fast one policy's flow and value are, next to OpenSpiel and MFGLib.

The game is the discrete four rooms over 40 steps, OpenSpiel's ``crowd_modelling_2d_four_rooms``,
under the policy that draws evenly from the legal moves. All sides compute the distributions of
all steps and the value in float64. Ours is `MoveFlow.rollout`, compiled once for weights of any
policy. The claims, after compilation:

1. at least 1,000 times faster than OpenSpiel's `DistributionPolicy` and `PolicyValue`,
2. at least 20 times faster than MFGLib's `mean_field_from_policy` and the sum of its rewards,
3. values that agree to 1e-9. OpenSpiel pays log 169 at the first step, because it stores a uniform
   distribution there, where the true one, a point mass, pays nothing; the rest is the same.

Run ``make peers``, or ``python benchmarks/peers_flow.py [--quick]`` in an environment that has
``open_spiel`` and, for the second claim, ``mfglib``.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import importlib.util
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Report, Timing, duration, parse_quick, time_side_by_side
from open_spiel.python.mfg.algorithms.distribution import DistributionPolicy
from open_spiel.python.mfg.algorithms.policy_value import PolicyValue
from open_spiel.python.mfg.games import factory
from open_spiel.python.policy import UniformRandomPolicy

import mufield
from mufield import MoveFlow
from mufield.environments.discrete_rooms import uniform_legal
from mufield.flow import Rollout

FASTER_THAN_OPEN_SPIEL = 1000.0
FASTER_THAN_MFGLIB = 20.0
SAME_VALUE = 1e-9
HORIZON = 40
OPEN_SPIEL_FIRST_REWARD = math.log(169)
MOVES = ((0, 1), (1, 0), (0, 0), (-1, 0), (0, -1))

Side = Callable[[], float]
"""Computes flow and value; returns the value."""


def our_sides() -> dict[str, Side]:
    """The compiled flow over the moves; the same as an argument; the two calls that build it anew.

    All take the weights of any policy, [40, 104, 5]. The first is what a user calls again and
    again: the moves' kernel is built once, as MFGLib's transition tensor is.
    """
    system = mufield.make("discrete-rooms", horizon=HORIZON, noise_intensity=1.0, pay_end=False)
    flow, motion = system.reveal()
    policy = uniform_legal(flow.problem.grid)
    weights = jnp.tile(policy.weights, (HORIZON, 1, 1))
    moves = MoveFlow(flow, motion, policy.actions)
    profile = moves.profile(weights)

    fixed = jax.jit(lambda weights: moves.rollout(weights))
    passed = eqx.filter_jit(lambda moves, weights: moves.rollout(weights))
    general = eqx.filter_jit(lambda flow, profile: flow.rollout(profile, motion))

    def finish(rollout: Rollout) -> float:
        return float(jax.block_until_ready(rollout).value)

    return {
        "mufield": lambda: finish(fixed(weights)),
        "mufield, MoveFlow as an argument (filter_jit)": lambda: finish(passed(moves, weights)),
        "mufield, Flow.rollout (windows computed anew)": lambda: finish(general(flow, profile)),
        "mufield, system.evaluate (checks the episode)": lambda: finish(system.evaluate(profile)),
    }


def open_spiel_side() -> Side:
    """OpenSpiel's forward and backward pass."""
    game = factory.create_game_with_setting(
        "mfg_crowd_modelling_2d", "crowd_modelling_2d_four_rooms"
    )
    assert game.get_parameters()["horizon"] == HORIZON
    policy = UniformRandomPolicy(game)
    start = game.new_initial_state()

    def evaluate() -> float:
        flow = DistributionPolicy(game, policy)
        return float(PolicyValue(game, flow, policy)(start))

    return evaluate


def mfglib_side() -> Side | None:
    """MFGLib's forward pass and the return, or None where it is not installed."""
    if importlib.util.find_spec("mfglib") is None:
        return None
    import torch
    from mfglib.env import Environment
    from mfglib.utils import mean_field_from_policy

    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # Its default, all cores, is slower: thirtyfold when they are busy.
    kernel, legal = (torch.as_tensor(table) for table in transition_table())
    cells = legal.shape[0]
    start = torch.zeros(cells)
    start[0] = 1.0
    env = Environment(
        T=HORIZON - 1,
        S=(cells,),
        A=(len(MOVES),),
        mu0=start,
        r_max=60.0,
        reward_fn=lambda env, t, joint: (
            -torch.log(joint.sum(-1, keepdim=True) + 1e-25).expand(-1, len(MOVES))
        ),
        transition_fn=lambda env, t, joint: kernel,
    )
    policy = (legal / legal.sum(-1, keepdim=True)).expand(HORIZON, cells, len(MOVES)).clone()

    def evaluate() -> float:
        flow = mean_field_from_policy(policy, env=env)
        return float(sum((flow[t] * env.reward(t, flow[t])).sum() for t in range(HORIZON)))

    return evaluate


def transition_table() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities [to, from, move] of a legal move and one more random one; legal moves."""
    free = {cell: i for i, cell in enumerate(map(tuple, np.argwhere(~rooms())))}

    def neighbours(x: int, y: int) -> dict[int, int]:
        ends = ((move, free.get((x + dx, y + dy))) for move, (dx, dy) in enumerate(MOVES))
        return {move: end for move, end in ends if end is not None}

    around = [neighbours(*cell) for cell in free]
    kernel = np.zeros((len(free), len(free), len(MOVES)))
    legal = np.zeros((len(free), len(MOVES)))
    for cell, ends in enumerate(around):
        for move, end in ends.items():
            legal[cell, move] = 1.0
            for last in around[end].values():
                kernel[last, cell, move] += 1.0 / len(around[end])
    return kernel, legal


def rooms() -> np.ndarray:
    """Walls of OpenSpiel's four rooms, from the game itself."""
    game = factory.create_game_with_setting(
        "mfg_crowd_modelling_2d", "crowd_modelling_2d_four_rooms"
    )
    parameters = game.get_parameters()
    walls = np.zeros((parameters["size"], parameters["size"]), dtype=bool)
    for cell in parameters["forbidden_states"].strip("[]").split(";"):
        walls[tuple(int(c) for c in cell.split("|"))] = True
    return walls


def main() -> None:
    """Runs all sides and reports."""
    quick = parse_quick(__doc__)
    jax.config.update("jax_enable_x64", True)
    assert jnp.zeros(()).dtype == jnp.float64
    report = Report("peers_flow")
    sides = our_sides() | {"OpenSpiel": open_spiel_side()}
    mfglib = mfglib_side()
    if mfglib is not None:
        sides["MFGLib"] = mfglib

    values = {name: side() for name, side in sides.items()}
    values["OpenSpiel"] -= OPEN_SPIEL_FIRST_REWARD
    times = time_side_by_side(sides, rounds=5 if quick else 20)
    ours = times["mufield"].best
    for name, timing in times.items():
        report.row(name, f"{show(timing)}, {timing.best / ours:.3g} x, J = {values[name]:.10f}")
    if mfglib is None:
        report.row("MFGLib", "not installed; left out (`make peers` has it)")

    bars = {"OpenSpiel": FASTER_THAN_OPEN_SPIEL, "MFGLib": FASTER_THAN_MFGLIB}
    for name, bar in bars.items():
        if name not in times:
            continue
        report.claim(f"times faster than {name}", times[name].best / ours, bar, side="at least")
        report.claim(
            f"difference of J from {name}",
            abs(values[name] - values["mufield"]),
            SAME_VALUE,
            side="at most",
        )
    report.show()


def show(timing: Timing) -> str:
    """Fastest and middle round."""
    return f"{duration(timing.best)} (median {duration(timing.median)})"


if __name__ == "__main__":
    main()
