"""What a model-free learner makes of the four rooms, next to M3-UCRL: PPO of Stable-Baselines3.

PPO sees the problem as `LiftedEnv` shows it: the state is mu, an action the policy of one step,
actions on 4 x 4 points with those of the cells interpolated. Both learn without the motion. An
episode is one run of the population for either; PPO sees the exact mu and r-hat after each step,
M3-UCRL those and the moves of one tracked agent.

PPO's settings are the best of six short trials with one seed; its figure is the best J of all
evaluations of its deterministic policy, those during training included. M3-UCRL has its defaults;
its figure is J of its last episode. Each has one seed. The coarse policies themselves end below
the optimum: a row tells how far gradient ascent with known motion comes with them. The claims:

1. Stable-Baselines3's own checker passes the environment without a warning,
2. M3-UCRL after 8 episodes earns at least what PPO does after its budget, three minutes of
   processor time: other work on the machine does not shorten it.

With ``--quick`` PPO has hardly begun to learn, and only the first claim is made.

Run ``make peers``, or ``python benchmarks/peers_rl.py [--quick] [--save DIR]`` in an environment
that has ``stable-baselines3`` and ``gymnasium``.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from _report import Report, duration
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import mufield
from mufield import Profile, SimulatedSystem
from mufield.adapters.lifted import LiftedEnv

SECONDS, QUICK_SECONDS = 180.0, 5.0
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


def coarse(system: SimulatedSystem) -> LiftedEnv:
    return LiftedEnv(system, policy="coarse", resolution=RESOLUTION)


def complaint(env: LiftedEnv) -> str | None:
    """What Stable-Baselines3's checker has to say against the environment."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            check_env(env)
        except (AssertionError, TypeError, ValueError, Warning) as error:
            return f"{type(error).__name__}: {error}"
    return None


class Normalised:
    """PPO behind the normalisation of observations that it was trained with."""

    def __init__(self, model: PPO, envs: VecNormalize):
        self.model, self.envs = model, envs

    def predict(self, observation: np.ndarray, *, deterministic: bool) -> tuple[Any, Any]:
        return self.model.predict(self.envs.normalize_obs(observation), deterministic=deterministic)


class Watch(BaseCallback):
    """Evaluates the deterministic policy now and then, and stops when the time is up."""

    def __init__(self, env: LiftedEnv, seconds: float, every: int = 10):
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


def run_ppo(system: SimulatedSystem, seconds: float) -> tuple[Learned, list[tuple[int, float]]]:
    """Trains for the time given; all environments share one system."""
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    parser.add_argument("--seconds", type=float, help="PPO's budget of processor time")
    parser.add_argument("--save", type=Path, metavar="DIR", help="directory for the results")
    options = parser.parse_args()
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)

    system = mufield.make("four-rooms")
    against = complaint(coarse(system))
    chance = float(system.evaluate(mufield.random_policy(system.problem)).value)
    known = best_coarse(system)
    ppo, curve = run_ppo(system, seconds)
    ours = run_m3ucrl(system)

    report = Report("peers_rl")
    report.row("Stable-Baselines3's check_env", against or "passes, no warnings")
    report.row("uniformly random actions", f"J = {chance:.2f}")
    report.row("PPO, coarse policies", show(ppo))
    report.row("PPO, at its end", f"J = {ppo.last:.2f}")
    report.row("coarse policies, known motion, gradient ascent", f"J = {known:.2f}")
    report.row("M3-UCRL", show(ours))
    report.claim("SB3 check_env passes", float(against is None), 1, side="at least")
    if not options.quick:
        report.claim(
            f"M3-UCRL J after {EPISODES} episodes / PPO J after its budget",
            ours.value / ppo.value,
            1,
            side="at least",
        )
    if options.save is not None:
        results = {
            "check_env": against or "passes, no warnings",
            "random": chance,
            "coarse_known_motion": known,
            "ppo": {**asdict(ppo), "budget_seconds": seconds, "curve": curve},
            "m3ucrl": asdict(ours),
            "claims": report.claims,
        }
        options.save.mkdir(parents=True, exist_ok=True)
        (options.save / "peers_rl.json").write_text(json.dumps(results, indent=1) + "\n")
    report.show()


if __name__ == "__main__":
    main()
