"""Ways to train: the `Trainer`, moray's loop in this process, and moray under its launchers."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from benchmarks.gpu.setting import sizes_of
from benchmarks.trainer import Clock, Rows
from moray.config.schema.sections import Ray
from moray.config.schema.train import Adapter, Train
from moray.model.forward import resolve
from moray.model.size import flops_per_token
from moray.train.entry import run_job
from moray.train.history import HISTORY, read_history
from moray.train.job import Job, Part
from moray.train.loop import train
from moray.workers.entry import Worker

# Steps of a measurement, and those before it that don't count.
STEPS, WARM_UP = 40, 20


def trainer(folder: Path, work: Path, device: torch.device) -> dict[str, float]:
    """The `Trainer` of transformers with its defaults, but for batch, steps and bf16."""
    clock, sizes = Clock(), sizes_of(folder)
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    Trainer(
        model,
        TrainingArguments(
            str(work),
            per_device_train_batch_size=sizes["batch_size"],
            max_steps=WARM_UP + STEPS,
            report_to=[],
            save_strategy="no",
            bf16=resolve("auto", device) == "bf16",
            use_cpu=device.type == "cpu",
        ),
        train_dataset=Rows(folder),
        callbacks=[clock],
    ).train()
    tokens = sizes["batch_size"] * sizes["block_size"] * STEPS
    speed = tokens / (clock.times[-1] - clock.times[WARM_UP - 1])
    return {
        "tokens_per_second": speed,
        "flops": speed * flops_per_token(model, sizes["block_size"]),
    }


def moray(
    folder: Path, work: Path, device: torch.device, adapter: Adapter | None = None, **keys: Any
) -> dict[str, float]:
    """moray's loop in this process, on one device.

    Args:
        folder: what `prepare` made.
        work: folder of the run's state, to be made.
        device: what it computes on.
        adapter: the `adapter` section.
        keys: of the `train` section.
    """
    job = _job(folder, work, device, adapter, **keys)
    os.environ |= {"LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{work}/store", rank=0, world_size=1)
    train(job, Worker(0, 1, device))
    dist.destroy_process_group()
    return _steady(work)


def launched(folder: Path, work: Path, device: torch.device, launcher: str) -> dict[str, float]:
    """moray with one worker, on one device.

    Args:
        folder: what `prepare` made.
        work: folder of the run's state, to be made.
        device: what it computes on.
        launcher: as in the `train` section.
    """
    settings = Ray(num_workers=1, use_gpu=device.type == "cuda")
    run_job(_job(folder, work, device, None, launcher=launcher), settings, "benchmark")
    return _steady(work)


def _job(
    folder: Path, work: Path, device: torch.device, adapter: Adapter | None, **keys: Any
) -> Job:
    batch_size = sizes_of(folder)["batch_size"]
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
    return Job(
        start=folder / "model",
        parts=(Part("data", folder / "tokens"),),
        work=work,
        settings=settings,
        adapter=adapter,
        threads=len(os.sched_getaffinity(0)),
        cache=folder / "compiled",
    )


def _steady(work: Path) -> dict[str, float]:
    last = [line for line in read_history(work / HISTORY) if "loss" in line][-1]
    return {"tokens_per_second": last["tokens_per_second"], "flops": last["tflops"] * 1e12}
