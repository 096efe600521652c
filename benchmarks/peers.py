"""Other libraries beside ours: OpenSpiel, MFGLib, Bench-MFG, and PPO of Stable-Baselines3.

- ``flow``: how fast one policy's flow and value are in the discrete four rooms over 40 steps,
  OpenSpiel's ``crowd_modelling_2d_four_rooms``, under the policy that draws evenly from the legal
  moves. All sides compute the distributions of all steps and the value in float64. Ours is
  `MoveFlow.rollout`, compiled once for weights of any policy. After compilation it is at least
  1,000 times faster than OpenSpiel's `DistributionPolicy` and `PolicyValue`, and at least 20 times
  faster than MFGLib's `mean_field_from_policy` and the sum of its rewards; values agree to 1e-9.
  OpenSpiel pays log 169 at the first step, because it stores a uniform distribution there, where
  the true one, a point mass, pays nothing; the rest is the same.
- ``field``: flow and value of the uniform policy on the problems that MFGLib and Bench-MFG have as
  well, beside their own code, to 1e-6: left-right, rock-paper-scissors, beach-bar and sis of MFGLib
  and six Garnets of Bench-MFG. Of Bench-MFG the probabilities and rewards are its own and the sum
  over steps ours, because its flow rounds probabilities to multiples of 1 / ``N_noises``. Its flow
  is timed: 20 steps of a Garnet with 40 nodes, compiled, float32 on both sides; ours computes the
  value as well, and is at least 1.5 times faster. Its other problems (contraction game, kinetic
  congestion, chains, its own sis and rock-paper-scissors) are not registered here.
- ``games``: exploitability beside MFGLib's, to 1e-6, of the uniform policy and after ten iterations
  of each solver that both have: mirror descent, fictitious play, a damped and an undamped fixed
  point, and MFGLib's prior descent with a constant prior, which is a softmax of the best response's
  values. Its mean-field occupation measures are optimisation over measures, which ours has not.
  Where several moves are equally good MFGLib's best response mixes them and ours takes one, so
  that the two part; such pairs are shown and not claimed. And the time of one iteration of mirror
  descent in the four rooms, with the exploitability of the new policy: that is an iteration of
  either `solve`. MFGLib goes through the episode five times for it, where three are enough, and
  ours three times; a row has MFGLib's step alone, which goes twice and has no exploitability.
- ``ppo``: what a model-free learner makes of the four rooms. PPO sees the problem as `LiftedEnv`
  shows it: the state is mu, an action the policy of one step, actions on 4 x 4 points with those of
  the cells interpolated. Both learn without the motion. An episode is one run of the population for
  either; PPO sees the exact mu and r-hat after each step, M3-UCRL those and the moves of one
  tracked agent. PPO's settings are the best of six short trials with one seed; its figure is the
  best J of all evaluations of its deterministic policy. M3-UCRL has its defaults; its figure is J
  of its last episode. The coarse policies themselves end below the optimum: a row tells how far
  gradient ascent with known motion comes with them. The claims: Stable-Baselines3's own checker
  passes the environment without a warning; M3-UCRL after 8 episodes earns at least what PPO does
  after its budget, three minutes of processor time.

Run ``make peers``, which has all of them in an environment of their own, or
``python benchmarks/peers.py [section ...]``: what is not installed is left out. ``--quick`` has
``flow``, ``field`` and ``games``.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import importlib.util
import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _report import Report, duration, options_of, run_sections, time_side_by_side
from open_spiel.python.mfg.algorithms.distribution import DistributionPolicy
from open_spiel.python.mfg.algorithms.policy_value import PolicyValue
from open_spiel.python.mfg.games import factory
from open_spiel.python.policy import UniformRandomPolicy

import mufield
from mufield import MoveFlow, Profile, SimulatedSystem
from mufield.environments.four_rooms import uniform_legal
from mufield.flow import Rollout

FASTER_THAN_OPEN_SPIEL = 1000.0
FASTER_THAN_MFGLIB = 20.0
FASTER_THAN_BENCH_MFG = 1.5
SAME_VALUE = 1e-9
HORIZON = 40
OPEN_SPIEL_FIRST_REWARD = math.log(169)
MOVES = ((0, 1), (1, 0), (0, 0), (-1, 0), (0, -1))
PPO_SECONDS = 180.0
EPISODES = 8
RESOLUTION = 4
ENVIRONMENTS = 8
SETTINGS = {
    "n_steps": 100,
    "batch_size": 200,
    "n_epochs": 10,
    "learning_rate": 1e-3,
    "gamma": 1.0,  # J is not discounted.
    "gae_lambda": 0.95,
    "policy_kwargs": {"log_std_init": -1.0},
}


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
    from mfglib.utils import mean_field_from_policy

    env, policy = mfglib_rooms()

    def evaluate() -> float:
        flow = mean_field_from_policy(policy, env=env)
        return float(sum((flow[t] * env.reward(t, flow[t])).sum() for t in range(HORIZON)))

    return evaluate


def mfglib_rooms() -> tuple[Any, Any]:
    """The discrete four rooms for MFGLib, and the policy that draws from the legal moves."""
    import torch
    from mfglib.env import Environment

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
    return env, (legal / legal.sum(-1, keepdim=True)).expand(HORIZON, cells, len(MOVES)).clone()


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


def flow(report: Report, options: argparse.Namespace) -> None:
    """Flow and value on all sides, in float64."""
    with jax.enable_x64(True):
        assert jnp.zeros(()).dtype == jnp.float64
        sides = our_sides() | {"OpenSpiel": open_spiel_side()}
        mfglib = mfglib_side()
        if mfglib is not None:
            sides["MFGLib"] = mfglib

        values = {name: side() for name, side in sides.items()}
        values["OpenSpiel"] -= OPEN_SPIEL_FIRST_REWARD
        times = time_side_by_side(sides, rounds=5 if options.quick else 20)
        ours = times["mufield"].best
        for name, timing in times.items():
            report.row(name, f"{timing}, {timing.best / ours:.3g} x, J = {values[name]:.10f}")
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


# The problems of the field.


def mfglib_problems() -> dict[str, tuple[Any, Any]]:
    """The problems that MFGLib has as well: ours and its own."""
    from mfglib.env import Environment

    return {
        "left-right": (mufield.make("left-right"), Environment.left_right()),
        "rock-paper-scissors": (
            mufield.make("rock-paper-scissors"),
            Environment.rock_paper_scissors(),
        ),
        "beach-bar": (
            mufield.make("beach-bar", places=20, horizon=15),
            Environment.beach_bar(T=14, n=20, bar_loc=10),
        ),
        "sis": (mufield.make("sis", horizon=51), Environment.susceptible_infected(T=50)),
    }


def mfglib_uniform(env: Any) -> tuple[np.ndarray, float]:
    """Flow and value of the uniform policy by MFGLib."""
    import torch
    from mfglib.utils import mean_field_from_policy

    policy = torch.full((env.T + 1, *env.S, *env.A), 1.0 / env.n_actions)
    joint = mean_field_from_policy(policy, env=env)
    value = sum((joint[t] * env.reward(t, joint[t])).sum() for t in range(env.T + 1))
    return joint.sum(-1).numpy(), float(value)


def bench_mfg_garnet(seed: int, coupling: str, states: int = 10, horizon: int = 20) -> Any:
    """A Garnet of Bench-MFG."""
    from benchmfg.envs.mf_garnet.mf_garnet import MFGarnet, MFGarnetSampling

    return MFGarnet(
        N_states=states,
        N_actions=4,
        N_noises=64,
        horizon=horizon,
        mean_field=np.full(states, 1 / states),
        sampling=MFGarnetSampling(seed=seed, dynamics_structure=coupling),
    )


def bench_mfg_uniform(env: Any) -> tuple[np.ndarray, float]:
    """Flow and value of the uniform policy by the probabilities and rewards of a Garnet."""
    mass, value = [np.full(env.N_states, 1 / env.N_states)], 0.0
    share = 1 / env.N_actions
    for _ in range(env.horizon):
        mu, after = mass[-1], np.zeros(env.N_states)
        for state in range(env.N_states):
            for action in range(env.N_actions):
                value += share * mu[state] * env.reward(mu, state, action)
                after += share * mu[state] * env._transition_distribution(mu, state, action)
        mass.append(after)
    return np.stack(mass), value


def bench_mfg_speed(report: Report, rounds: int, states: int = 40, horizon: int = 20) -> None:
    """The flow of a Garnet, compiled: Bench-MFG's, and ours with its value."""
    from benchmfg.envs.mf_garnet import mf_garnet_jit
    from benchmfg.envs.mfg_model_class_jit import (
        EnvSpec,
        mean_field_by_transition_kernel_multi_jax,
    )

    env = bench_mfg_garnet(0, "additive", states, horizon)
    spec = EnvSpec(env, mf_garnet_jit.transition_mf_garnet, mf_garnet_jit.reward_mf_garnet)
    policy = jnp.full((states, 4), 0.25)
    start = jnp.full(states, 1 / states)
    flow, motion = mufield.make("garnet", states=states, horizon=horizon).reveal()
    moves = MoveFlow(flow, motion, flow.problem.actions.points())
    weights = jax.block_until_ready(moves.uniform())
    ours = eqx.filter_jit(lambda moves, weights: moves.rollout(weights))
    sides = {
        "mufield": lambda: jax.block_until_ready(ours(moves, weights)),
        "Bench-MFG": lambda: jax.block_until_ready(
            mean_field_by_transition_kernel_multi_jax(policy, spec, horizon, start)
        ),
    }
    times = time_side_by_side(sides, rounds=rounds)
    for name, timing in times.items():
        report.row(f"Garnet of {states} nodes, {horizon} steps, {name}", str(timing))
    ratio = times["Bench-MFG"].best / times["mufield"].best
    report.claim("times faster than Bench-MFG", ratio, FASTER_THAN_BENCH_MFG, side="at least")


