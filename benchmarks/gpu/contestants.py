"""Ways to train GPT-2 on the same rows, each in a process of its own.

`python -m benchmarks.gpu.contestants NAME FOLDER` prints a line of JSON.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)

from benchmarks.trainer import Clock, Rows
from moray.config.schema import Adapter, Data, Train, result_keys
from moray.corpus.dataset import write_dataset
from moray.corpus.document import Document
from moray.corpus.sources.python_stdlib import modules
from moray.model.scratch import train_tokenizer
from moray.provenance.manifest import read_manifest, write_manifest
from moray.stages.tokenize import tokenize
from moray.train.history import HISTORY, read_history
from moray.train.job import Job
from moray.train.loop import train
from moray.workers.worker import Worker

# Steps of a measurement, and those before it that don't count.
STEPS, WARM_UP = 40, 20


def prepare(folder: Path, dry_run: bool) -> None:
    """Make a random GPT-2, or for a dry run a tiny one, and rows of the standard library."""
    texts = [module["text"] for module in modules()][:: 40 if dry_run else 1]
    block_size, batch_size = (64, 4) if dry_run else (1024, 16)
    tokenizer = train_tokenizer(texts, vocab_size=4096)
    small = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": len(tokenizer)}
    GPT2LMHeadModel(GPT2Config(**(small if dry_run else {}))).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    write_manifest(
        folder / "model",
        block_size=block_size,
        batch_size=batch_size,
        architecture="gpt2",
        isolates_documents=True,
    )
    splits = ["validation", "test", *["train"] * (len(texts) - 2)]
    pairs = ((split, Document(text=text)) for split, text in zip(splits, texts, strict=True))
    write_dataset(folder / "dataset", pairs, "text", {"source": "benchmark"})
    cfg = {"format": "text", **result_keys(Data(block_size=block_size))}
    tokenize(folder / "dataset", folder / "model", folder / "tokens", cfg)


def measure(name: str, folder: Path) -> dict[str, Any]:
    """A contestant's figures, measured in a new process."""
    command = [sys.executable, "-m", __spec__.name, name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _trainer(folder: Path, work: Path, device: torch.device) -> dict[str, Any]:
    """The `Trainer` of transformers with its defaults, but for batch, steps and bf16."""
    clock, manifest = Clock(), read_manifest(folder / "model")
    Trainer(
        AutoModelForCausalLM.from_pretrained(folder / "model"),
        TrainingArguments(
            str(work),
            per_device_train_batch_size=manifest["batch_size"],
            max_steps=WARM_UP + STEPS,
            report_to=[],
            save_strategy="no",
            bf16=device.type == "cuda",
            use_cpu=device.type == "cpu",
        ),
        train_dataset=Rows(folder),
        callbacks=[clock],
    ).train()
    tokens = manifest["batch_size"] * manifest["block_size"] * STEPS
    return {"tokens_per_second": tokens / (clock.times[-1] - clock.times[WARM_UP - 1])}


def _moray(
    folder: Path, work: Path, device: torch.device, adapter: Adapter | None = None, **keys: Any
) -> dict[str, Any]:
    batch_size = read_manifest(folder / "model")["batch_size"]
    settings = Train(
        max_steps=WARM_UP + STEPS,
        global_batch_size=batch_size,
        micro_batch_size=batch_size,
        logging_steps=WARM_UP,
        eval_steps=10**6,
        eval_rows=1,
        compile=device.type == "cuda",
        **keys,
    )
    work.mkdir()
    job = Job(
        start=folder / "model",
        tokens=folder / "tokens",
        work=work,
        settings=settings,
        adapter=adapter,
        threads=len(os.sched_getaffinity(0)),
        cache=folder / "compiled",
    )
    os.environ |= {"LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{work}/store", rank=0, world_size=1)
    train(job, Worker(0, 1, device))
    dist.destroy_process_group()
    last = [line for line in read_history(work / HISTORY) if "loss" in line][-1]
    return {key: last[key] for key in ("tokens_per_second", "tflops", "mfu") if key in last}


Contestant = Callable[[Path, Path, torch.device], dict[str, Any]]
CONTESTANTS: dict[str, Contestant] = {
    "Trainer, bf16": _trainer,
    "moray": _moray,
    "moray, FSDP2": partial(_moray, strategy="fsdp2"),
    "moray, LoRA": partial(_moray, adapter=Adapter(rank=16)),
    "moray, QLoRA": partial(_moray, adapter=Adapter(rank=16, quantize_base="4bit")),
}


if __name__ == "__main__":
    name, folder = sys.argv[1:]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with TemporaryDirectory(prefix="moray-benchmark-") as work:
        figures = CONTESTANTS[name](Path(folder), Path(work, "work"), device)
    if device.type == "cuda":
        figures["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    print(json.dumps(figures))
