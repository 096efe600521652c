"""Wrong types and strings at the boundary end in an error that says what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mufield

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
    "mf.register('mine', 'no function')(3)": "register decorates a function, got int",
}

SCRIPT = """
import json, sys
import numpy as np
import mufield as mf
grid = mf.Grid.from_map("...\\n.#.")
rooms = mf.make("four-rooms", horizon=2)
rest = mf.Profile.stationary(mf.TablePolicy(np.zeros((104, 1, 2)), np.ones((104, 1))), 2)
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
