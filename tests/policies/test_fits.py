"""A policy for another map or other actions is refused, wherever it is used."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from helpers import walk, walking_problem
from night import at_night

from mufield import (
    Box,
    Flow,
    Grid,
    Profile,
    SimulatedSystem,
    TablePolicy,
    UserError,
    load_policy,
    save_policy,
)
from mufield.deploy.export import describe
from mufield.finite.system import FiniteSystem
from mufield.flow.moves import MoveFlow
from mufield.policies import Pooled, network_profile
from mufield.policies.base import checked_profile

WIDE, HIGH = Grid.box(0.0, (6.0, 2.0), (6, 2)), Grid.box(0.0, (4.0, 3.0), (4, 3))


def problem_on(grid):
    return walking_problem(grid, horizon=2)


def table(problem):
    moves = MoveFlow(Flow(problem), walk, problem.actions.points(3))
    return moves.profile(moves.uniform())


@pytest.fixture(params=["table", "blind network", "network"])
def policy(request, tmp_path):
    """A policy for 6 x 2 cells, from a file; the other map has as many."""
    problem = problem_on(WIDE)
    if request.param == "table":
        made = table(problem)
    else:
        sees = {} if request.param == "blind network" else {"mu": Pooled(2)}
        made = network_profile(problem, jax.random.key(0), width=3, depth=1, **sees)
    save_policy(tmp_path / "saved.policy", made)
    return load_policy(tmp_path / "saved.policy")


USES = {
    "evaluate": lambda policy, problem: SimulatedSystem(problem, walk).evaluate(policy),
    "run": lambda policy, problem: SimulatedSystem(problem, walk).run(policy, jax.random.key(0)),
    "finite": lambda policy, problem: FiniteSystem.of(SimulatedSystem(problem, walk), 10).evaluate(
        policy, jax.random.key(0)
    ),
    "flow": lambda policy, problem: Flow(problem).rollout(policy, walk),
    "export": lambda policy, problem: describe(policy, problem),
}


@pytest.mark.parametrize("use", at_night(list(USES), ["evaluate", "finite", "export"]))
def test_a_policy_for_another_map_of_as_many_cells_is_refused(use, policy):
    assert WIDE.n_cells == HIGH.n_cells
    USES[use](policy, problem_on(WIDE))
    with pytest.raises(UserError, match=r"another map than this: for 6 x 2 .* this is 4 x 3 cells"):
        USES[use](policy, problem_on(HIGH))


def test_maps_that_differ_only_in_their_walls_are_told_apart_in_words():
    one, other = (Grid.from_map(drawing) for drawing in ("..#\n...", "#..\n..."))
    with pytest.raises(UserError, match=r"walls differ in 2 cells, first in \("):
        checked_profile(table(problem_on(one)), problem_on(other))


@pytest.mark.parametrize("use", ["evaluate", "run", "finite"])
def test_a_table_for_a_wider_box_is_not_told_to_clip(use):
    problem = problem_on(WIDE)
    narrow = eqx.tree_at(lambda p: p.actions, problem, Box(-0.1, 0.1, dim=2))
    wide = TablePolicy.deterministic(jnp.full((WIDE.n_cells, 2), 0.5), WIDE)
    with pytest.raises(UserError, match="made for other actions: name the options") as caught:
        USES[use](wide, narrow)
    assert "jnp.clip" not in str(caught.value)
    with pytest.raises(UserError, match=r"clip or squash it, for example with jnp\.clip"):
        USES[use](lambda state, mu, step: jnp.full(2, 0.5), narrow)


def test_a_policy_for_other_actions_is_refused():
    problem = problem_on(WIDE)
    made = network_profile(problem, jax.random.key(0), width=3, depth=1)
    assert checked_profile(made, problem) is made
    for actions, policy, message in (
        (Box(-2.0, 2.0, dim=2), made, "made for other actions"),
        (Box(-1.0, 1.0, dim=1), table(problem), "actions have 2 axes, and the problem's 1"),
    ):
        with pytest.raises(UserError, match=message):
            checked_profile(policy, eqx.tree_at(lambda p: p.actions, problem, actions))


def test_files_of_the_first_version_have_no_grid_and_are_read(tmp_path):
    problem = problem_on(WIDE)
    assert table(problem).shared.grid == WIDE
    old = TablePolicy.deterministic(jnp.zeros((2, WIDE.n_cells, 2)))
    save_policy(tmp_path / "old.policy", Profile.stacked(old, 2))
    found = load_policy(tmp_path / "old.policy")
    assert found.shared.grid is None
    assert checked_profile(found, problem) is found
