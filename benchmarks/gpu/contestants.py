"""What is measured on one GPU, each contestant in a process of its own.

`python -m benchmarks.gpu.contestants NAME FOLDER` is one of them, with `Turns`.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.gpu.inference import (
    moray_evaluation,
    moray_generation,
    one_by_one,
    trainer_evaluation,
)
from benchmarks.gpu.training import launched, moray, trainer
from benchmarks.turns import Turns
from moray.config.schema.train import Adapter

Contestant = Callable[[Path, Path, torch.device, Turns], None]

# Each with one change less than the line after it.
LADDER = {
    "before": "alignment,chunks,addmm,pinning,whole",
    "+ aligned logits": "chunks,addmm,pinning,whole",
    "+ chunks by bytes": "addmm,pinning,whole",
    "+ fp32 sums": "pinning,whole",
}
CONTESTANTS: dict[str, Contestant] = {
    "training: Trainer": trainer,
    **{
        f"training: moray, {name}": partial(moray, attention="sdpa", without=without)
        for name, without in LADDER.items()
    },
    "training: moray, + varlen": partial(moray, without="pinning,whole"),
    "training: moray, + pinned memory": partial(moray, without="whole"),
    "training: moray": moray,
    "training: moray, attention: flex": partial(moray, attention="flex"),
    "training: moray, FSDP2": partial(moray, strategy="fsdp2"),
    "training: moray, LoRA": partial(moray, adapter=Adapter(rank=16)),
    "training: moray, LoRA, base in bf16": partial(
        moray, adapter=Adapter(rank=16, base_dtype="bf16")
    ),
    "training: moray, QLoRA": partial(moray, adapter=Adapter(rank=16, quantize_base="4bit")),
    "training: moray, QLoRA, checkpointing": partial(
        moray, adapter=Adapter(rank=16, quantize_base="4bit"), gradient_checkpointing=True
    ),
    "training: moray, AdamW in 8 bits": partial(moray, optimizer="adamw_8bit"),
    "training: moray, bf16, AdamW in 8 bits, checkpointing": partial(
        moray, weights="bf16", optimizer="adamw_8bit", gradient_checkpointing=True
    ),
    "training: moray, checkpointing": partial(moray, gradient_checkpointing=True),
    "training: moray, checkpointing, offload": partial(moray, gradient_checkpointing="offload"),
    "training: moray, by torchrun": partial(launched, launcher="torchrun"),
    "training: moray, by Ray": partial(launched, launcher="ray"),
    "evaluation: Trainer": trainer_evaluation,
    "evaluation: moray": moray_evaluation,
    "evaluation: moray, 64 rows": partial(moray_evaluation, rows=64),
    "evaluation: moray, 64 rows, compiled": partial(moray_evaluation, rows=64, compiled=True),
    "generation: transformers, one by one": one_by_one,
    "generation: moray": moray_generation,
}


if __name__ == "__main__":
    name, folder = sys.argv[1:]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with TemporaryDirectory(prefix="moray-benchmark-") as work:
        CONTESTANTS[name](Path(folder), Path(work, "work"), device, Turns(device))
