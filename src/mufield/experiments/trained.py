"""Jobs of Q-learning, which go on from their checkpoint."""

from pathlib import Path
from typing import Any

from ..baselines.training import train
from .shown import system_of


def training_job(settings: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Trains to the end; returns the curve and the number of entries of the table."""
    result = train(
        system_of(settings),
        **settings["rates"],
        episodes=settings["episodes"],
        evaluate_every=settings["evaluate_every"],
        seed=settings["seed"],
        checkpoint=directory / "training.safetensors",
        progress=False,
    )
    columns = vars(result.curve)
    figures: dict[str, Any] = {name: values.tolist() for name, values in columns.items()}
    return figures | {
        "episodes": [int(count) for count in result.curve.episodes],
        "entries": int(result.state.q.size),
        "seconds": float(result.curve.seconds[-1]),
    }
