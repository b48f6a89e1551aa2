"""What is measured on one GPU, each contestant in a process of its own.

`python -m benchmarks.gpu.contestants NAME FOLDER` prints a line of JSON.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.gpu.inference import (
    moray_evaluation,
    moray_generation,
    one_by_one,
    trainer_evaluation,
)
from benchmarks.gpu.setting import sizes_of
from benchmarks.gpu.training import launched, moray, trainer
from benchmarks.peak import product_peak, product_sizes
from moray.config.schema.train import Adapter
from moray.model.forward import resolve
from moray.model.load import load_model

Contestant = Callable[[Path, Path, torch.device], dict[str, float]]


def products(folder: Path, work: Path, device: torch.device) -> dict[str, float]:
    """The fastest of the model's matrix products alone."""
    sizes = sizes_of(folder)
    products = product_sizes(
        load_model(folder / "model"), sizes["batch_size"] * sizes["block_size"]
    )
    return {"flops": product_peak(products, resolve("auto", device), device)}


PRODUCTS = "matrix products alone"
CONTESTANTS: dict[str, Contestant] = {
    PRODUCTS: products,
    "training: Trainer": trainer,
    "training: moray": moray,
    **{
        f"training: moray, attention: {name}": partial(moray, attention=name)
        for name in ("sdpa", "eager", "varlen", "flex")
    },
    "training: moray, FSDP2": partial(moray, strategy="fsdp2"),
    "training: moray, LoRA": partial(moray, adapter=Adapter(rank=16)),
    "training: moray, QLoRA": partial(moray, adapter=Adapter(rank=16, quantize_base="4bit")),
    "training: moray, by torchrun": partial(launched, launcher="torchrun"),
    "training: moray, by Ray": partial(launched, launcher="ray"),
    "evaluation: Trainer": trainer_evaluation,
    "evaluation: moray": moray_evaluation,
    "generation: transformers, one by one": one_by_one,
    "generation: moray": moray_generation,
}


def measure(name: str, folder: Path) -> dict[str, Any]:
    """A contestant's figures, measured in a new process; `failed` has the reason if it failed."""
    command = [sys.executable, "-m", __spec__.name, name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


if __name__ == "__main__":
    name, folder = sys.argv[1:]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with TemporaryDirectory(prefix="moray-benchmark-") as work:
        figures = CONTESTANTS[name](Path(folder), Path(work, "work"), device)
    # What a launcher starts has memory of its own.
    if device.type == "cuda" and (peak := torch.cuda.max_memory_allocated()):
        figures["peak_gb"] = peak / 1e9
    print(json.dumps(figures))