def field(report: Report, options: argparse.Namespace) -> None:
    """Equal numbers on the problems that others have as well."""
    found: dict[str, tuple[Any, tuple[np.ndarray, float]]] = {}
    with jax.enable_x64(True):
        if importlib.util.find_spec("mfglib") is not None:
            import torch

            torch.set_default_dtype(torch.float64)
            for name, (system, env) in mfglib_problems().items():
                found[f"{name}, MFGLib"] = system, mfglib_uniform(env)
        if importlib.util.find_spec("benchmfg") is not None:
            for coupling in ("additive", "multiplicative"):
                for seed in range(3):
                    system = mufield.make("garnet", seed=seed, coupling=coupling)
                    env = bench_mfg_garnet(seed, coupling)
                    found[f"garnet {seed}, {coupling}, Bench-MFG"] = system, bench_mfg_uniform(env)
        if not found:
            report.row("MFGLib, Bench-MFG", "not installed; left out (`make peers` has them)")
            return
        worst = 0.0
        for name, (system, (mass, value)) in found.items():
            ours = system.evaluate(mufield.random_policy(system.problem))
            flows = np.max(np.abs(np.asarray(ours.mass)[: len(mass)] - mass))
            worst = max(worst, flows, abs(float(ours.value) - value))
            report.row(
                f"{name}: J of the uniform policy, ours and theirs, difference of flows",
                f"{float(ours.value):.9f}, {value:.9f}, {flows:.1g}",
            )
        report.claim("difference of flows and values", worst, 1e-6, side="at most")
    if importlib.util.find_spec("benchmfg") is not None:
        bench_mfg_speed(report, 5 if options.quick else 20)


