"""Jobs that learn: runs in run directories, which survive a kill at any moment."""

from pathlib import Path
from typing import Any

from .._files import read_lines
from ..policies.base import Profile
from ..policies.files import load_policy
from ..runs.config import parse_config
from ..runs.session import learn_run, new_run
from .shown import show


def learn_job(settings: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Learns to the end; returns J of each episode and the best episode step by step."""
    run = directory / "run"
    config = parse_config(settings, str(directory))
    setup = None if (run / "config.json").exists() else new_run(run, config)
    rows = learn_run(run, config.episodes, setup=setup, progress=False)
    values = [row["value"] for row in rows]
    best = values.index(max(values)) + 1
    shown = show(settings, episode_policy(directory, best))
    return {
        "values": values,
        "optimistic": [row["optimistic"] for row in rows],
        "best_episode": best,
        "rewards": shown.rewards,
        "action_sizes": shown.action_sizes,
        "seconds": _seconds(run),
    }


def episode_policy(directory: Path, episode: int) -> Profile:
    """The policy of an episode of a job's run."""
    profile = load_policy(directory / "run" / "policies" / f"{episode:04d}.policy")
    assert isinstance(profile, Profile)
    return profile


def _seconds(run: Path) -> float:
    """Seconds of fits, plans and episodes together, over all interruptions."""
    names = ("fit", "plan", "run")
    rows = read_lines(run / "timings.jsonl")
    return float(sum(row.get(name, 0.0) for row in rows for name in names))
