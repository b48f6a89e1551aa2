"""A figure of images with what a model says about them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

# Without a date and with fixed identifiers, the same figure is the same file.
_FIXED: Any = {"svg.hashsalt": "moray", "font.family": "DejaVu Sans"}
_RIGHT, _WRONG = "black", "#c00000"


@dataclass(frozen=True)
class Shown:
    """An image of the figure.

    Attributes:
        pixels: shape (channels, height, width).
        label: its label.
        prediction: what the model says.
    """

    pixels: NDArray[np.uint8]
    label: str
    prediction: str


def draw(images: list[Shown], files: list[Path], title: str) -> None:
    """Draw images in a grid, each with its prediction and its label.

    Args:
        images: at most nine are drawn.
        files: files to write, of any type that Matplotlib writes.
        title: title of the figure.
    """
    with rc_context(_FIXED):
        figure = Figure(figsize=(6, 6.6), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title)
        for place, axes in zip(range(9), figure.subplots(3, 3).flat, strict=True):
            axes.axis("off")
            if place < len(images):
                _draw_one(images[place], axes)
        for file in files:
            dated = {"Date": None} if file.suffix == ".svg" else {"Software": None}
            figure.savefig(file, metadata=dated, dpi=100)


def _draw_one(image: Shown, axes: Any) -> None:
    pixels = image.pixels.transpose(1, 2, 0)
    axes.imshow(pixels if pixels.shape[2] == 3 else pixels[:, :, 0], cmap="gray", vmin=0, vmax=255)
    right = image.prediction == image.label
    text = f"{image.prediction}\n(label: {image.label})"
    axes.set_title(text, fontsize=10, color=_RIGHT if right else _WRONG, parse_math=False)
