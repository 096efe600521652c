"""Wrong types and strings at the boundary end in an error that says what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mufield
from mufield.cli import main

SLIPS = {
    "mf.Grid.box('a', 1.0, 3)": "lower must be real numbers, got 'a'",
    "mf.Grid.box(0.0, None, 3)": "upper must be real numbers, got None",
    "mf.Grid.box(0.0, 1.0, '3')": "shape must be real numbers, got '3'",
    "mf.Grid.box(0.0, 1.0, 3.5)": "whole number of at least 1, got 3.5",
    "mf.Grid.box(0.0, 1.0, (3, None))": "one whole number of cells for each axis",
    "mf.Grid.box(0.0, 1.0, 3, periodic='no')": "periodic must be real numbers, got 'no'",
    "mf.Grid.box(0.0, 1.0, 3, walls='..#')": "walls must be real numbers",
    "mf.Grid.from_map(3)": "a drawing of '#' and '.'",
    "mf.Grid.from_map(np.zeros((3, 3)))": "Grid.box(..., walls=mask)",
    "mf.Grid.from_map('..', cell_size='a')": "cell_size must be real numbers",
    "mf.point_mass(grid, 'a', 0)": "whole coordinates",
    "mf.point_mass(grid, 0.5, 0)": "whole coordinates",
    "mf.point_mass(grid, (0, 0))": "whole coordinates",
    "mf.point_mass('..', 0)": "make it with Grid.box or Grid.from_map",
    "mf.uniform(3)": "make it with Grid.box or Grid.from_map",
    "mf.from_density(grid, 'abc')": "the density must be real numbers",
    "mf.histogram(grid, 'abc')": "positions must be real numbers",
    "mf.GaussianNoise('a')": "standard deviation must be real numbers",
    "mf.NeighbourNoise('a')": "the noise intensity must be real numbers",
    "mf.policies.Pooled('a')": "whole number of at least 1, got 'a'",
    "mf.Profile.stacked(lambda state, mu, step: state, 3)": "must be of type AbstractPolicy",
    "mf.Profile.stationary('rest', 3)": "must be of type AbstractPolicy",
    "mf.Profile.stacked(mf.TablePolicy.deterministic(np.zeros((3, 5, 2))), '3')": "got '3'",
    "rooms.evaluate(3)": "a function (state, mu, step) -> action, got int",
    "mf.TablePolicy('a', 'b')": "must be an array with at least 3 axes, got str",
    "mf.TablePolicy(np.zeros((5, 2)), np.ones((5, 1)))": "use TablePolicy.deterministic",
    "mf.TablePolicy(np.zeros((5, 1, 2)), np.ones((5, 1)), 'x')": "the space must be of type Grid",
    "mf.TablePolicy.deterministic('a')": "actions must be real numbers",
    "mf.TablePolicy.mixing([1.0, 2.0], [[0.5, 0.5]])": "at least 2 axes, got (2,)",
    "mf.make(3)": "no system is named 3; there are beach-bar",
    "mf.make(['four-rooms'])": "there are beach-bar",
    "mf.make('four-rooms', noise_std='a')": "standard deviation must be real numbers, got 'a'",
    "mf.make('four-rooms', drawing=3)": "a drawing of '#' and '.'",
    "mf.make('four-rooms', horizon=10**9)": "take a shorter horizon",
    "mf.SimulatedSystem(rooms.problem, lambda s, a, mu: s + 1j * a)": "complex",
    "mf.plan(rooms.reveal()[0], lambda s, a, mu: s + 1j * a)": "real numbers, got complex",
    "mf.plan(rooms.reveal()[0], lambda s, a, mu: s + 1j * a, random=True)": "got complex",
    "mf.MoveFlow(rooms.reveal()[0], lambda s, a, mu: s + 1j * a)": "real numbers, got complex",
    "rooms.reveal()[0].rollout(rest, lambda s, a, mu: s + 1j * a)": "real numbers, got complex",
    "mf.make('swarm', cells='a')": "shape must be real numbers",
    "mf.make('discrete-rooms', actions=[1])": "actions must be one of",
    "mf.GaussianProcess(prior='structured')": "AbstractPrior or AbstractKernel, got 'structured'",
    "mf.GaussianProcess(beta='theory')": "beta must be real numbers, got 'theory'",
    "mf.GaussianProcess(mu='local')": "mu must be one of Unseen()",
    "mf.DeepEnsemble(beta='theory')": "beta must be real numbers, got 'theory'",
    "mf.DeepEnsemble(mu='local')": "mu must be one of Unseen()",
    "mf.DeepEnsemble(members='many')": "members must be a whole number of at least 2",
    "mf.Nodes(3.0)": "nodes need names, each another one; got 3.0",
    "mf.Nodes([['a'], ['b']])": "nodes need names",
    "mf.Nodes.from_edges([1, 2])": "edges must be pairs of nodes",
    "mf.Nodes.from_edges([([1], 2)])": "edges must be pairs of nodes",
    "mf.Nodes(3, successors=np.array([[0.5], [1], [2]]))": "successor 0.5 does not exist: 3 nodes",
    "mf.Nodes(3, successors=[0, 1, 9])": "expected a node, one of",
    "mf.Nodes(2, positions=[[0, np.nan], [1, 1]])": "the nodes' positions must be finite",
    "mf.plan(rooms.problem, None)": "the flow must be of type Flow, got",
    "mf.register(3, 'a number')": "the name of a system must be of type str",
    "mf.register('mine', len)": "the summary of a system must be of type str",
    "mf.register('mine', 'no function')(3)": "register decorates functions, got int",
    "moving(lambda s, a, mu: s + 0.1 * random.normal(size=2))": "the motion computes with other",
    "moving(lambda s, a, mu: s + random.random() * a)": "noise belongs in noise=",
    "paying(lambda s, a, mu: s[0] * random.random())": "the reward computes with other numbers",
    "moving(lambda s, a, mu: 0.1 * a)": "is `state +` missing?",
    "paying(lambda s, a, mu: jnp.sqrt(s[0] - 3))": "take roots and logarithms of jnp.maximum",
    "paying(lambda s, a, mu: math.exp(s[0]))": "use jnp.exp in place of math.exp",
    "paying(lambda s, a, mu: mu[0])": "mu is no array; take mu.mass",
    "paying(lambda s, a, mu: mu.density)": "mu has no density; it has mass, here, density_here",
    "mf.learn(rooms, agents=0)": "the number of tracked agents must be a whole number",
    "mf.learn(rooms, mf.M3UCRL(mf.make('four-rooms', horizon=3).problem))": "learner plans 3 steps",
    "mf.MirrorAscent().solve(rooms.problem)": "write solve(mufield.MoveFlow(*system.reveal()))",
    "mf.MoveFlow(*rooms.reveal(), 9)": "problem.actions.points(9) lists some",
    "mf.MoveFlow(rooms)": "write MoveFlow(*system.reveal())",
    "mf.MoveFlow(rooms.reveal()[0])": "the motion NoneType must be a function (state, action, mu)",
    "mf.save_policy('no/such/dir/x', rest)": "there is no directory no/such/dir; make it first",
    "rooms.evaluate(Aims())": "what Aims.law returns must be of type ActionLaw",
    "mf.M3UCRL(rooms.problem, Family()).init(0)": "Three.predict must return a Prediction whose",
    "rooms.reveal()[0].rollout(rest, Three().predict)": "motion Three.predict must be a function",
    "mf.make('four-room')": "did you mean four-rooms?",
}

SCRIPT = """
import json, math, sys
import jax
import jax.numpy as jnp
import numpy as np
import mufield as mf
grid = mf.Grid.from_map("...\\n.#.")
rooms = mf.make("four-rooms", horizon=2)
rest = mf.Profile.stationary(mf.TablePolicy(np.zeros((104, 1, 2)), np.ones((104, 1))), 2)
random = np.random.default_rng(0)
def paying(reward, motion=lambda s, a, mu: s):
    problem = mf.Problem(
        space=grid, actions=mf.Box(-1.0, 1.0, dim=2), reward=reward, horizon=2,
        initial=mf.uniform(grid), noise=0.1, max_move=0.5,
    )
    return mf.SimulatedSystem(problem, motion)
