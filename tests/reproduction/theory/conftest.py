"""Small runs that the theory is held against."""

import dataclasses
from functools import cached_property, lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mufield import M3UCRL, Grid, MoveSet, Problem, SimulatedSystem, register, uniform
from mufield.models.features import FeatureMap
from mufield.models.gp import GaussianProcess
from mufield.models.kernels import SquaredExponential
from mufield.models.posterior import covariances
from mufield.policies import ActionLaw
from mufield.runs.build import build, resolve
from mufield.runs.config import RunConfig
from mufield.runs.files import RunFiles
from mufield.runs.learn import learn_run
from mufield.runs.store import RunStore
from reproduction.theory.report import make_report
from reproduction.theory.run import RunData, episodes_of

NORM = 1.0
KERNEL = SquaredExponential(np.full(3, 2.0), 0.5)
CELLS = 12
MOVES = (-1.0, 0.0, 1.0)

# L_d, the slope of the kernel's metric: the root of its variance over its length scale, times the
# slope of the sine and cosine. Then L_f <= 1 + m B_f L_d, and L_sigma <= m L_d. The table of a
# policy may change from one end to the other between two cells.
SLOPE = np.sqrt(0.5) / 2 * 2 * np.pi
KNOWN = {"L_f": 1 + 0.25 * NORM * SLOPE, "L_sigma": 0.25 * SLOPE, "L_pi": 24.0, "L_r": 1.0}


class KernelMotion:
    """s + m g(z) with g a finite expansion in the model's kernel, whose norm is exactly NORM."""

    def __init__(self, problem):
        self.features = FeatureMap(problem)
        self.kernel = KERNEL
        # Agents go where they act, in some places faster than in others.
        turn = np.array([0.0, 2.0, 4.5, 0.0, 2.0, 4.5])
        acted = np.array([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
        self.centres = np.stack([np.sin(turn), np.cos(turn), acted], axis=1)
        weights = np.array([1.0, 0.5, 0.7, -1.0, -0.5, -0.7])
        gram = covariances(self.kernel, self.centres, self.centres)
        self.weights = weights * NORM / np.sqrt(weights @ gram @ weights)
        self.scale = problem.max_move[0]

    def __call__(self, state, action, mu):
        z = self.features(state, action, mu)
        near = jax.vmap(lambda centre: self.kernel(centre, z))(jnp.asarray(self.centres))
        return state + self.scale * jnp.dot(jnp.asarray(self.weights), near)


def reward(state, action, mu):
    return jnp.cos(2 * jnp.pi * state[0]) / (2 * jnp.pi) - 0.05 * jnp.abs(action[0])


@register("theory-ring", "a motion in the model's own space, for tests")
@lru_cache
def theory_ring():
    grid = Grid.box(0.0, 1.0, CELLS, periodic=True)
    problem = Problem(
        space=grid,
        actions=MoveSet(np.array(MOVES)[:, None]),
        reward=reward,
        horizon=3,
        initial=uniform(grid),
        noise=0.09,
        max_move=0.25,
    )
    return SimulatedSystem(problem, KernelMotion(problem))


def best_value():
    """J of the best policy, by dynamic programming: neither reward nor motion looks at mu."""
    system = theory_ring()
    flow, motion = system.reveal()
    problem, ones = system.problem, jnp.ones((CELLS, 1))
    stay, earn = [], []
    for move in MOVES:
        law = ActionLaw(jnp.full((CELLS, 1, 1), move), ones)
        step = jax.jit(jax.vmap(lambda mass, law=law: flow.step(mass, law, motion)))
        stay.append(np.asarray(step(jnp.eye(CELLS))))
        earn.append(np.asarray(flow.rewards(problem.initial, law))[:, 0])
    values = np.zeros(CELLS)
    for _ in range(problem.horizon):
        values = np.max([r + p @ values for r, p in zip(earn, stay, strict=True)], axis=0)
    return float(np.asarray(problem.initial) @ values)


class Run:
    """A finished run; what its models say of its episodes is computed once for all tests."""

    def __init__(self, directory, config, best=0.0, family=None):
        self.directory, self.best, self.setup = directory, best, build(resolve(config))
        if family is not None:  # one that no configuration can say
            known = self.setup.learner
            learner = M3UCRL(known.problem, family, known.planner, optimism=known.optimism)
            self.setup = dataclasses.replace(self.setup, learner=learner)
        RunStore.create(directory, self.setup.config)
        learn_run(directory, setup=self.setup, progress=False)

    @cached_property
    def data(self):
        return RunData.read(RunFiles(self.directory), self.setup)

    @cached_property
    def evidence(self):
        return list(episodes_of(self.data))

    def report(self, **options):
        return make_report(self.data, self.evidence, **options)


@pytest.fixture(scope="session")
def ring(tmp_path_factory):
    """A run that keeps every assumption of theorem GPRegretBound."""
    config = RunConfig(
        environment="theory-ring",
        # No more data than the smallest head of a posterior holds, so that one program serves all.
        episodes=3,
        agents=2,
        model="gp",
        planner_options={"controls": 3, "sweeps": 100},
        judge=False,
        scale=1.0,
        precision="float64",
    )
    directory = tmp_path_factory.mktemp("theory") / "ring"
    # Beta is no less than that of corollary ConfidenceInterval, as a test sees to.
    family = GaussianProcess(prior=KERNEL, fit_kernel=False, inducing=0, beta=6.0)
    return Run(directory, config, best_value(), family)


@pytest.fixture(scope="session")
def report(ring):
    """The ring's report with all that is known of it."""
    return ring.report(given=KNOWN, reference=ring.best)


@pytest.fixture(scope="session")
def rooms(tmp_path_factory):
    """An ensemble among walls, after a random first episode."""
    config = RunConfig(
        environment="four-rooms",
        options={"horizon": 3, "drawing": "...\n.#.\n..."},
        episodes=2,
        first="random",
        model="ensemble",
        model_options={"members": 2, "width": 4, "steps": 3},
        planner_options={"points": 3, "sweeps": 2},
        judge=False,
        precision="float64",
    )
    directory = tmp_path_factory.mktemp("theory") / "rooms"
    return Run(directory, config)
