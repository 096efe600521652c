"""The reader stands alone: no JAX, no mufield."""

import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import mufield as mf
from mufield.deploy import reader
from mufield.deploy.export import describe, policy_bytes

DECIDE = (
    "policy = DeployedPolicy.load('policy.safetensors'); "
    "print(policy.act([[0.5, 0.5]], step=3).shape)"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with the four rooms' randomised policy, as the default planner makes it."""
    directory = tmp_path_factory.mktemp("robot")
    problem = mf.make("four-rooms").problem
    weights = jax.random.dirichlet(jax.random.key(0), jnp.full(81, 0.1), (20, 104))
    profile = mf.Profile.stacked(mf.TablePolicy.mixing(problem.actions.points(9), weights), 20)
    (directory / "policy.safetensors").write_bytes(policy_bytes(describe(profile, problem)))
    return directory


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
    top = {"hashlib", "io", "itertools", "json", "math", "os", "typing", "numpy"}
    found = {
        line.split()[1]
        for line in Path(reader.__file__).read_text().splitlines()
        if line.strip().startswith(("import ", "from "))
    }
    assert found == top
