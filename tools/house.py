"""Measures the source tree against the goals of the redesign.

python tools/house.py            # a table, and the figures as JSON in the last line
python tools/house.py --check    # exits with 1 if a goal of this round is missed
"""

import argparse
import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CORE = (
    *("space", "policies", "flow", "models", "planning", "constraints", "learning"),
    *("finite", "environments", "problem.py", "actions.py", "episode.py", "systems.py"),
)
GOALS = {
    "lines": (25_000, False),
    "files": (150, False),
    "core lines": (12_500, True),
    "constants": (150, True),
    "files above 300 lines": (8, True),
    "public names": (60, True),
    "modules that learn imports": (32, True),
    "commands": (14, False),
    "words of README": (600, False),
}
"""The most that each figure may be, and whether ``--check`` asks for it in this round."""


def lines_of(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def lines_by_room(package: Path) -> dict[str, int]:
    """Lines of Python in each folder and each file at the top of a package."""
    rooms: Counter[str] = Counter()
    for file in sorted(package.rglob("*.py")):
        rooms[file.relative_to(package).parts[0]] += lines_of(file)
    return dict(rooms)


def constants(file: Path) -> list[str]:
    """Names in capitals that a module assigns at its top level, each once; no type variables."""
    names: dict[str, None] = {}
    for statement in _top_level(ast.parse(file.read_text(encoding="utf-8")).body):
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
            targets = [statement.target]
        else:
            continue
        if isinstance(statement.value, ast.Call) and "TypeVar" in ast.unparse(statement.value.func):
            continue
        for node in (node for target in targets for node in ast.walk(target)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id.isupper():
                names[node.id] = None
    return list(names)


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements outside functions and classes, those under `if`, `try` and `with` included."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            for field in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(statement, field, []))
            for handler in getattr(statement, "handlers", []):
                yield from _top_level(handler.body)


def constants_by_room(package: Path) -> dict[str, int]:
    """Number of `constants` in each folder and each file at the top of a package."""
    rooms: Counter[str] = Counter()
    for file in sorted(package.rglob("*.py")):
        rooms[file.relative_to(package).parts[0]] += len(constants(file))
    return {room: count for room, count in rooms.items() if count}


def long_files(package: Path, most: int = 300) -> dict[str, int]:
    """Files with more lines than ``most``, the longest first."""
    sizes = {str(file.relative_to(package)): lines_of(file) for file in package.rglob("*.py")}
    longest = sorted(sizes.items(), key=lambda each: (-each[1], each[0]))
    return {name: count for name, count in longest if count > most}


def public_names(stub: Path) -> list[str]:
    """Names without a leading underscore that a stub imports or defines."""
    names = []
    for statement in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            names += [alias.asname or alias.name for alias in statement.names]
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.append(statement.target.id)
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.append(statement.name)
    return [name for name in names if not name.startswith("_")]


def scans(folder: Path) -> list[str]:
    """Functions that call ``lax.scan``, as ``file:line function``, for a reader to judge."""
    found = []

    def visit(node: ast.AST, file: Path, path: tuple[str, ...]) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            path = (*path, node.name)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("lax.scan"):
            found.append(f"{file.relative_to(folder)}:{node.lineno} {'.'.join(path)}")
        for child in ast.iter_child_nodes(node):
            visit(child, file, path)

    for file in sorted(folder.rglob("*.py")):
        visit(ast.parse(file.read_text(encoding="utf-8")), file, ())
    return found


def _answer(source: Path, program: str) -> Any:
    """What a program prints as JSON in its last line, run with this tree's package."""
    program = f"import json, sys\nsys.path.insert(0, {str(source)!r})\n{program}"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"could not measure {source}:\n{ran.stderr}")
    return json.loads(ran.stdout.splitlines()[-1])


def imported_by_learn(source: Path) -> dict[str, int]:
    """Lines of each module of mufield, without packages, that one call of ``learn`` imports."""
    files = _answer(
        source,
        "import mufield as mf\n"
        'mf.learn(mf.make("four-rooms", horizon=3), episodes=1, progress=False)\n'
        "print(json.dumps({name: module.__file__ for name, module in sys.modules.items()"
        ' if name.startswith("mufield.") and not hasattr(module, "__path__")}))',
    )
    return {name: lines_of(Path(file)) for name, file in sorted(files.items())}


def commands(source: Path) -> list[str]:
    """Names of the command line's commands."""
    names: list[str] = _answer(
        source, "from mufield.cli.program import COMMANDS\nprint(json.dumps(list(COMMANDS)))"
    )
    return names


def measure(root: Path) -> dict[str, Any]:
    """All figures of a repository."""
    source = root / "src"
    package = source / "mufield"
    rooms, capitals = lines_by_room(package), constants_by_room(package)
    imported = imported_by_learn(source)
    return {
        "lines": sum(rooms.values()),
        "files": len(list(package.rglob("*.py"))),
        "core lines": sum(rooms.get(room, 0) for room in CORE),
        "constants": sum(capitals.values()),
        "files above 300 lines": len(long_files(package)),
        "public names": len(public_names(package / "__init__.pyi")),
        "modules that learn imports": len(imported),
        "lines that learn imports": sum(imported.values()),
        "commands": len(commands(source)),
        "words of README": len((root / "README.md").read_text(encoding="utf-8").split()),
        "lines by room": rooms,
        "constants by room": capitals,
        "long files": long_files(package),
        "scans in flow": scans(package / "flow"),
    }


def missed(figures: dict[str, Any], *, this_round: bool = True) -> list[str]:
    """Names of the figures above their goals."""
    return [
        name
        for name, (most, now) in GOALS.items()
        if figures[name] > most and (now or not this_round)
    ]


def show(figures: dict[str, Any]) -> None:
    late = missed(figures, this_round=False)
    for name, value in figures.items():
        if isinstance(value, int):
            goal = f"<= {GOALS[name][0]:,}" if name in GOALS else ""
            print(f"{name:28} {value:>8,}  {goal:10} {'missed' if name in late else ''}".rstrip())
    print("\nroom                            lines  constants")
    for room, count in figures["lines by room"].items():
        core = "core" if room in CORE else ""
        print(f"{room:28} {count:>8,} {figures['constants by room'].get(room, 0):>10}  {core}")
    print("\nfiles above 300 lines")
    for file, count in figures["long files"].items():
        print(f"{file:40} {count:>6,}")
    print("\nfunctions of flow/ that call lax.scan")
    print("\n".join(figures["scans in flow"]) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures the source tree against its goals.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to measure")
    given = parser.parse_args()
    figures = measure(given.root.resolve())
    show(figures)
    late = missed(figures)
    if given.check and late:
        print(f"missed in this round: {', '.join(late)}")
    print(json.dumps({"house": figures}))
    return int(given.check and bool(late))


if __name__ == "__main__":
    sys.exit(main())
