"""A corridor that is learned within seconds, and small settings."""

from functools import lru_cache

import jax.numpy as jnp
from helpers import walk, walking_problem

from mufield import (
    GradientPlanner,
    Grid,
    MirrorPlanner,
    Network,
    SimulatedSystem,
    Table,
    point_mass,
)
from mufield.models.base import AbstractModel, AbstractModelFamily, Prediction
from mufield.models.ensemble import DeepEnsemble
from mufield.policies.encoders import Unseen

FAMILY = DeepEnsemble(members=3, width=8, steps=60, mu=Unseen(), beta=2.0)
MIRROR = MirrorPlanner(points=5, sweeps=15)
SHORT = {"steps": 6, "table_steps": 4, "fit_steps": 5, "sweeps": 5, "points": 3}
TABLE = GradientPlanner(Table(), **SHORT)
NETWORK = GradientPlanner(Network(width=4, depth=1), **SHORT)


@lru_cache
def corridor():
    grid = Grid.box(0.0, 6.0, 6)
    problem = walking_problem(grid, horizon=4, initial=point_mass(grid, 0), pay_end=True)
    return SimulatedSystem(problem, walk)


class Sure(AbstractModel):
    """A model that claims to know: the mean is ``gain * a``, the spread the same everywhere."""

    beta: jnp.ndarray
    gain: jnp.ndarray
    spread: jnp.ndarray

    def predict(self, state, action, mu):
        return Prediction(
            mean=state + self.gain * action,
            epistemic=jnp.broadcast_to(self.spread, state.shape),
            aleatoric=jnp.full_like(state, 0.25),
        )


class SureFamily(AbstractModelFamily):
    """Fits nothing."""

    gain: float = 1.0
    spread: float = 0.1
    fails_from: int = 10**6

    def fit(self, data, key):
        if len(data) >= self.fails_from:
            raise FloatingPointError("too many transitions")
        return sure(self.gain, self.spread)


def sure(gain=1.0, spread=0.1, beta=2.0):
    return Sure(jnp.asarray(beta), jnp.asarray(gain), jnp.asarray(spread))
