"""Flows as a film."""

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.animation import FFMpegWriter, PillowWriter
from matplotlib.figure import Figure

from .._style import STYLE
from ..errors import UserError, number
from ..io.atomic import write_bytes
from ..space.grid import Grid
from . import fields
from .cells import Labels
from .fields import Arrows, Masses, NamedFlow

Progress = Callable[[int, int], None]
"""Called after each frame with the number of frames done and of all frames."""


def animate_flow(
    path: Path | str,
    grid: Grid,
    masses: Masses | Sequence[NamedFlow],
    *,
    arrows: Arrows | None = None,
    titles: Sequence[str] | None = None,
    frames_per_second: float = 3,
    progress: Progress | None = None,
    labels: Labels = Labels(),
) -> Path:
    """Writes a film of a flow, or of several side by side: one frame for each step.

    All frames share one colour range, on a log scale, which shows crowds and thinly spread
    populations alike; in one dimension they share the vertical axis.

    Args:
        path: Where to write: ``.mp4``, which browsers play, or ``.gif``. Without the package
            imageio-ffmpeg an MP4 becomes a GIF beside it.
        grid: The space.
        masses: The distributions of a flow; or several named flows, side by side.
        arrows: Mean actions at each step, for a single flow.
        titles: Titles of the frames; by default the step.
        frames_per_second: Speed.
        progress: Called after each frame with the number of frames done and of all frames.
        labels: What axes and colours are called, of a plane.

    Returns:
        The file that was written.
    """
    path = Path(path)
    if path.suffix.lower() not in (".mp4", ".gif"):
        raise UserError(f"a film is written as .mp4 or .gif, got {path.name!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the directory {path.parent} does not exist; make it first")
    number(frames_per_second, "frames_per_second", 1e-3)
    flows = fields.as_flows(grid, masses, arrows)
    titles = fields.titles_of(range(len(flows[0].masses)), titles)
    writer: Any = _Ffmpeg if path.suffix.lower() == ".mp4" and _Ffmpeg.bin_path() else PillowWriter
    path = path if writer is _Ffmpeg else path.with_suffix(".gif")
    # The index at the start of a film lets browsers play before they have all of it.
    more = {"extra_args": ["-crf", "18", "-movflags", "+faststart"]} if writer is _Ffmpeg else {}
    with tempfile.TemporaryDirectory() as place:
        film = Path(place) / path.name
        try:
            begun = writer(fps=frames_per_second, **more)
            _draw(begun, film, grid, flows, titles, progress, labels)
        except subprocess.CalledProcessError as error:
            raise OSError(f"ffmpeg could not write {path}: {error.stderr.strip()}") from error
        write_bytes(path, film.read_bytes())
    return path


class _Ffmpeg(FFMpegWriter):
    """Writes H.264 with the program that comes with imageio-ffmpeg."""

    @classmethod
    def bin_path(cls) -> str:
        """Path of the program; empty without the package, or if that holds no program."""
        try:
            import imageio_ffmpeg

            return str(imageio_ffmpeg.get_ffmpeg_exe())
        except (ImportError, RuntimeError):
            return ""


def _draw(
    writer: Any,
    film: Path,
    grid: Grid,
    flows: Sequence[NamedFlow],
    titles: Sequence[str],
    progress: Progress | None,
    labels: Labels,
) -> None:
    width, height = fields.panel_size(grid)
    figure = Figure(figsize=(width * len(flows), height + 0.5), layout="compressed")
    panels = figure.subplots(1, len(flows), squeeze=False)[0]
    shared = fields.shared_look(list(panels), grid, flows, labels)
    heading = figure.suptitle(titles[0])
    with writer.saving(figure, film, STYLE.dots_per_inch):
        for step, title in enumerate(titles):
            heading.set_text(title)  # A new title would not keep its place.
            for flow, axes in zip(flows, panels, strict=True):
                # Clearing the axes would build all ticks again, which takes longer than the rest.
                for artist in [*axes.images, *axes.collections, *axes.patches]:
                    artist.remove()
                shared |= {"arrows": flow.arrows_at(step), "title": flow.title}
                fields.draw_field(axes, grid, flow.masses[step], **shared)
            if step == 0:
                # Laid out once only: panels that move by a pixel between frames seem to tremble.
                figure.draw_without_rendering()
                figure.set_layout_engine("none")
            writer.grab_frame()
            if progress is not None:
                progress(step + 1, len(titles))
