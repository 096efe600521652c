"""Settings under which every test runs."""

import gc
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

# Before NumPy and JAX are imported: on busy cores the threads of OpenBLAS only get in each
# other's way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Nor need files of tests, and of the processes that they start, outlive a power failure.
os.environ.setdefault("MUFIELD_FSYNC", "0")
# What tests agree to execute is nothing that their user agrees to.
os.environ["MUFIELD_TRUSTED"] = tempfile.mkdtemp()
# Small problems take longer to compile than to compute, so the compiler need not try hard. The
# older of XLA's two ways to write fused loops compiles faster, and so does a program that is not
# cut into pieces for several cores, because the workers have them all. Only the JAX of Python 3.11
# is known to have both flags; one that XLA does not know would end the process.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    + (
        " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        if version("jaxlib").startswith("0.10.")
        else ""
    ),
)

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)

# Shapes in annotations are checked at run time, here only: users do not pay for it. The hook
# sees what is imported after it, so no test file may import mufield before this line.
install_import_hook("mufield", "typechecker.checked")

from night import NIGHT  # noqa: E402 (after the hook)

from mufield._runtime import enable_compilation_cache  # noqa: E402

enable_compilation_cache()

# A test that fails must fail for everybody; compilation makes first calls slow.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=25)
hypothesis.settings.register_profile("night", derandomize=True, deadline=None, max_examples=100)
# To look for new counterexamples: HYPOTHESIS_PROFILE=search make test
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "night" if NIGHT else "ci"))


def pytest_collection_modifyitems(items):
    """Workers take whole files in this order: no long one may be left when the others are done."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.name != "test_docs.py", item.path not in slow))


MOST_MAPPINGS = 40_000
"""Pieces of memory that a worker may map before it forgets its compiled programs."""

# Tracing makes millions of objects, few of them in cycles. With Python's own settings, looking for
# these took more than a tenth of the time.
gc.set_threshold(100_000, 20, 100)


@pytest.fixture(autouse=True, scope="module")
def same_precision():
    """Programs set JAX to the number format of their run; the next tests are not to notice."""
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Linux lets a process map 65,530 pieces of memory; compiled programs take several each.

    A worker that has run most of the suite would crash when it loads one more.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MOST_MAPPINGS:
        jax.clear_caches()
        gc.unfreeze()
    gc.collect()
    gc.freeze()  # what stays, such as compiled programs, is not looked at again
