"""Worlds in which the theory's assumptions hold, with constants that are known exactly."""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mufield import Box, Flow, Grid, Problem, from_density
from mufield.policies import ActionLaw
from mufield.space.measure import MeanField, wasserstein
from reproduction.theory.bounds import Constants, grid_stretch

RING = Grid.box(0.0, 1.0, 24, periodic=True)
LINE = Grid.box(-5.0, 5.0, 100)


def constants(motion=1.0, spread=0.0, policy=0.0, reward=1.0, stretch=1.0):
    return Constants(motion, spread, policy, reward, stretch)


@lru_cache
def flow_on(grid, horizon, noise, width):
    """A flow that starts in the middle; its own reward does not matter."""
    centre = np.mean([grid.lower, grid.upper])
    problem = Problem(
        space=grid,
        actions=Box(-100.0, 100.0),
        reward=lambda state, action, mu: 0.0 * state[0],
        horizon=horizon,
        initial=from_density(grid, np.exp(-0.5 * ((grid.centres[:, 0] - centre) / width) ** 2)),
        noise=noise,
        max_move=grid.extent,
    )
    return Flow(problem)


class Twin(eqx.Module):
    """A true and an imagined world that share a policy; subclasses say what they are."""

    beta: jax.Array

    def played(self):
        """W1 for each moment, deviations along the true flow, and imagined minus true J."""
        flow = self.flow()
        true, imagined, deviations, gap = _played(self, flow)
        pairs = zip(np.asarray(imagined), np.asarray(true), strict=True)
        distances = np.asarray([wasserstein(flow.problem.grid, *pair) for pair in pairs])
        return distances, np.asarray(deviations), float(gap)

    def known(self):
        """The constants, with kappa of the grid."""
        problem = self.flow().problem
        stretch = grid_stretch(problem.noise.std, problem.grid.cell_size)
        return Constants(*self.lipschitz(), stretch)


@eqx.filter_jit
def _played(twin, flow):
    grid = flow.problem.grid
    centres = jnp.asarray(grid.centres)

    def at_cells(function, mass, h):
        def one(state, here):
            mu = MeanField(mass=mass, here=here, grid=grid)
            return function(state, twin.policy(state, mu, h), mu)

        return jax.vmap(one)(centres, mass)

    def rollout(motion):
        masses = [flow.problem.initial]
        for h in range(flow.problem.horizon):
            actions = at_cells(lambda s, a, mu: a, masses[-1], h)
            law = ActionLaw(actions=actions[:, None], weights=jnp.ones((grid.n_cells, 1)))
            step = flow.step(masses[-1], law, lambda s, a, mu, h=h: motion(s, a, mu, h))
            masses.append(step)
        return masses

    def mean(function, mass, h):
        return jnp.vdot(mass, at_cells(function, mass, h)[:, 0])

    true = rollout(lambda s, a, mu, h: twin.motion(s, a, mu))
    imagined = rollout(twin.imagined)
    steps = range(flow.problem.horizon)
    deviations = jnp.stack([mean(twin.spread, true[h], h) for h in steps])
    rewards = [mean(twin.reward, imagined[h], h) - mean(twin.reward, true[h], h) for h in steps]
    return jnp.stack(true), jnp.stack(imagined), deviations, sum(rewards)


class Shifted(Twin):
    """A world on the line in which every inequality of lemma MFFlowW1Bound is an equality.

    All functions grow with s, a and the mean of mu alike, so that a population that is shifted
    stays shifted, by just what the recursion says. The truth lies at the lower end of the band,
    the imagined motion at the upper.
    """

    slopes: jax.Array  # L_f, L_sigma, L_pi, L_r

    def flow(self):
        return flow_on(LINE, 3, 0.1, 0.1)

    def lipschitz(self):
        return tuple(float(v) for v in self.slopes)

    def total(self, s, a, mu):
        return s + a + jnp.vdot(mu.mass, jnp.asarray(mu.grid.centres[:, 0]))

    def motion(self, s, a, mu):
        return self.slopes[0] * self.total(s, a, mu)

    def spread(self, s, a, mu):
        return 0.15 + self.slopes[1] * self.total(s, a, mu)

    def imagined(self, s, a, mu, h):
        return self.motion(s, a, mu) + 2 * self.beta * self.spread(s, a, mu)

    def policy(self, s, mu, h):
        return self.slopes[2] * self.total(s, 0.0, mu)

    def reward(self, s, a, mu):
        return self.slopes[3] * self.total(s, a, mu)


def shifted(motion=0.5, spread=0.1, policy=0.2, reward=0.7, beta=1.2):
    return Shifted(jnp.asarray(beta), jnp.asarray([motion, spread, policy, reward]))


class Jumping(Twin):
    """A world on the ring with random slopes; the imagined motion jumps from cell to cell."""

    g: jax.Array
    c: jax.Array
    p: jax.Array
    r: jax.Array
    phase: jax.Array
    eta: jax.Array
    zeta: jax.Array

    def flow(self):
        return flow_on(RING, 4, 0.06, 0.15)

    def lipschitz(self):
        parts = [[1 + self.g[0], self.g[1], self.g[2]], self.c, self.p, self.r]
        return tuple(float(max(part)) for part in parts)

    def bump(self, s):
        return jnp.sin(2 * jnp.pi * s + self.phase) / (2 * jnp.pi)

    def wave(self, mu, phase):
        """An average over mu of a function with the Lipschitz constant 1."""
        angle = 2 * jnp.pi * jnp.asarray(mu.grid.centres[:, 0]) + phase
        return jnp.vdot(mu.mass, jnp.sin(angle)) / (2 * jnp.pi)

    def motion(self, s, a, mu):
        return s + self.g[0] * self.bump(s) + self.g[1] * a + self.g[2] * self.wave(mu, self.phase)

    def spread(self, s, a, mu):
        return 0.06 + self.c[0] * self.bump(s) + self.c[1] * a / 10 + self.c[2] * self.wave(mu, 1.0)

    def imagined(self, s, a, mu, h):
        cell = mu.grid.index_of(s)
        off = self.eta[h, cell] - self.zeta[cell]
        return self.motion(s, a, mu) + self.beta * self.spread(s, a, mu) * off

    def policy(self, s, mu, h):
        return self.p[0] * self.bump(s) + self.p[1] * self.wave(mu, 0.3 * h)

    def reward(self, s, a, mu):
        return self.r[0] * self.bump(s) - self.r[1] * a + self.r[2] * self.wave(mu, 2.0)


def jumping(seed, beta):
    rng = np.random.default_rng(seed)
    return Jumping(
        beta=jnp.asarray(beta),
        g=jnp.asarray(rng.uniform(0.0, 1.0, size=3)),
        c=jnp.asarray(rng.uniform(0.0, 0.05, size=3)),
        p=jnp.asarray(rng.uniform(0.0, 1.0, size=2)),
        r=jnp.asarray(rng.uniform(0.0, 1.0, size=3)),
        phase=jnp.asarray(rng.uniform(0.0, 6.0)),
        eta=jnp.asarray(rng.choice([-1.0, 1.0], size=(4, RING.n_cells))),
        zeta=jnp.asarray(rng.uniform(-1.0, 1.0, size=RING.n_cells)),
    )
