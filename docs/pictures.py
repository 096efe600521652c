"""Draws the pictures of the documentation again, with what the library does today.

python docs/pictures.py                # all, about fifteen minutes on two cores
python docs/pictures.py rooms taxis    # some of them

`images/taxis-population.png` is what `benchmarks/fleet.py population --out DIR` draws.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import mufield as mf
from mufield import cli, viz

IMAGES = Path(__file__).parent / "images"


def rooms() -> None:
    """The film of README: random agents beside the policy that was learned in eight episodes."""
    system = mf.make("four-rooms")
    learned = mf.learn(system, episodes=8, seed=0).best().profile
    flows = []
    for name, policy in {"random": mf.random_policy(system.problem), "learned": learned}.items():
        mass = system.evaluate(policy).mass
        arrows = system.reveal()[0].mean_actions(policy, mass)
        flows.append(viz.NamedFlow(name, np.asarray(mass), np.asarray(arrows)))
    titles = [f"h = {step} of {system.problem.horizon}" for step in range(len(flows[0].masses))]
    viz.animate_flow(IMAGES / "rooms.gif", system.problem.grid, flows, titles=titles)


def run() -> None:
    """What `mufield show RUN --out run.png` draws: J, and the population."""
    with tempfile.TemporaryDirectory() as place:
        directory = str(Path(place) / "rooms")
        assert cli.main(["train", "four-rooms", "--episodes", "10", "--out", directory]) == 0
        assert cli.main(["show", directory, "--out", str(IMAGES / "run.png")]) == 0


def taxis() -> None:
    """What `examples/manhattan.py` draws."""
    with tempfile.TemporaryDirectory() as place:
        script = Path(__file__).parent.parent / "examples" / "manhattan.py"
        subprocess.run([sys.executable, script, "--out", place], check=True)
        for name in ("fleet", "served"):
            shutil.copy(Path(place) / f"{name}.png", IMAGES / f"taxis-{name}.png")


def games() -> None:
    """What `benchmarks/games.py` draws: optimum, equilibrium, and equilibrium with tolls."""
    script = Path(__file__).parent.parent / "benchmarks" / "games.py"
    subprocess.run([sys.executable, script, "doors", "taxis", "--out", IMAGES], check=True)


PICTURES = {each.__name__: each for each in (rooms, run, taxis, games)}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or PICTURES:
        PICTURES[chosen]()