def moving(motion):
    return paying(lambda s, a, mu: s[0], motion)
class Aims(mf.policies.AbstractPolicy):
    def law(self, state, mu):
        return jnp.zeros(2)
class Three(mf.models.AbstractModel):
    beta: float = 1.0
    def predict(self, state, action, mu):
        return mf.models.Prediction(jnp.zeros(3), jnp.zeros(3), jnp.ones(3))
class Family(mf.models.AbstractModelFamily):
    def fit(self, data, key):
        return Three()
found = {}
for slip in json.loads(sys.argv[1]):
    try:
        found[slip] = ["no error", repr(eval(slip))]
    except Exception as error:
        found[slip] = [type(error).__name__, str(error)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    """Errors in a Python of its own: at test time, annotations are checked before our code is."""
    source = Path(mufield.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(list(SLIPS))],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_answered_in_words(slip, found):
    kind, message = found[slip]
    assert kind == "UserError", message
    assert SLIPS[slip] in message


def test_a_seed_is_a_key():
    rooms = mufield.make("four-rooms", horizon=2)
    policy = mufield.random_policy(rooms.problem)
    by_seed, by_key = rooms.run(policy, 3), rooms.run(policy, jax.random.key(3))
    np.testing.assert_array_equal(by_seed.states, by_key.states)


def test_a_command_that_is_not_there_is_answered_with_the_nearest(capsys):
    assert main(["trian", "four-rooms"]) == 2
    assert "did you mean train?" in capsys.readouterr().err


def test_frozen_numbers_are_no_noise():
    """Tables and keys that a function holds are the same at every call."""
    table, key = np.arange(2.0), jax.random.key(0)

    def motion(state, action, mu):
        wind = 0.01 * jax.random.normal(key, (2,)) * jnp.asarray(table)
        return state + 0.5 * action + wind

    problem = mufield.make("four-rooms", horizon=2).problem
    mufield.SimulatedSystem(problem, motion)
