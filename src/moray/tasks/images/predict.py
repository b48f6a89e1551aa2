"""Classify a few held-out images with a run's model and its base, and draw them."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from moray.console import say
from moray.evaluate.classification import (
    answers_for_samples,
    rows_to_classify,
    seal_samples,
    write_samples,
)
from moray.evaluate.worker import may_be_bf16
from moray.proofs.comparison import collect, conclude
from moray.provenance.manifest import read_manifest
from moray.rows.store import StoredRows
from moray.tasks.images.evaluation import CLASSIFIER
from moray.tasks.images.proofs import compare_predictions

# Without a date and with fixed identifiers, the same figure is the same file.
_FIXED: Any = {"svg.hashsalt": "moray", "font.family": "DejaVu Sans"}
_RIGHT, _WRONG = "black", "#c00000"


def predict(
    run: str,
    base: Path,
    tuned: Path,
    store: Path,
    output: Path,
    settings: Path,
    png: Path,
    svg: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    code: str = "",
) -> None:
    """Write `samples.jsonl`: label, and prediction and its probability of both models; a figure."""
    split = StoredRows(store, "test")
    numbers = rows_to_classify(split, cfg["num_samples"])
    names = read_manifest(store)["label_names"]
    models = {"base": base.absolute(), "tuned": tuned.absolute()}
    began = time.monotonic()
    answers = answers_for_samples(CLASSIFIER, run, models, store, output, cfg, execution, code)
    labels = [names[label] for label in split.rows["label"][numbers].tolist()]
    classes = {name: [names[one] for one in scores.argmax(-1)] for name, scores in answers.items()}
    probabilities = {name: np.exp(scores.max(-1)) for name, scores in answers.items()}
    record = dict(sorted(cfg.items()))
    if execution["proofs"] != "off":
        seconds, bf16 = time.monotonic() - began, may_be_bf16(cfg["precision"])
        rows = split.rows[numbers]
        comparisons = collect(
            "predictions",
            lambda: compare_predictions(models, rows, classes, probabilities, seconds, bf16),
        )
        record["proof"] = conclude(comparisons, execution["proofs"], f"runs.{run}")
    samples = []
    for place, number in enumerate(numbers.tolist()):
        sample = {"image": number, "label": labels[place]}
        for name in models:
            sample[name] = classes[name][place]
            sample[f"{name}_probability"] = round(float(probabilities[name][place]), 4)
        samples.append(sample)
    write_samples(output, samples)
    pixels = split.rows["pixels"][numbers[:9]]
    _draw(pixels, labels, classes["tuned"], [png, svg], f"{run}: prediction (label)")
    seal_samples(settings, record, (base, tuned, store))
    right = {
        name: sum(map(str.__eq__, labels, predictions)) for name, predictions in classes.items()
    }
    before, after = right["base"], right["tuned"]
    say(f"{run}: {len(labels)} images, {before} right before training, {after} after")


def _draw(
    images: NDArray[np.uint8],
    labels: list[str],
    predictions: list[str],
    files: list[Path],
    title: str,
) -> None:
    """Draw up to nine images in a grid, shape (images, channels, height, width)."""
    with rc_context(_FIXED):
        figure = Figure(figsize=(6, 6.6), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title)
        grid = list(figure.subplots(3, 3).flat)
        for axes in grid:
            axes.axis("off")
        for axes, pixels, label, prediction in zip(grid, images, labels, predictions, strict=False):
            image = pixels.transpose(1, 2, 0)
            image = image if image.shape[2] == 3 else image[:, :, 0]
            axes.imshow(image, cmap="gray", vmin=0, vmax=255)
            color = _RIGHT if prediction == label else _WRONG
            text = f"{prediction}\n(label: {label})"
            axes.set_title(text, fontsize=10, color=color, parse_math=False)
        for file in files:
            metadata = {"Date": None} if file.suffix == ".svg" else {"Software": None}
            figure.savefig(file, metadata=metadata, dpi=100)
