import jax
import jax.numpy as jnp
import numpy as np
import pytest
from night import at_night

from benchmarks.suite import SUITE
from mufield import make
from mufield.flow.motions import dependence
from mufield.space.measure import at_all_cells

pytestmark = pytest.mark.slow

SEES_MU = {"rooms-crowded", "city"}


@pytest.mark.parametrize("name", at_night(SUITE, (*SUITE[::4], *sorted(SEES_MU))))
def test_the_farthest_move_of_a_motion_is_the_problems_and_only_crowds_see_mu(name):
    system = make(name)
    problem, motion = system.problem, system.reveal()[1]
    grid, box = problem.grid, problem.actions
    tried = box.sample(jax.random.key(0), (grid.n_cells, 400))
    tried = jnp.concatenate([tried, jnp.broadcast_to(box.points(3), (grid.n_cells, 9, 2))], axis=1)
    nobody = jnp.zeros(grid.n_cells)  # crowds only slow agents down
    aims = jax.jit(lambda tried: at_all_cells(grid, nobody, motion, tried))(tried)
    farthest = np.abs(grid.displacement(grid.centres[:, None], np.asarray(aims))).max(axis=(0, 1))
    assert (farthest <= np.asarray(problem.max_move) * (1 + 1e-6)).all()
    assert farthest.max() > 0.95 * max(problem.max_move)
    assert dependence(problem, motion).mu == (name in SEES_MU)