# Equilibria.


def games(report: Report, options: argparse.Namespace) -> None:
    """Exploitability and solvers beside MFGLib's."""
    if importlib.util.find_spec("mfglib") is None:
        report.row("MFGLib", "not installed; left out (`make peers` has it)")
        return
    import torch
    from mfglib import alg
    from mfglib.scoring import exploitability_score

    ours = mufield.games
    solvers = {
        "mirror descent": (alg.OnlineMirrorDescent(0.1), ours.MirrorDescent(rate=0.1)),
        "fictitious play": (alg.FictitiousPlay(), ours.FictitiousPlay()),
        "damped, 0.3": (alg.FictitiousPlay(0.3), ours.FictitiousPlay(rate=0.3)),
        "fixed point": (alg.FictitiousPlay(1.0), ours.FictitiousPlay(rate=1.0)),
        "softmax": (alg.PriorDescent(2.0), ours.FictitiousPlay(rate=1.0, temperature=2.0)),
    }
    torch.set_default_dtype(torch.float64)
    worst = 0.0
    with jax.enable_x64(True):
        for name, (system, env) in mfglib_problems().items():
            even = torch.full((env.T + 1, *env.S, *env.A), 1.0 / env.n_actions)
            moves = MoveFlow(*system.reveal())
            here = ours.exploitability(moves.flow, moves.motion, moves.profile(moves.uniform()))
            pairs = {"uniform": (here, exploitability_score(env, even))}
            for method, (their_solver, solver) in solvers.items():
                state = their_solver.init_state(env, even)
                for _ in range(10):
                    state = their_solver.step_next_state(state, None, None)
                figures = solver.step(moves, solver.init(moves), 10)[1]
                pairs[method] = float(figures[-1, 1]), exploitability_score(env, state.pi)
            for method, (here, there) in pairs.items():
                report.row(f"{name}, {method}: ours, MFGLib's", f"{here:.9f}, {there:.9f}")
                worst = max(worst, abs(here - there))
        report.claim("difference from MFGLib's exploitability", worst, 1e-6, side="at most")
        env, policy = mfglib_rooms()
        descent = alg.OnlineMirrorDescent(0.01)
        begun = descent.init_state(env, policy)
        system = mufield.make("discrete-rooms", horizon=HORIZON, noise_intensity=1.0, pay_end=False)
        moves, solver = MoveFlow(*system.reveal()), ours.MirrorDescent(rate=0.01)
        state = solver.init(moves, jnp.asarray(policy.numpy()))
        sides = {
            "mufield": lambda: float(solver.step(moves, state, 20)[1][-1, 1]),
            "step": lambda: descent.step_next_state(begun, None, None),
            "MFGLib": lambda: exploitability_score(
                env, descent.step_next_state(begun, None, None).pi
            ),
        }
        times = time_side_by_side(sides, rounds=5 if options.quick else 20)
    here, there = times["mufield"].best / 20, times["MFGLib"].best
    report.row("iteration of mirror descent, ours", duration(here))
    report.row("MFGLib's", str(times["MFGLib"]))
    alone = f"{times['step']}, {times['step'].best / here:.3g} x"
    report.row("MFGLib's step alone, without the exploitability that ours has", alone)
    faster = "iteration: times faster than MFGLib"
    report.claim(faster, there / here, FASTER_THAN_MFGLIB, side="at least")


