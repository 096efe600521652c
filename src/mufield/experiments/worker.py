"""A helper process: reads directories of jobs, one on each line, and computes them.

``python -m mufield.experiments.worker`` answers each line with one of its own, `DONE` or `FAILED`.
What a job prints, and its error, goes to the job's log. When nobody writes to the process any
more, because whoever started it was stopped or killed, it ends at once.
"""

import os
import queue
import sys
import threading
import traceback
from pathlib import Path

DONE, FAILED = "done", "failed"
LOG = "log.txt"


def main() -> None:
    """Computes jobs until there are no more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    jobs: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    while True:
        directory = Path(jobs.get())
        _redirect(directory / LOG)
        answer = DONE if attempt(directory) else FAILED
        sys.stderr.flush()
        answers.write(f"{answer}\n")
        answers.flush()


def attempt(directory: Path) -> bool:
    """Computes the job of a directory; prints the traceback and returns False if it fails."""
    try:
        from .jobs import read_job
        from .work import compute

        compute(read_job(directory), directory)
    except Exception:
        traceback.print_exc()
        return False
    return True


def _listen(jobs: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        jobs.put(line.rstrip("\n"))
    # Nothing is lost: all files are written whole or not at all.
    os._exit(0)


def _redirect(log: Path) -> None:
    """Sends all that the process prints to a file, native code included."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.close(handle)


if __name__ == "__main__":
    main()
