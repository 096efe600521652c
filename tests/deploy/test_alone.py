"""The reader stands alone: no JAX, no mufield, a fast start, fast decisions."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mufield as mf
from mufield.deploy import reader
from mufield.deploy.array_file import write_array_file
from mufield.deploy.describe import describe
from mufield.deploy.reader import DeployedPolicy

DECIDE = "policy = DeployedPolicy.load('policy.npz'); print(policy.act([[0.5, 0.5]], step=3).shape)"
AGENTS = 10_000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with the four rooms' randomised policy, as the default planner makes it."""
    directory = tmp_path_factory.mktemp("robot")
    write_array_file(directory / "policy.npz", described("randomised"))
    return directory


def described(kind):
    problem = mf.make("four-rooms").problem
    if kind == "network":
        profile = mf.network_profile(problem, jax.random.key(0), mu=mf.Pooled())
    else:
        moves = mf.Box(-1.0, 1.0, 2).points(9)
        weights = jax.random.dirichlet(jax.random.key(0), jnp.full(81, 0.1), (20, 104))
        profile = mf.Profile.stacked(mf.TablePolicy.mixing(moves, weights), 20)
    profile = jax.tree.map(
        lambda leaf: leaf.astype("float32") if isinstance(leaf, jax.Array) else leaf, profile
    )
    return describe(profile, problem)


def run(code, cwd):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def test_reading_and_deciding_imports_no_jax(place):
    code = (
        f"import sys; from mufield.deploy.reader import DeployedPolicy; {DECIDE}\n"
        "heavy = ('jax', 'equinox', 'optax', 'pydantic', 'safetensors', 'scipy', 'tyro', 'rich')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert run(code, place)[:2] == ["(1, 2)", "[]"]


def test_the_reader_works_as_one_copied_file_without_mufield(place):
    shutil.copy(reader.__file__, place / "mufield_reader.py")
    code = (
        "import sys\n"
        "for name in ('mufield', 'jax', 'jaxlib', 'equinox', 'safetensors', 'pydantic'):\n"
        "    sys.modules[name] = None  # an import of it would raise\n"
        f"from mufield_reader import DeployedPolicy; {DECIDE}"
    )
    assert run(code, place)[0] == "(1, 2)"
    top = {"hashlib", "io", "itertools", "json", "math", "os", "zipfile", "typing", "numpy"}
    found = {
        line.split()[1]
        for line in Path(reader.__file__).read_text().splitlines()
        if line.strip().startswith(("import ", "from "))
    }
    assert found == top


def test_a_process_starts_and_decides_at_once(place):
    # Measured inside, so that only this process counts, and from the interpreter's own start.
    ours = (
        f"from mufield.deploy.reader import DeployedPolicy; {DECIDE}\n"
        "import time; print(time.process_time())"
    )
    numpy = "import numpy, time; print(time.process_time())"
    # The best of several, alternating, because the machine may be busy.
    pairs = [(float(run(ours, place)[1]), float(run(numpy, place)[0])) for _ in range(5)]
    started, bare = (min(side) for side in zip(*pairs, strict=True))
    assert started < max(0.3, bare + 0.15)


@pytest.mark.parametrize("kind", ["randomised", "network"])
def test_ten_thousand_agents_decide_within_a_frame(kind):
    policy: DeployedPolicy = described(kind).policy()
    rng = np.random.default_rng(0)
    states = rng.uniform(0.0, 4.9, size=(AGENTS, 2)).astype(np.float32)
    mass = np.full(104, 1 / 104, np.float32)
    policy.act(states, mass, step=3)
    seconds = []
    for _ in range(20):
        # Processor time of this thread: the clock on the wall also counts other tests.
        began = time.thread_time()
        actions = policy.act(states, mass, step=3, rng=rng)
        seconds.append(time.thread_time() - began)
    assert actions.shape == (AGENTS, 2)
    assert min(seconds) < 0.020
