"""Problems on nodes: laws of their flow, refusals by node, action and step, and plans."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import mufield as mf
from mufield.constraints import mass_at_most
from mufield.environments.four_rooms import MOVES, uniform_legal
from mufield.finite.system import FiniteSystem
from mufield.fleet import Trips

RING = mf.Nodes.from_edges([(i, (i + 1) % 5) for i in range(5)])


def slip(node, action, mu):
    """The chosen slot with 0.7, the others with 0.15 each; crowds hold agents back."""
    hold = 0.5 * mu.here
    chosen = jnp.full(3, 0.15).at[action].add(0.55)
    return (1 - hold) * chosen + hold * jnp.array([1.0, 0.0, 0.0])


def drift(node, action, mu):
    return jnp.full(3, 0.1).at[action].add(0.7)


def spread(node, action, mu):
    return -mf.log_mass(mu.here) - 0.1 * (action > 0)


def ring_problem(**changes):
    settings = {
        "space": RING,
        "actions": ["stay", "back", "on"],
        "reward": spread,
        "horizon": 6,
        "initial": mf.point_mass(RING, 0),
    }
    return mf.Problem(**(settings | changes))


@pytest.fixture(scope="module")
def crowded():
    return mf.SimulatedSystem(ring_problem(), slip)


def test_a_graph_lists_itself_first_and_then_its_neighbours():
    road = mf.Nodes.from_edges([("a", "b"), ("b", "c")], directed=True)
    assert road.names == ("a", "b", "c")
    assert road.successors.tolist() == [[0, 1], [1, 2], [2, -1]]
    assert road == mf.Nodes("abc", successors=[["a", "b"], ["b", "c"], ["c"]])
    assert road != mf.Nodes("abc")
    numbers = mf.Nodes.from_edges([(1, 0)])  # names that are numbers are names
    assert numbers.names == ("1", "0")
    assert numbers.successors.tolist() == [[0, 1], [1, 0]]
    apart = np.linalg.norm(RING.positions[:, None] - RING.positions, axis=-1)
    assert apart[0, 1] < apart[0, 2]


def test_the_centre_of_a_star_is_drawn_in_its_middle():
    star = mf.Nodes.from_edges([("centre", leaf) for leaf in "abcdef"])
    away = np.linalg.norm(star.positions[1:] - star.positions[0], axis=1)
    assert away.max() < 1.3 * away.min()
    given = np.arange(14.0).reshape(7, 2)
    same = mf.Nodes.from_edges([("centre", leaf) for leaf in "abcdef"], positions=given)
    np.testing.assert_array_equal(same.positions, given)


def test_a_network_that_can_be_drawn_without_crossings_is():
    pairs = ["ab", "ac", "bd", "be", "ce", "da", "ea"]
    net = mf.Nodes.from_edges([tuple(pair) for pair in pairs], directed=True)
    place = dict(zip(net.names, net.positions, strict=True))

    def side(one, other, point):
        (x, y), (u, v) = place[other] - place[one], place[point] - place[one]
        return np.sign(x * v - y * u)

    for (a, b), (c, d) in itertools.combinations(pairs, 2):
        if len({a, b, c, d}) == 4:
            assert side(a, b, c) == side(a, b, d) or side(c, d, a) == side(c, d, b)


def test_a_region_is_named_by_its_nodes():
    road = mf.Nodes.from_edges([("a", "b"), ("b", "c")])
    given = mass_at_most(road, ["b", "c"], 0.3)
    numbers = mass_at_most(road, [1, 2], 0.3)
    mass = jnp.array([0.5, 0.4, 0.1])
    assert given.function(mass) == numbers.function(mass) == pytest.approx(-0.2)
    for wrong in (["d"], [["b"]], [3]):
        with pytest.raises(mf.UserError, match="expected a node, one of"):
            mass_at_most(road, wrong, 0.3)


def test_moves_that_some_nodes_lack_are_not_named_for_all():
    can = np.array([[True, True, node > 0] for node in range(5)])
    system = mf.SimulatedSystem(
        ring_problem(actions=mf.MoveSet(["stay", "back", "on"], available=can)), drift
    )
    with pytest.raises(mf.UserError, match="name no moves, so that each cell has its own"):
        mf.MoveFlow(*system.reveal(), system.problem.actions.points())
    assert mf.MoveFlow(*system.reveal()).uniform().shape == (6, 5, 3)


def test_the_flow_is_the_sum_over_nodes_actions_and_successors(crowded):
    weights = jax.random.dirichlet(jax.random.key(0), jnp.ones(3), (6, 5))
    table = mf.TablePolicy.mixing(crowded.problem.actions.moves, weights, RING)
    found = crowded.evaluate(mf.Profile.stacked(table, 6))
    mass, total = np.asarray(crowded.problem.initial, dtype=float), 0.0
    for step in range(6):
        after = np.zeros(5)
        for node in range(5):
            for action in range(3):
                part = mass[node] * weights[step, node, action]
                hold = 0.5 * mass[node]
                chosen = (1 - hold) * (np.full(3, 0.15) + 0.55 * np.eye(3)[action])
                chosen[0] += hold
                after[RING.successors[node]] += part * chosen
                total += part * (-np.log(max(mass[node], 1e-25)) - 0.1 * (action > 0))
        mass = after
        np.testing.assert_allclose(found.mass[step + 1], mass, atol=1e-12)
        np.testing.assert_allclose(found.mass[step + 1].sum(), 1.0, atol=1e-12)
    np.testing.assert_allclose(found.value, total, rtol=1e-10)


def test_derivatives_agree_with_finite_differences(crowded):
    flow, motion = crowded.reveal()
    moves = mf.MoveFlow(flow, motion, crowded.problem.actions.points())
    weights = jax.random.dirichlet(jax.random.key(1), jnp.ones(3), (6, 5))
    change = jax.random.normal(jax.random.key(2), weights.shape)
    change = change - change.mean(axis=-1, keepdims=True)
    sweep = moves.sweep(weights)
    slope = jnp.sum(sweep.rollout.mass[:-1, :, None] * change * sweep.action_values)
    ahead, behind = (moves.rollout(weights + h * change).value for h in (1e-6, -1e-6))
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-6, rtol=1e-6)


def test_agents_are_distributed_as_the_flow_says(crowded):
    policy = mf.random_policy(crowded.problem)
    many = FiniteSystem.of(crowded, 4000).evaluate(policy, jax.random.key(0), episodes=1)
    linear = mf.SimulatedSystem(ring_problem(), drift)
    expected = np.asarray(linear.evaluate(policy).mass)
    crowd = FiniteSystem.of(linear, 4000).evaluate(policy, jax.random.key(3)).mass[0]
    tracked = linear.run(policy, jax.random.key(4), agents=4000)
    for step in (2, 6):
        count = np.bincount(np.asarray(tracked.next_states)[:, step - 1, 0].astype(int))
        for observed in (4000 * np.asarray(crowd[step]), count):
            assert chisquare(observed, 4000 * expected[step]).pvalue > 1e-3
    np.testing.assert_allclose(many.values[0], crowded.evaluate(policy).value, rtol=0.02)


def wrong(change):
    """A motion that is no distribution for node 3, action 2 and step 4 alone."""

    def motion(node, action, mu):
        there = (node == 3) & (action == 2) & (mu.step == 4)
        return jnp.where(there, change(drift(node, action, mu)), drift(node, action, mu))

    return motion


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: 1.1 * p, "must sum to 1, but sums to 1.1"),
        (lambda p: p.at[:2].add(jnp.array([-0.2, 0.2])), "must not be negative, but is -0.1"),
        (lambda p: p * jnp.nan, "is NaN or infinite"),
    ],
)
def test_probabilities_are_refused_by_node_action_and_step(change, words):
    with pytest.raises(mf.UserError, match=words) as caught:
        mf.SimulatedSystem(ring_problem(), wrong(change))
    assert "node 3" in str(caught.value)
    assert "[2.0]" in str(caught.value)
    assert "step 4" in str(caught.value)


def test_what_a_motion_does_in_a_crowd_is_refused_when_a_policy_leads_there():
    def motion(node, action, mu):
        return drift(node, action, mu) * jnp.where(mu.mass[2] > 0.3, 1.1, 1.0)

    system = mf.SimulatedSystem(ring_problem(), motion)
    with pytest.raises(mf.UserError, match=r"sums to 1\.1.* node 0, .* step"):
        system.evaluate(lambda node, mu, step: jnp.array([1, 2, 0, 0, 0])[node])


def test_successors_and_shapes_that_do_not_exist_are_refused():
    road = mf.Nodes.from_edges([("a", "b"), ("b", "c")], directed=True)
    problem = ring_problem(space=road, initial=mf.point_mass(road, "a"), actions=2)
    on = lambda node, action, mu: jnp.array([0.0, 1.0])  # noqa: E731
    with pytest.raises(mf.UserError, match=r"does not exist for node c, the action \[0.0\]"):
        mf.SimulatedSystem(problem, on)
    with pytest.raises(mf.UserError, match=r"must return the shape \(2,\)"):
        mf.SimulatedSystem(problem, lambda node, action, mu: jnp.ones(3) / 3)
    with pytest.raises(mf.UserError, match="one of finitely many"):
        ring_problem(actions=mf.Box(-1.0, 1.0))
    with pytest.raises(mf.UserError, match="leave out noise"):
        ring_problem(noise=0.1)
    with pytest.raises(mf.UserError, match="expected a node"):
        mf.Nodes("abc", successors=[["a"], ["b"], ["d"]])


def test_discrete_rooms_are_the_same_as_a_grid_and_as_nodes():
    rooms = mf.make("discrete-rooms", noise_intensity=0.2, horizon=12)
    grid, known = rooms.problem.grid, rooms.problem
    legal = grid.cell_index(grid.free_cells[:, None] + np.array(MOVES))
    nodes = mf.Nodes(grid.n_cells, successors=_within_two(grid))
    slots = {(i, s): k for i, row in enumerate(nodes.successors) for k, s in enumerate(row)}
    table = np.zeros((grid.n_cells, 5, nodes.target_size))
    push = known.noise.weights(grid)
    for cell in range(grid.n_cells):
        for action in range(5):
            moved = legal[cell, action] if legal[cell, action] >= 0 else cell
            for there, chance in zip(grid.neighbours[moved], push[moved], strict=True):
                if chance:
                    table[cell, action, slots[cell, there]] += chance
    probabilities = jnp.asarray(table)
    problem = mf.Problem(
        space=nodes,
        actions=5,
        reward=lambda node, action, mu: -mf.log_mass(mu.here),
        horizon=12,
        initial=known.initial,
        pay_end=True,
    )
    system = mf.SimulatedSystem(problem, lambda node, action, mu: probabilities[node, action])
    legal_weights = uniform_legal(grid).weights
    own = mf.TablePolicy.mixing(problem.actions.moves, legal_weights, nodes)
    expected = rooms.evaluate(uniform_legal(grid))
    found = system.evaluate(own)
    np.testing.assert_allclose(found.mass, expected.mass, atol=1e-12)
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-6)


def _within_two(grid):
    near = [set(row[row >= 0].tolist()) for row in grid.neighbours]
    return [sorted(set().union(*(near[there] for there in row))) for row in near]


def test_moves_that_a_node_does_not_have_are_neither_planned_nor_drawn():
    mask = np.ones((5, 3), dtype=bool)
    mask[0, 0] = mask[3, 1:] = False
    problem = ring_problem(actions=mf.MoveSet(3, available=mask))
    system = mf.SimulatedSystem(problem, drift)
    plan = mf.MirrorPlanner(sweeps=20).plan(
        *system.reveal(), problem.actions, jax.random.key(0), None
    )
    episode = system.run(plan.profile, jax.random.key(1), agents=200)
    for node, action in zip(episode.states.ravel(), episode.actions.ravel(), strict=True):
        assert mask[int(node), int(action)]
    with pytest.raises(mf.UserError, match=r"action \[0.\] at step 0 in the node 0 is outside"):
        system.evaluate(lambda node, mu, step: 0)
    assert float(mf.random_policy(problem).weights[0, 0]) == 0


def test_a_concave_problem_is_planned_to_its_certified_optimum():
    system = mf.SimulatedSystem(ring_problem(), drift)
    flow, motion = system.reveal()
    moves = mf.MoveFlow(flow, motion, system.problem.actions.points())
    found = mf.MirrorAscent(sweeps=120).solve(moves)
    bound = mf.certify(flow, motion, found.profile, system.problem.actions.points())
    assert 0 <= bound.gap < 1e-3 * abs(bound.value)
    assert bound.value > system.evaluate(mf.random_policy(system.problem)).value
    limit = mass_at_most(RING, [0], 0.25, steps=(6,))
    kept = mf.SimulatedSystem(ring_problem(constraints=limit), drift)
    moves = mf.MoveFlow(*kept.reveal(), kept.problem.actions.points())
    assert float(mf.MirrorAscent(sweeps=120).solve(moves).margins.min()) > -1e-3


def test_nan_is_called_so_where_lists_of_successors_end_earlier():
    road = mf.Nodes.from_edges([("a", "b"), ("b", "c")])
    first = jnp.array([1.0, 0.0, 0.0])
    problem = ring_problem(space=road, initial=mf.point_mass(road, "a"))

    def broken(node, action, mu):
        return jnp.where(mu.step == 2, jnp.nan, first)

    with pytest.raises(mf.UserError, match=r"is NaN or infinite for node a, .* step 2"):
        mf.SimulatedSystem(problem, broken)


def test_a_discount_counts_later_rewards_less_and_chooses_a_horizon():
    plain = mf.SimulatedSystem(ring_problem(), drift)
    policy = mf.random_policy(plain.problem)
    rewards = plain.evaluate(policy).rewards
    less = mf.SimulatedSystem(ring_problem(discount=0.5), drift).evaluate(policy)
    np.testing.assert_allclose(less.rewards, rewards * 0.5 ** np.arange(6), rtol=1e-12)
    forever = ring_problem(discount=0.6, horizon=None)
    assert 0.6**forever.horizon <= 1e-3 < 0.6 ** (forever.horizon - 1)
    system = mf.SimulatedSystem(forever, drift)
    moves = mf.MoveFlow(*system.reveal(), forever.actions.points())
    found = mf.MirrorAscent(sweeps=60).solve(moves)
    assert found.profile.per_step is None  # one policy for all steps
    np.testing.assert_allclose(system.evaluate(found.profile).value, found.value, rtol=1e-9)
    assert system.evaluate(policy).value < found.value <= found.upper
    with pytest.raises(mf.UserError, match="the discount must be below 1"):
        ring_problem(horizon=None)


def test_trips_and_the_rest_of_an_episode_work_on_nodes():
    home = np.tile(np.eye(5)[2], (5, 1))
    trips = Trips(lambda node, mu: jnp.where(node == 1, 0.5, 0.0), home)
    system = mf.SimulatedSystem(ring_problem(trips=trips), drift)
    policy = mf.random_policy(system.problem)
    mass = system.evaluate(policy).mass
    np.testing.assert_allclose(mass.sum(axis=1), 1.0, atol=1e-12)
    assert float(mass[2, 2]) > float(mass[2, 3])
    rest = system.from_step(3, mass[3]).evaluate(policy)
    np.testing.assert_allclose(rest.mass[-1], mass[-1], atol=1e-12)
    episode = system.run(policy, jax.random.key(0), agents=50)
    assert np.all(np.asarray(episode.next_states)[np.asarray(episode.carried), 0] == 2)


def test_policies_on_nodes_are_kept_in_files(tmp_path, crowded):
    weights = jax.random.dirichlet(jax.random.key(0), jnp.ones(3), (6, 5))
    table = mf.TablePolicy.mixing(crowded.problem.actions.moves, weights, RING)
    profile = mf.Profile.stacked(table, 6)
    mf.save_policy(tmp_path / "policy.safetensors", profile)
    loaded = mf.load_policy(tmp_path / "policy.safetensors")
    assert crowded.evaluate(loaded).value == crowded.evaluate(profile).value
    other = mf.Nodes.from_edges([(i, (i + 2) % 5) for i in range(5)])
    with pytest.raises(mf.UserError, match="another map"):
        mf.Flow(ring_problem(space=other, initial=mf.uniform(other))).rollout(loaded, drift)
