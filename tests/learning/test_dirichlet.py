"""Learning unknown probabilities on nodes: counts, credible sets, optimism, whole runs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_matrix

import mufield as mf
from mufield.finite.system import FiniteSystem
from mufield.learning.optimism import HallucinatedMotion
from mufield.models import DirichletCounts
from mufield.models.data import PopulationMoves, Transitions
from mufield.models.mixtures import Crowd, Evidence, _conditioned, most_probable
from mufield.space.measure import mean_field_at

NODES = mf.Nodes.from_edges([(0, 1), (1, 2)])


def problem(**changes):
    settings = {
        "space": NODES,
        "actions": 2,
        "reward": lambda node, action, mu: 1.0 * (node == 2),
        "horizon": 4,
        "initial": mf.point_mass(NODES, 0),
    }
    return mf.Problem(**(settings | changes))


def rows(known, moves, mass=None, step=None):
    """Transitions (node, action, next node)."""
    moves = np.asarray(moves, dtype=float)
    count = len(moves)
    return Transitions(
        problem=known,
        states=moves[:, :1],
        actions=moves[:, 1:2],
        next_states=moves[:, 2:],
        observed=np.ones((count, 1), dtype=bool),
        mass=np.full((count, 3), 1 / 3) if mass is None else mass,
        moment=np.arange(count),
        step=np.zeros(count, dtype=int) if step is None else step,
    )


def at(model, node, action, mass=None, step=0):
    mass = jnp.full(3, 1 / 3) if mass is None else jnp.asarray(mass)
    state = jnp.array([float(node)])
    return model.predict(state, jnp.array([float(action)]), mean_field_at(NODES, mass, state, step))


def test_the_mean_is_the_prior_and_the_counts():
    moves = [(0, 1, 1)] * 3 + [(0, 1, 0)]
    model = DirichletCounts(prior=1.0).fit(rows(problem(), moves), jax.random.key(0))
    found = at(model, 0, 1)
    # Slots of node 0: itself, node 1, and none.
    np.testing.assert_allclose(found.mean, [1.005 / 4.01, 3.005 / 4.01, 0.0])
    share = (5.01 * found.mean[0] + 0.5) / 6.01
    np.testing.assert_allclose(found.epistemic[0], np.sqrt(share * (1 - share) / 6.01))
    np.testing.assert_allclose(at(model, 1, 0).mean, np.full(3, 1 / 3))
    with pytest.raises(mf.UserError, match="from node 0 to node 2 was observed"):
        DirichletCounts().fit(rows(problem(), [(0, 0, 2)]), jax.random.key(0))


def test_pairs_of_one_group_share_their_counts():
    groups = np.array([[0, 1], [2, 1], [3, 4]])
    family = DirichletCounts(prior=1.0, groups=groups)
    model = family.fit(rows(problem(), [(0, 1, 1)] * 9), jax.random.key(0))
    assert float(at(model, 1, 1).mean[1]) > 0.9
    with pytest.raises(mf.UserError, match=r"of the shape \(3, 2\)"):
        DirichletCounts(groups=np.zeros(3, int)).fit(
            rows(problem(), [(0, 1, 1)]), jax.random.key(0)
        )


def test_a_dependence_on_mu_or_the_hour_is_found_where_there_is_one():
    rng, known = np.random.default_rng(0), problem(horizon=20)
    crowd = rng.uniform(0, 1, 300)
    mass = np.stack([crowd, 1 - crowd, 0 * crowd], axis=1)
    moved = rng.uniform(size=300) < crowd
    seen = rows(known, [(0, 1, int(m)) for m in moved], mass)
    model = DirichletCounts().fit(seen, jax.random.key(0))
    assert model.finding in ("mu", "own mass")
    few, many = (float(at(model, 0, 1, [c, 1 - c, 0]).mean[1]) for c in (0.1, 0.9))
    assert few < 0.3 < 0.7 < many
    hour = rng.integers(0, 20, 300)
    later = rows(known, [(0, 1, int(h > 9)) for h in hour], step=hour)
    model = DirichletCounts().fit(later, jax.random.key(0))
    assert float(at(model, 0, 1, step=18).mean[1]) > 0.9 > 0.1 > float(at(model, 0, 1).mean[1])
    plain = rows(known, [(0, 1, int(rng.uniform() < 0.5)) for _ in range(300)], mass)
    assert DirichletCounts().fit(plain, jax.random.key(0)).finding == ""


def test_crowds_that_were_never_seen_stay_uncertain():
    rng, known = np.random.default_rng(0), problem()
    crowd = rng.uniform(0.6, 0.63, 600)
    mass = np.stack([1 - crowd, crowd, 0 * crowd], axis=1)
    seen = rows(known, [(0, 1, int(m)) for m in rng.uniform(size=600) < 0.8 * crowd], mass)
    model = DirichletCounts().fit(seen, jax.random.key(0))
    new, old = (at(model, 0, 1, [1 - c, c, 0]) for c in (0.0, 0.6))
    assert float(old.epistemic[1]) < 0.03
    assert float(new.epistemic[1]) > 5 * float(old.epistemic[1])


def test_a_motion_linear_in_mu_is_known_in_crowds_beyond_those_seen():
    rng, known = np.random.default_rng(1), problem()
    crowd = rng.uniform(0.3, 0.8, 4000)
    mass = np.stack([1 - crowd, crowd, 0 * crowd], axis=1)
    seen = rows(known, [(0, 1, int(m)) for m in rng.uniform(size=4000) < 0.8 * crowd], mass)
    model = DirichletCounts().fit(seen, jax.random.key(0))
    assert model.finding == "mu"
    for c in (0.0, 0.5, 1.0):
        np.testing.assert_allclose(at(model, 0, 1, [1 - c, c, 0]).mean[1], 0.8 * c, atol=0.06)


def test_what_is_alike_in_other_nodes_is_found_and_what_differs_is_not_pooled():
    ring = np.stack([(np.arange(8) + d) % 8 for d in (-1, 0, 1)], axis=1)
    nodes = mf.Nodes(8, successors=ring)
    known = problem(space=nodes, initial=mf.point_mass(nodes, 0))
    # Action 0 goes back everywhere but in node 7, where it goes on; node 3 was never left.
    moves = [(s, 0, (s + (1 if s == 7 else -1)) % 8) for s in range(8) if s != 3] * 4
    seen = rows(known, moves, mass=np.full((len(moves), 8), 1 / 8))
    model = DirichletCounts().fit(seen, jax.random.key(0))

    def first_successor(node):
        state = jnp.array([float(node)])
        where = mean_field_at(nodes, jnp.full(8, 1 / 8), state, 0)
        return float(model.predict(state, jnp.zeros(1), where).mean[0])

    assert first_successor(3) > 0.9
    assert first_successor(7) < 0.2


def test_an_action_never_tried_is_not_taken_to_be_known_from_a_node_that_is_little_alike():
    known = problem(space=mf.Nodes(2), initial=np.array([0.4, 0.6]))
    counts = {(0, 0): (93, 98), (1, 0): (98, 220), (1, 1): (2, 7)}
    moves = [
        (*pair, end) for pair, seen in counts.items() for end in (0, 1) for _ in range(seen[end])
    ]
    seen = rows(known, moves, mass=np.tile([0.4, 0.6], (len(moves), 1)))
    model, state = DirichletCounts().fit(seen, jax.random.key(0)), jnp.zeros(1)
    mu = mean_field_at(known.grid, jnp.array([0.4, 0.6]), state, 0)
    found = model.predict(state, jnp.ones(1), mu)
    # Optimism believes of the action never tried whatever is worth most.
    motion = HallucinatedMotion(model, None, known.grid, (1.0,), 1)
    for successor in (0, 1):
        raised = motion.hallucinate(state, found, jnp.array([successor + 1.0]))
        assert raised[successor] > 0.9


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["sis", "beach-bar"])
def test_learning_comes_close_to_the_optimum(name):
    system = mf.make(name)
    moves = mf.MoveFlow(*system.reveal(), system.problem.actions.points())
    high = mf.MirrorAscent(sweeps=300).solve(moves).value
    low = system.evaluate(mf.random_policy(system.problem)).value
    last = mf.learn(system, episodes=10, agents=10, progress=False).metrics[-1].value
    assert (last - low) / (high - low) > 0.9


def test_eta_moves_what_the_credible_set_allows_to_one_successor():
    model = DirichletCounts().fit(rows(problem(), [(1, 0, 0), (1, 0, 1)] * 5), jax.random.key(0))
    found, state = at(model, 1, 0), jnp.array([1.0])
    motion = HallucinatedMotion(model, 1.0, problem().grid, (1.0,), 1)
    np.testing.assert_allclose(motion.hallucinate(state, found, jnp.zeros(1)), found.mean)
    raised = motion.hallucinate(state, found, jnp.array([3.0]))
    np.testing.assert_allclose(raised[2], found.mean[2] + 2.0 * found.epistemic[2])
    np.testing.assert_allclose(raised.sum(), 1.0)
    np.testing.assert_allclose(raised[0] / raised[1], found.mean[0] / found.mean[1])
    ends = motion.hallucinate(jnp.array([0.0]), at(model, 0, 0), jnp.array([3.0]))
    np.testing.assert_allclose(ends, at(model, 0, 0).mean)  # node 0 has no third successor


@pytest.mark.parametrize("optimism", [mf.Hallucinated(), mf.Thompson(), mf.Bonus(), mf.Greedy()])
def test_every_optimism_learns_left_and_right(optimism):
    system = mf.make("left-right")
    learner = mf.M3UCRL(system.problem, optimism=optimism, planner=mf.MirrorPlanner(sweeps=30))
    result = mf.learn(system, learner, episodes=4, agents=10, progress=False)
    assert result.metrics[-1].value > -2 / 3 - 0.01


def test_models_that_need_coordinates_refuse_nodes():
    for family in (mf.GaussianProcess(), mf.DeepEnsemble()):
        with pytest.raises(mf.UserError, match="nodes have no coordinates"):
            mf.M3UCRL(problem(), family)
    with pytest.raises(mf.UserError, match="needs nodes, not a grid"):
        mf.M3UCRL(mf.make("four-rooms").problem, DirichletCounts())


def masses_alone(shares, agents=np.inf, seed=0):
    """True probabilities on three nodes, and the model of who saw masses, but no single agent.

    ``shares`` are those of the second action, by moment and node.
    """
    rng, count = np.random.default_rng(seed), len(shares)
    chances = rng.dirichlet(np.ones(3), size=(3, 2))
    mass = rng.dirichlet(np.ones(3), size=count)
    joint = mass[..., None] * np.stack([1 - shares, shares], axis=-1)
    after = np.einsum("tsa,saj->tj", joint, chances)
    if np.isfinite(agents):
        after = rng.multinomial(agents, after) / agents
    known = problem(space=mf.Nodes(3), initial=np.full(3, 1 / 3))
    moments = np.arange(count)
    moves = PopulationMoves(joint, after, np.full(count, float(agents)), moments, 0 * moments)
    seen = replace(Transitions.empty(known), mass=mass, population=moves)
    model, mu = DirichletCounts().fit(seen, jax.random.key(0)), jnp.asarray(mass[0])
    every = [
        model.predict(state, jnp.array([float(a)]), mean_field_at(known.grid, mu, state, 0))
        for s in range(3)
        for a in range(2)
        for state in [jnp.array([float(s)])]
    ]
    means, widths = (np.array([getattr(p, n) for p in every]) for n in ("mean", "epistemic"))
    return chances.reshape(6, 3), means, widths


@pytest.mark.parametrize("agents", [np.inf, 1000])
def test_masses_teach_what_they_identify_and_leave_the_rest_uncertain(agents):
    shares = np.random.default_rng(1).uniform(size=(200, 3))
    true, found, width = masses_alone(shares, agents)
    np.testing.assert_allclose(found, true, atol=0.02 if np.isinf(agents) else 0.08)
    assert np.mean(np.abs(found - true) <= 2 * width + 1e-3) > 0.9
    # Two actions that are always mixed alike cannot be told apart, only their mixture.
    _, fixed, wide = masses_alone(np.full((200, 3), 0.5), agents)
    np.testing.assert_allclose(
        fixed.reshape(3, 2, 3).mean(1), true.reshape(3, 2, 3).mean(1), atol=0.05
    )
    assert wide.min() > 3 * width.max()
    assert np.mean(np.abs(fixed - true) <= 2 * wide) > 0.9


def test_the_slope_of_the_fit_is_that_of_the_probability():
    rng = np.random.default_rng(0)
    groups, reach = np.array([[0, 1], [2, 0]]), csr_matrix(np.tile(np.eye(2), (2, 1)))
    crowd = Crowd(rng.uniform(size=(2, 5, 2, 3)), rng.uniform(size=(2, 5)), reach, groups, None)
    group, slot = rng.integers(0, 3, 7), rng.integers(0, 2, 7)
    seen = Evidence(group, slot, rng.dirichlet(np.ones(3), 7), np.arange(7), crowd)
    found, step = rng.dirichlet(np.ones(2), size=(3, 3)).swapaxes(1, 2), 1e-6
    for place in np.ndindex(found.shape):
        near = found.copy()
        near[place] += step
        slope = (seen.expected(near)[1] - seen.expected(found)[1]) / step
        np.testing.assert_allclose(seen.expected(found)[0][place], slope * found[place], rtol=1e-3)


@pytest.mark.parametrize("alone", [0.0, 1e-6, 3.0])
def test_the_fit_is_the_most_probable_wherever_its_prior_puts_it_at_first(alone):
    rng = np.random.default_rng(0)
    groups, reach = np.array([[0], [1]]), csr_matrix(np.tile(np.eye(2), (2, 1)))
    true = rng.dirichlet(np.ones(2), size=(2, 3)).swapaxes(1, 2)
    joint = rng.dirichlet(np.ones(6), size=40).reshape(40, 2, 1, 3).swapaxes(0, 1)
    after = np.einsum("stak,sjk->jt", joint, true)
    crowd = Crowd(joint, 1000 * after, reach, groups, np.arange(40))
    seen = Evidence(groups[:0, 0], groups[:0, 0], np.zeros((0, 3)), groups[:0, 0], crowd)
    # Pseudo-counts nearly all on one successor are to be overruled by what was seen.
    around = np.full((2, 2, 3), 1e-3) + np.array([alone, 0.0])[:, None]

    def density(found):
        return seen.expected(found)[1] + np.sum(around * np.log(found))

    best = density(most_probable(seen, around, 1000))
    assert best + 0.1 >= density(true)
    for _ in range(100):
        other = rng.dirichlet(np.ones(2), size=(2, 3)).swapaxes(1, 2)
        assert best + 0.1 >= density(other)
        assert best + 0.1 >= density(0.999 * true + 0.001 * other)


def test_few_and_many_moments_condition_alike():
    rng = np.random.default_rng(0)
    given, root = rng.uniform(size=(3, 8, 2)), rng.normal(size=(3, 2, 2))
    known, noise = root @ root.swapaxes(1, 2) + np.eye(2), rng.uniform(0.1, 1.0, 8)
    few = _conditioned(given[:, :5], known, noise[:5])
    # Moments with endless noise say nothing, but there are more of them than numbers.
    many = _conditioned(given, known, np.concatenate([noise[:5], np.full(3, 1e12)]))
    np.testing.assert_allclose(few, many, rtol=1e-6)


def test_systems_say_whose_mass_they_have_and_scouts_among_few_do_not():
    system = mf.make("sis", horizon=5)
    policy, key = mf.random_policy(system.problem), jax.random.key(0)
    seen = system.run(policy, key)
    assert float(seen.population) == np.inf
    np.testing.assert_allclose(seen.joint.sum(-1), seen.mass[:-1], rtol=1e-6)
    few = FiniteSystem.of(system, 50)
    assert float(few.run(policy, key).population) == 50
    assert few.run(policy, key, scouts=policy).joint is None
    assert system.run(policy, key, scouts=policy).joint is not None
    known, empty = system.problem, Transitions.empty(system.problem)
    assert empty.append(replace(seen, joint=None)).population is None
    both = empty.append(seen).join(empty.append(seen))
    np.testing.assert_array_equal(both.population.moment, np.arange(10))
    np.testing.assert_array_equal(both.first(3).population.moment, np.arange(3))
    with pytest.raises(mf.UserError, match="add up to the mass"):
        replace(seen, joint=0.9 * seen.joint).check(known)
    with pytest.raises(mf.UserError, match="how many agents"):
        replace(seen, population=None).check(known)
