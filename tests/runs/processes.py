"""The command line in a process of its own, as a user or a crash meets it."""

import json
import os
import subprocess
import sys
import time

PROGRAM = "import sys; from mufield.cli import main; sys.exit(main())"


def flags(config):
    """The command line that stands for a configuration."""
    words = [config.environment, "--precision", "float64", "--model", config.model]
    words += ["--judge" if config.judge else "--no-judge"]
    for name in ("options", "model_options", "planner_options"):
        pairs = [f"{key}={json.dumps(value)}" for key, value in getattr(config, name).items()]
        words += [f"--{name.replace('_', '-')}", ",".join(pairs)]
    return words


def start(*arguments):
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    # Ctrl-C between `open` and its `with` leaves a file to the collector, in any program.
    warnings = ("-W", "error", "-W", "ignore::ResourceWarning")
    return subprocess.Popen(
        [sys.executable, *warnings, "-c", PROGRAM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )


def wait_for(path, process):
    """Waits until a file is there, or the process has ended."""
    while process.poll() is None and not path.exists():
        time.sleep(0.002)
