"""Reproduce the paper's figures, films and numbers; without a name, list them.

``python -m reproduction theory RUN`` prints the paper's bounds beside what a run realised.
Results are kept in the directory, and the same command goes on from there, however it was stopped.
Everything takes about an hour on two cores; with --quick less than five minutes, to see that it
runs.
"""

import argparse
import os
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if a job or a drawing failed, 2 for a mistake of the user."""
    parser = argparse.ArgumentParser("python -m reproduction", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of items, or all")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results"),
        help="directory for figures, films, jobs, table.md and table.json; --quick adds -quick "
        "to its name (default: results)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="the same figures from few seeds, episodes and steps"
    )
    parser.add_argument(
        "--on",
        default="local",
        help="where jobs are computed: local, ray, ray://HOST:PORT or HOST:PORT (default: local)",
    )
    parser.add_argument(
        "--workers", type=int, help="most jobs at a time; by default as many as there are cores"
    )
    # Before NumPy is imported: on busy cores the threads of OpenBLAS get in each other's way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["theory"]:
        from .theory.command import main as theory

        return theory(words[1:])
    given = parser.parse_args(words)
    from mufield import enable_compilation_cache
    from mufield.errors import UserError
    from mufield.jobs.processes import make_pool

    from .items import ITEMS
    from .paper import QUICK, Budget
    from .reproduce import reproduce
    from .results import Results

    enable_compilation_cache()
    budget = QUICK if given.quick else Budget()
    out = given.out.with_name(f"{given.out.name}-quick") if given.quick else given.out
    if not given.names:
        results = Results(out, budget)
        for item in ITEMS:
            print(f"{item.name:20}  {results.item_state(item):8}  {item.paper}")
        print(f"states are those in {out}")
        return 0
    try:
        problems = reproduce(given.names, out, budget, make_pool(given.on, given.workers))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        print("what is done is kept; the same command tries the rest again", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