# Model-free learning.


@dataclass(frozen=True)
class Learned:
    """What a learner came to, and what it took."""

    value: float
    last: float
    episodes: int
    transitions: int
    seconds: float
    processor_seconds: float


class Clock:
    """Time on the wall, and of this process on all cores."""

    def __init__(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return round(time.perf_counter() - self.began[0], 2)

    @property
    def processor_seconds(self) -> float:
        return round(time.process_time() - self.began[1], 2)


def coarse(system: SimulatedSystem) -> Any:
    from _lifted import LiftedEnv

    return LiftedEnv(system, policy="coarse", resolution=RESOLUTION)


def complaint(env: Any) -> str | None:
    """What Stable-Baselines3's checker has to say against the environment."""
    from stable_baselines3.common.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            check_env(env)
        except (AssertionError, TypeError, ValueError, Warning) as error:
            return f"{type(error).__name__}: {error}"
    return None


class Normalised:
    """PPO behind the normalisation of observations that it was trained with."""

    def __init__(self, model: Any, envs: Any):
        self.model, self.envs = model, envs

    def predict(self, observation: np.ndarray, *, deterministic: bool) -> tuple[Any, Any]:
        return self.model.predict(self.envs.normalize_obs(observation), deterministic=deterministic)


def run_ppo(system: SimulatedSystem, seconds: float) -> tuple[Learned, list[tuple[int, float]]]:
    """Trains for the time given; all environments share one system."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    class Watch(BaseCallback):
        """Evaluates the deterministic policy now and then, and stops when the time is up."""

        def __init__(self, env: Any, seconds: float, every: int = 10):
            super().__init__()
            self.env, self.seconds, self.every = env, seconds, every
            self.updates = 0
            self.curve: list[tuple[int, float]] = []

        def _on_training_start(self) -> None:
            self.clock = Clock()

        def _on_step(self) -> bool:
            return self.clock.processor_seconds < self.seconds

        def _on_rollout_end(self) -> None:
            self.updates += 1
            if self.updates % self.every == 0:
                self.evaluate()

        def evaluate(self) -> None:
            profile = self.env.policy_profile(Normalised(self.model, self.training_env))
            self.curve.append((self.num_timesteps, float(self.env.system.evaluate(profile).value)))

    torch.set_default_dtype(torch.float32)  # MFGLib's side has changed it
    torch.set_num_threads(1)  # Networks this small lose by more.
    envs = VecNormalize(DummyVecEnv([lambda: coarse(system)] * ENVIRONMENTS), gamma=1.0)
    model = PPO("MlpPolicy", envs, seed=0, device="cpu", **SETTINGS)
    watch = Watch(coarse(system), seconds)
    clock = Clock()
    model.learn(1 << 40, callback=watch)
    spent = clock.seconds, clock.processor_seconds
    watch.evaluate()
    values = [value for _, value in watch.curve]
    steps = model.num_timesteps
    episodes = steps // system.problem.horizon
    return Learned(max(values), values[-1], episodes, steps, *spent), watch.curve


def run_m3ucrl(system: SimulatedSystem) -> Learned:
    clock = Clock()
    result = mufield.learn(system, episodes=EPISODES, progress=False)
    spent = clock.seconds, clock.processor_seconds
    last = result.metrics[-1].value
    return Learned(last, last, EPISODES, EPISODES * system.problem.horizon, *spent)


def best_coarse(system: SimulatedSystem, steps: int = 400) -> float:
    """J that gradient ascent with known motion finds among the coarse policies."""
    flow, motion = system.reveal()
    code, horizon = coarse(system).code, system.problem.horizon
    optimiser = optax.adam(0.05)

    def loss(raw: jax.Array) -> jax.Array:
        return -flow.value(Profile.stacked(code.policy(jnp.tanh(raw)), horizon), motion)

    @jax.jit
    def climb(raw: jax.Array) -> jax.Array:
        def step(carry: Any, _: None) -> tuple[Any, None]:
            raw, state = carry
            updates, state = optimiser.update(jax.grad(loss)(raw), state)
            return (optax.apply_updates(raw, updates), state), None

        (raw, _), _ = jax.lax.scan(step, (raw, optimiser.init(raw)), length=steps)
        return -loss(raw)

    return float(climb(0.3 * jax.random.normal(jax.random.key(0), (horizon, code.size))))


def show(learned: Learned) -> str:
    return (
        f"J = {learned.value:.2f}, {learned.episodes:,} episodes, "
        f"{learned.transitions:,} transitions, {duration(learned.seconds)} "
        f"({duration(learned.processor_seconds)} of processor time)"
    )


def ppo(report: Report, options: argparse.Namespace) -> None:
    """PPO and M3-UCRL in the four rooms."""
    if importlib.util.find_spec("stable_baselines3") is None:
        report.row("Stable-Baselines3", "not installed; left out (`make peers` has it)")
        return
    system = mufield.make("four-rooms")
    against = complaint(coarse(system))
    chance = float(system.evaluate(mufield.random_policy(system.problem)).value)
    known = best_coarse(system)
    theirs, curve = run_ppo(system, options.seconds)
    ours = run_m3ucrl(system)
    report.row("Stable-Baselines3's check_env", against or "passes, no warnings")
    report.row("uniformly random actions", f"J = {chance:.2f}")
    report.row("PPO, coarse policies", show(theirs))
    report.row("PPO, at its end", f"J = {theirs.last:.2f}")
    report.row("coarse policies, known motion, gradient ascent", f"J = {known:.2f}")
    report.row("M3-UCRL", show(ours))
    report.claim("SB3 check_env passes", float(against is None), 1, side="at least")
    name = f"M3-UCRL J after {EPISODES} episodes / PPO J after its budget"
    report.claim(name, ours.value / theirs.value, 1, side="at least")
    if options.out is not None:
        results = {
            "check_env": against or "passes, no warnings",
            "random": chance,
            "coarse_known_motion": known,
            "ppo": {**asdict(theirs), "budget_seconds": options.seconds, "curve": curve},
            "m3ucrl": asdict(ours),
            "claims": report.claims,
        }
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "peers.json").write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    parser = options_of(__doc__)
    budget = "PPO's budget of processor time"
    parser.add_argument("--seconds", type=float, default=PPO_SECONDS, help=budget)
    run_sections(
        "peers",
        parser,
        {"flow": flow, "field": field, "games": games, "ppo": ppo},
        quick=("flow", "field", "games"),
    )


if __name__ == "__main__":
    main()
