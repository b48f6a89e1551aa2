"""Ways to train: transformers' `Trainer`, and moray's loop in this process or under a launcher."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from benchmarks.gpu.setting import sizes_of
from benchmarks.trainer import Rows
from benchmarks.turns import Turns, Windows
from moray.config.schema.sections import Ray
from moray.config.schema.train import Adapter, Train
from moray.model.forward import resolve
from moray.model.load import empty_model
from moray.model.size import flops_per_token
from moray.tasks.language import cross_entropy
from moray.train import kernels, loop
from moray.train.driver import train_on_workers
from moray.train.history import HISTORY, read_history
from moray.train.spec import Part, RunSpec
from moray.train.task import Batch
from moray.workers.entry import Worker

# More than anybody waits for.
_ENDLESS = 10**6


class _EachStep(TrainerCallback):
    def __init__(self, begin_step: Callable[[], None]) -> None:
        self._begin_step = begin_step

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Called by the `Trainer`."""
        self._begin_step()


def trainer(folder: Path, work: Path, device: torch.device, turns: Turns) -> None:
    """The `Trainer` of transformers with its defaults, but for batch, steps and bf16."""
    sizes = sizes_of(folder)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    Trainer(
        model,
        TrainingArguments(
            str(work),
            per_device_train_batch_size=sizes.micro_batch_size,
            gradient_accumulation_steps=sizes.rows // sizes.micro_batch_size,
            max_steps=_ENDLESS,
            report_to=[],
            save_strategy="no",
            bf16=resolve("auto", device) == "bf16",
            use_cpu=device.type == "cpu",
        ),
        train_dataset=Rows(folder),
        callbacks=[_EachStep(_windows(folder, device, turns, model).begin_step)],
    ).train()


def moray(
    folder: Path,
    work: Path,
    device: torch.device,
    turns: Turns,
    adapter: Adapter | None = None,
    without: str = "",
    **keys: Any,
) -> None:
    """moray's loop in this process, on one device.

    Args:
        folder: what `prepare` made.
        work: folder of the run's state, to be made.
        without: names of `_WITHOUT`, separated by commas.
        keys: of the `train` section.
    """
    for name in filter(None, without.split(",")):
        _WITHOUT[name]()
    model = empty_model(folder / "model")
    if adapter is not None:
        from moray.model.adapter import add_adapter

        add_adapter(model, adapter, seed=0)
    begin_step = _windows(folder, device, turns, model).begin_step

    @contextmanager
    def windows(*arguments: Any) -> Iterator[Callable[[], None]]:
        yield begin_step

    loop.profiled = windows  # type: ignore[attr-defined, assignment]
    os.environ |= {"LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    work.mkdir()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{work}/store", rank=0, world_size=1)
    loop.train(
        _spec(folder, work, device, adapter, max_steps=_ENDLESS, **keys), Worker(0, 1, device)
    )


def _no_alignment() -> None:
    cross_entropy._GPU_ALIGNMENT = 1


def _small_chunks() -> None:
    cross_entropy._MOST_GPU_ROWS = 1024


def _rounded_products() -> None:
    def add(total: Tensor, left: Tensor, right: Tensor) -> None:
        total += left @ right

    cross_entropy._add_product = add


def _no_pinning() -> None:
    Batch.pin_memory = lambda self: self  # type: ignore[method-assign]


def _blocks() -> None:
    kernels._BATCHES_THAT_EARN_ALL = _ENDLESS**2


# What a contestant can do without; for `whole`, its blocks are compiled one by one.
_WITHOUT = {
    "alignment": _no_alignment,
    "chunks": _small_chunks,
    "addmm": _rounded_products,
    "pinning": _no_pinning,
    "whole": _blocks,
}


def launched(folder: Path, work: Path, device: torch.device, turns: Turns, launcher: str) -> None:
    """moray with one worker, on one device; each turn is a run of its own.

    Args:
        folder: what `prepare` made.
        work: folder of the run's state, to be made.
        launcher: as in the `train` section.
    """
    on_gpu, steps = device.type == "cuda", sizes_of(folder).steps
    figures: dict[str, float] = {}
    for number in range(_ENDLESS):
        if number:
            # The first run doesn't count.
            turns.next(figures if number > 1 else None)
        here = work / str(number)
        here.mkdir(parents=True)
        keys = {"launcher": launcher, "max_steps": 3 * steps, "logging_steps": steps}
        spec = _spec(folder, here, device, None, **keys)
        ray = spec.ray.model_copy(update={"num_workers": 1, "use_gpu": on_gpu})
        train_on_workers(replace(spec, ray=ray))
        last = [line for line in read_history(here / HISTORY) if "loss" in line][-1]
        figures = {
            "tokens_per_second": last["tokens_per_second"],
            "flops": last["tflops"] * 1e12,
        }


def _windows(folder: Path, device: torch.device, turns: Turns, model: Any) -> Windows:
    sizes = sizes_of(folder)
    tokens = sizes.rows * sizes.block_size
    flops = tokens * flops_per_token(model, sizes.block_size)
    return Windows(turns, device, sizes.steps, tokens, flops)


def _spec(
    folder: Path, work: Path, device: torch.device, adapter: Adapter | None, **keys: Any
) -> RunSpec:
    sizes = sizes_of(folder)
    settings = Train(
        global_batch_size=sizes.rows,
        micro_batch_size=sizes.micro_batch_size,
        eval_steps=_ENDLESS,
        save_steps=_ENDLESS,
        eval_rows=1,
        compile=device.type == "cuda",
        **{"logging_steps": _ENDLESS, **keys},
    )
    return RunSpec(
        "benchmark",
        start=folder / "model",
        parts=(Part("data", folder / "tokens"),),
        settings=settings,
        adapter=adapter,
        ray=Ray(resources_per_worker={"CPU": len(os.sched_getaffinity(0))}),
        work=work,
        cache=folder / "compiled",
    )
