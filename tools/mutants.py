"""A dozen small mistakes in flow/ and planning/: do the quick tests find each of them?

python tools/mutants.py              # the tests of every change; names the survivors
python tools/mutants.py --night      # the tests of the night
python tools/mutants.py --only 3,7

Every mistake is made in a copy of the tree, which is then tested until the first failure.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = (
    *("tests/planning", "tests/flow", "tests/fleet/test_trips.py", "tests/golden"),
    "tests/learning/test_replan.py",
)
MUTANTS = (
    ("flow/phi.py", "taken = joint * chance[:, None]", "taken = joint * chance[:, None] ** 2"),
    ("flow/phi.py", "self.move(joint - taken,", "self.move(joint,"),
    ("flow/phi.py", "law = policy.at_cells(self.grid, mass, step)",
     "law = policy.at_cells(self.grid, mass, 0)"),
    ("flow/rollout.py", "step >= problem.first", "step > problem.first"),
    ("flow/rollout.py", "axis=1) + by_mu\n        if bound", "axis=1)\n        if bound"),
    ("flow/rollout.py", "best = jnp.max(best_by_choice", "best = jnp.mean(best_by_choice"),
    ("flow/rollout.py", "best_by_choice, -jnp.inf)", "best_by_choice, 0.0)"),
    ("flow/windows.py", "[(1 - share) * joint, share * joint]",
     "[share * joint, (1 - share) * joint]"),
    ("flow/windows.py", "now = step if steps > 1 else 0", "now = 0"),
    ("planning/ascent.py", ">= old.objective - slack", ">= old.objective - 1.0"),
    ("planning/certificate.py", "[law.weights > 0, ", "[law.weights < 0, "),
    ("planning/certificate.py", "gap + penalty.plain", "gap"),
    ("planning/certificate.py", "upward <= 1e-3 * scale", "upward <= 1e3 * scale"),
)  # fmt: skip
"""A file of the package, what it says, and what the mutant says."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--night", action="store_true", help="run the tests of the night as well")
    parser.add_argument("--only", help="numbers of mutants, with commas")
    given = parser.parse_args()
    chosen = range(1, len(MUTANTS) + 1)
    if given.only:
        chosen = [int(number) for number in given.only.split(",")]
    survivors = []
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "tree"
        shutil.copytree(
            ROOT, tree, ignore=shutil.ignore_patterns(".venv*", ".git", "site", ".mypy_cache")
        )
        night = {"MUFIELD_NIGHT": "1"} if given.night else {}
        environment = os.environ | {"PYTHONPATH": str(tree / "src")} | night
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *TESTS]
        command += [] if given.night else ["-m", "not nightly"]
        for number in chosen:
            file, old, new = MUTANTS[number - 1]
            path = tree / "src" / "mufield" / file
            sound = path.read_text(encoding="utf-8")
            if sound.count(old) != 1:
                print(f"{number:2} {file}: {old!r} is not there once; adapt this script")
                return 2
            path.write_text(sound.replace(old, new), encoding="utf-8")
            began = time.monotonic()
            ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
            path.write_text(sound, encoding="utf-8")
            found = [line for line in ran.stdout.splitlines() if line.startswith("FAILED")]
            survivors += [number] if ran.returncode == 0 else []
            by = found[0].split(" ")[1] if found else "an error"
            verdict = "SURVIVES" if ran.returncode == 0 else f"found by {by}"
            print(
                f"{number:2} {file}: {new!r}: {verdict}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
    print(f"{len(survivors)} of {len(chosen)} survive: {survivors}")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
