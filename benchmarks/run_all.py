"""Runs all benchmarks one after another, and keeps what they claim in a table.

python benchmarks/run_all.py --quick           # each within a minute; `make bench`
python benchmarks/run_all.py                   # the whole forms: hours
python benchmarks/run_all.py flow plans        # some of them

Exits with 1 if a claim does not hold or a script fails. The table in ``docs/benchmarks.md``, with
the date and the commit of each script's last run, is written anew from ``results/claims.json``.
Runs of commits that this history does not have are dropped.
"""

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _report import processor_seconds

ROOT = Path(__file__).parent.parent
CLAIMS = ROOT / "results" / "claims.json"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- claims: written by benchmarks/run_all.py -->", "<!-- end of claims -->"
NOT_RUN = ("run_all", "suite", "versus")  # versus.py needs another tree


def scripts() -> list[str]:
    """Names of all benchmarks that this environment can run."""
    names = (path.stem for path in sorted(Path(__file__).parent.glob("*.py")))
    return [name for name in names if not name.startswith("_") and name not in NOT_RUN]


def run(name: str, quick: bool, limit: float) -> dict[str, Any]:
    """Runs one script; its claims, or why there are none."""
    command = [sys.executable, str(Path(__file__).parent / f"{name}.py"), *["--quick"] * quick]
    began, spent, error, claims = time.monotonic(), processor_seconds(), "", []
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        if ran.returncode:
            error = (ran.stderr.strip() or "no message").splitlines()[-1]
        else:
            claims = json.loads(ran.stdout.strip().splitlines()[-1])["claims"]
    except subprocess.TimeoutExpired:
        error = f"did not end within {limit:.0f} s"
    except (IndexError, KeyError, ValueError):
        error = "its last line is no JSON with claims"
    return {
        "seconds": round(time.monotonic() - began, 1),
        "processor": round(processor_seconds() - spent, 1),  # does not depend on other work
        "claims": claims,
        **({"error": error} if error else {}),
    }


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)


def commit() -> str:
    """The commit that is measured, with a plus sign if files differ from it."""
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks").stdout
    return git("rev-parse", "--short", "HEAD").stdout.strip() + ("+" if changed.strip() else "")


def is_known(measured: str) -> bool:
    """Whether a commit is in this tree's history: rebased ones say nothing to a reader."""
    ran = git("merge-base", "--is-ancestor", measured.removesuffix("+"), "HEAD")
    return ran.returncode == 0


def table(kept: dict[str, Any]) -> str:
    """The claims of all runs as Markdown."""
    lines = ["| benchmark | claim | measured | bar | holds |", "|---|---|---|---|---|"]
    for key, found in sorted(kept.items()):
        name, _, form = key.partition(" ")
        about = f"`{name}.py`, {form}, {found['date']}, {found['commit']}"
        about += f", {found['processor']:.0f} s of processor time"
        rows = found["claims"] or [{"name": found.get("error", "claims nothing in this form")}]
        for claim in rows:
            holds = {True: "yes", False: "**no**"}.get(claim.get("holds"), "")
            figures = " | "
            if "bar" in claim:
                side = {"at least": "≥ ", "at most": "≤ "}.get(claim.get("side", ""), "")
                figures = f"{claim['value']:g} | {side}{claim['bar']:.4g}"
            lines.append(f"| {about} | {claim['name']} | {figures} | {holds} |")
            about = ""
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks; all by default")
    parser.add_argument("--quick", action="store_true", help="the quick forms")
    parser.add_argument("--limit", type=float, help="seconds for one script")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(scripts()))
    if unknown:
        parser.error(f"unknown {unknown}; there are {', '.join(scripts())}")
    form = "quick" if given.quick else "whole"
    kept = json.loads(CLAIMS.read_text(encoding="utf-8")) if CLAIMS.exists() else {}
    kept = {
        key: row
        for key, row in kept.items()
        if key.split()[0] in scripts() and is_known(row["commit"])
    }
    failed = []
    for name in given.names or scripts():
        print(f"{name:16} ", end="", flush=True)
        found = run(name, given.quick, given.limit or (180 if given.quick else 6 * 3600))
        broken = [claim["name"] for claim in found["claims"] if not claim["holds"]]
        verdict = found.get("error") or "; ".join(f"FAILS: {claim}" for claim in broken)
        held = len(found["claims"]) - len(broken)
        times = f"{found['seconds']:7.1f} s ({found['processor']:.1f} of processor time)"
        print(f"{times}  {held} claims hold  {verdict}".rstrip(), flush=True)
        failed += [name] if verdict else []
        today = datetime.date.today().isoformat()
        kept[f"{name} {form}"] = {"date": today, "commit": commit(), **found}
        CLAIMS.parent.mkdir(exist_ok=True)
        CLAIMS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(kept)}\n{END}{after}", encoding="utf-8")
    if failed:
        print(f"not all well: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
