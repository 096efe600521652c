"""Flows as a film."""

import contextlib
import itertools
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .._style import STYLE
from ..errors import UserError
from ..io.atomic import replacing
from ..space.grid import Grid
from ..space.nodes import Nodes
from .cells import Labels
from .fields import (
    Arrows,
    ColourScale,
    Masses,
    NamedFlow,
    as_flows,
    draw_colour_bar,
    draw_field,
    longest_arrow,
    norm_between,
    panel_size,
    range_of,
)

Frame = UInt8[np.ndarray, "height width 3"]
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
    if not frames_per_second > 0:
        raise UserError(f"frames_per_second must be positive, got {frames_per_second}")
    flows = as_flows(grid, masses, arrows)
    length = len(flows[0].masses)
    titles = [f"h = {step}" for step in range(length)] if titles is None else titles
    if len(titles) != length:
        raise UserError(f"expected a title for each of {length} frames, got {len(titles)}")
    frames = _frames(grid, flows, titles, progress, labels)
    program = _ffmpeg() if path.suffix.lower() == ".mp4" else None
    path = path if program else path.with_suffix(".gif")
    with replacing(path) as place:
        if program:
            _write_mp4(program, place, frames, frames_per_second)
        else:
            _write_gif(place, frames, frames_per_second)
    return path


def _frames(
    grid: Grid,
    flows: Sequence[NamedFlow],
    titles: Sequence[str],
    progress: Progress | None,
    labels: Labels,
) -> Iterator[Frame]:
    width, height = panel_size(grid)
    figure = Figure(
        figsize=(_even(width * len(flows)), _even(height + 0.5)),
        dpi=STYLE.dots_per_inch,
        layout="compressed",
    )
    canvas: Any = FigureCanvasAgg(figure)  # matplotlib annotates only half of it
    panels = figure.subplots(1, len(flows), squeeze=False)[0]
    scale: ColourScale = "linear" if grid.dim == 1 else "log"
    limits = range_of(grid, max(float(np.max(flow.masses)) for flow in flows), scale)
    if grid.dim == 2 or isinstance(grid, Nodes):
        draw_colour_bar(list(panels), grid, norm_between(limits, scale), labels)
    unit = longest_arrow(flows)
    heading = figure.suptitle(titles[0])
    for step, title in enumerate(titles):
        heading.set_text(title)  # A new title would not keep its place once the layout is fixed.
        for flow, axes in zip(flows, panels, strict=True):
            # Clearing the axes would build all ticks again, which takes longer than the rest.
            for artist in [*axes.images, *axes.collections, *axes.patches]:
                artist.remove()
            draw_field(
                axes,
                grid,
                flow.masses[step],
                arrows=flow.arrows_at(step),
                title=flow.title,
                colour_limits=limits,
                colour_scale=scale,
                colour_bar=False,
                arrow_unit=unit,
                labels=labels,
            )
        canvas.draw()
        if step == 0:
            # Laid out once only: panels that move by a pixel between frames seem to tremble.
            figure.set_layout_engine("none")
        yield np.array(canvas.buffer_rgba())[..., :3]
        if progress is not None:
            progress(step + 1, len(titles))


def _even(inches: float) -> float:
    """The nearest size with an even number of pixels, as H.264 needs it."""
    # A little more, because matplotlib rounds the number of pixels down.
    return (2 * round(inches * STYLE.dots_per_inch / 2) + 1e-6) / STYLE.dots_per_inch


def _ffmpeg() -> str | None:
    """Path of ffmpeg; None without imageio-ffmpeg, or if that package holds no program."""
    try:
        import imageio_ffmpeg
    except ImportError:
        return None
    try:
        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError:
        return None


def _write_mp4(program: str, path: Path, frames: Iterator[Frame], speed: float) -> None:
    # Not imageio_ffmpeg.write_frames: it forks, which can hang beside the threads of JAX.
    first = next(frames)
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{first.shape[1]}x{first.shape[0]}"]
    # The index at the start of the file lets browsers play before they have all of it.
    target = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "18", "-movflags", "+faststart"]
    command = [program, "-loglevel", "error", "-y", *source, "-r", str(speed), "-i", "-", *target]
    with tempfile.TemporaryFile() as complaints:
        with subprocess.Popen(
            [*command, "-f", "mp4", str(path)], stdin=subprocess.PIPE, stderr=complaints
        ) as run:
            assert run.stdin is not None
            # If ffmpeg fails, the pipe breaks; its own message, below, is more useful.
            with contextlib.suppress(BrokenPipeError):
                for frame in itertools.chain([first], frames):
                    run.stdin.write(frame.tobytes())
                run.stdin.close()
        if run.returncode != 0:
            complaints.seek(0)
            message = complaints.read().decode(errors="replace").strip()
            raise OSError(f"ffmpeg could not write {path}: {message}")


def _write_gif(path: Path, frames: Iterator[Frame], speed: float) -> None:
    from PIL import Image

    pictures = (Image.fromarray(frame).quantize(256) for frame in frames)
    duration = round(1000 / speed)  # of a frame, in milliseconds
    next(pictures).save(
        path, format="GIF", save_all=True, append_images=pictures, duration=duration, loop=0
    )
