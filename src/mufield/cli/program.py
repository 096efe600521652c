"""The program ``mufield``: parses the command line, runs the command, and explains errors.

JAX is imported only by the commands that compute, so that help comes at once.
"""

import contextlib
import io
import os
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any

import tyro

from .. import __version__
from .._runtime import enable_compilation_cache
from ..errors import UserError
from .flags import REGISTRY, Command
from .fleet import Ask, Tell
from .output import ExitCode, say
from .policies import Compare, Evaluate, Export
from .runs import List, Runs, Show, Watch
from .train import Configured, New, Train

COMMANDS: dict[str, type[Command]] = {
    kind.__name__.lower(): kind
    for kind in (List, Train, Runs, Show, Watch, Export, Evaluate, Compare, New, Ask, Tell)
}
"""All commands by name, in the order of the help."""

EXIT_CODES = {
    ExitCode.SUCCESS: "success",
    ExitCode.FAULT: "a fault of mufield's own, or something that could not be computed",
    ExitCode.MISTAKE: "a mistake of yours, and the message says how to mend it",
    ExitCode.INTERRUPTED: "stopped with Ctrl-C",
    ExitCode.PIPE_CLOSED: "the reader of the output went away",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments after the program's name; those of the process by default.

    Returns:
        The exit code, one of `EXIT_CODES`.
    """
    # Before NumPy is imported: on busy cores the threads of OpenBLAS get in each other's way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    enable_compilation_cache()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except SystemExit as leave:  # the parser printed help or reported a mistake
        code = leave.code or 0
        if code == 0 and arguments[0] in COMMANDS:
            print(COMMANDS[arguments[0]].example, end="")
        return code if isinstance(code, int) else ExitCode.MISTAKE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # such as `mufield list | head -1`
        # Or else Python would complain when it flushes standard output at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.PIPE_CLOSED
    except Exception as error:
        message = _explain(error)
        if message is None or "--debug" in arguments:
            traceback.print_exception(error)
        say(message or _fault(arguments))
        return ExitCode.FAULT if message is None else ExitCode.MISTAKE


def help_text(command: str | None = None) -> str:
    """What ``--help`` prints for a command, or for the whole program."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        _parse([*([command] if command else []), "--help"], {})
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "\n".join(lines) + "\n" + (COMMANDS[command].example if command else "")


def _run(arguments: list[str]) -> int:
    if "--version" in arguments:  # the parser would ask for a command first
        print(f"mufield {__version__}")
        return 0
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        near = get_close_matches(arguments[0], COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        raise UserError(f"there is no command {arguments[0]!r}; {hint}")
    kind = COMMANDS.get(arguments[0], Command) if arguments else Command
    command = _parse(arguments, kind.defaults(arguments) if issubclass(kind, Configured) else {})
    answer = command()
    if answer is not None:
        answer.show(as_json=command.json)
    sys.stdout.flush()
    return 0 if answer is None else answer.code


def _parse(arguments: list[str], settings: dict[str, Any]) -> Command:
    """The command; ``settings`` are the defaults of the flags of commands that begin runs."""
    kinds: list[Any] = []
    for name, kind in COMMANDS.items():
        default = kind(**settings) if issubclass(kind, Configured) else tyro.MISSING_NONPROP
        # In the list of all commands one sentence on each is enough.
        summary = None if name in arguments[:1] else (kind.__doc__ or "").partition("\n")[0]
        about = tyro.conf.subcommand(name, default=default, description=summary)
        kinds.append(Annotated[kind, about])
    codes = "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    any_kind: Any = reduce(or_, kinds)
    return tyro.cli(
        any_kind,
        prog="mufield",
        description="Policies for a very large population whose law of motion is unknown. "
        f"Exit codes: {codes}. `mufield --version` prints the version.",
        args=arguments,
        registry=REGISTRY,
        # Flags may follow the command and are not prefixed with its name.
        config=(tyro.conf.CascadeSubcommandArgs, tyro.conf.OmitSubcommandPrefixes),
    )


def _explain(error: Exception) -> str | None:
    """One line for an error that the user can mend, None for one that is a fault of ours."""
    message = " ".join(str(error).split())
    if isinstance(error, UserError) or (isinstance(error, OSError) and error.errno is not None):
        return f"error: {message}"
    if isinstance(error, ImportError):
        if "pip install 'mufield[" in message:  # an extra is missing, and named
            return f"error: {message}"
        if (error.name or "").partition(".")[0] in ("ray", "grpc"):
            return f"error: {message}; install it with: pip install 'mufield[ray]'"
    return _explain_users(error)


def _explain_users(error: Exception) -> str | None:
    """One line for an error from the user's own code, None for one from ours."""
    ours = str(Path(__file__).parents[1])
    libraries = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(ours):
            return None
        # File names such as <string> are code that libraries generate.
        if not frame.filename.startswith((*libraries, "<")):
            what = " ".join(f"{type(error).__name__}: {error}".split())
            return f"error: {what} ({frame.filename}, line {frame.lineno}); correct the file"
    return None


def _fault(arguments: list[str]) -> str:
    line = shlex.join(["mufield", *arguments])
    return (
        "This is a fault of mufield, not yours. Please report it with the lines above and these: "
        f"mufield {__version__}, Python {sys.version.split()[0]} on {sys.platform}, command: {line}"
    )
