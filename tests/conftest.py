"""Settings under which every test runs."""

import os

# Before NumPy and JAX are imported: on busy cores the threads of OpenBLAS only get in each
# other's way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import jax
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)

# Shapes in annotations are checked at run time, here only: users do not pay for it. The hook
# sees what is imported after it, so no test file may import mufield before this line.
install_import_hook("mufield", "typechecker.checked")

# A test that fails must fail for everybody; compilation makes first calls slow.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=25)
# To look for new counterexamples: HYPOTHESIS_PROFILE=search make test
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
