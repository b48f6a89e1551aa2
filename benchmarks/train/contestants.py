"""Ways to train the same model on the same rows, each in a process of its own.

`python -m benchmarks.train.contestants NAME FOLDER` prints one figure: tokens per second, or FLOP/s
of matrix products alone.
"""

import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForSeq2Seq,
    Trainer,
    TrainingArguments,
)

from benchmarks.peak import DTYPES, product_peak, product_sizes
from benchmarks.train.setting import BATCH_SIZE, BLOCK_SIZE, STEPS, WARM_UP, spec_of
from benchmarks.trainer import Clock, Rows
from moray.config.schema.sections import Ray
from moray.corpus.dataset import read_documents
from moray.model.load import load_model
from moray.provenance.manifest import read_manifest
from moray.tasks.language import loss
from moray.tasks.language.cross_entropy import SoftmaxLoss
from moray.tasks.language.tokenizer import load_tokenizer
from moray.train import loop
from moray.train.driver import train_on_workers
from moray.train.history import HISTORY, read_history
from moray.workers.entry import Worker

CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Contestant:
    """One way to train.

    Attributes:
        measure: tokens per second, from the folder of `prepare` and a work folder to be made.
        precision: of the matrix products, as in the config.
    """

    measure: Callable[[Path, Path], float]
    precision: str = "auto"


def measure(name: str, folder: Path) -> float:
    """The figure of a contestant or of matrix products, measured in a new process."""
    command = [sys.executable, "-m", __spec__.name, name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def _arguments(work: Path, **arguments: Any) -> TrainingArguments:
    return TrainingArguments(
        str(work),
        per_device_train_batch_size=BATCH_SIZE,
        max_steps=WARM_UP + STEPS,
        report_to=[],
        save_strategy="no",
        **arguments,
    )


def _trainer(folder: Path, work: Path, **arguments: Any) -> float:
    """The `Trainer` of transformers with its defaults, but for batch and steps."""
    clock = Clock()
    Trainer(
        AutoModelForCausalLM.from_pretrained(folder / "model"),
        _arguments(work, **arguments),
        train_dataset=Rows(folder),
        callbacks=[clock],
    ).train()
    return BATCH_SIZE * BLOCK_SIZE * STEPS / (clock.times[-1] - clock.times[WARM_UP - 1])


def _in_this_process(folder: Path, work: Path, without: str = "", **settings: Any) -> float:
    """moray's loop without a launcher, on all cores."""
    if "kept memory" in without:
        loop.keep_freed_memory = lambda: None  # type: ignore[attr-defined]
    if "chunked loss" in without:
        loss.linear_cross_entropy = _all_logits  # type: ignore[attr-defined, assignment]
    if "plain attention" in without:
        settings["attention"] = "sdpa"
    worker = Worker(0, 1, torch.device("cpu"))
    work.mkdir()
    ray = Ray(num_workers=1, resources_per_worker={"CPU": CORES})
    loop.train(spec_of(folder, work, ray, **settings), worker)
    return _steady(work)


def _all_logits(
    hidden: Tensor, weight: Tensor, targets: Tensor, counted: int, softmax: SoftmaxLoss
) -> Tensor:
    logits = (hidden @ weight.T)[:counted].float()
    return torch.nn.functional.cross_entropy(logits, targets[:counted], reduction="sum")


def _launched(folder: Path, work: Path, launcher: str, workers: int, **settings: Any) -> float:
    threads = CORES // workers
    work.mkdir()
    ray = Ray(num_workers=workers, resources_per_worker={"CPU": threads})
    rows = BATCH_SIZE // workers
    engine = {"launcher": launcher, "micro_batch_size": rows}
    train_on_workers(spec_of(folder, work, ray, **{**engine, **settings}))
    return _steady(work)


def _steady(work: Path) -> float:
    lines = [line for line in read_history(work / HISTORY) if "loss" in line]
    return float(statistics.median(line["tokens_per_second"] for line in lines[1:]))


class _Functions(Dataset[dict[str, list[int]]]):
    """Functions as documents, in a shuffled order: signature and docstring aren't trained."""

    def __init__(self, folder: Path) -> None:
        tokenizer = load_tokenizer(folder / "model")
        self._examples = []
        for documents in read_documents(folder / "functions/train.parquet"):
            for row in documents:
                prompt, completion = tokenizer([row["prompt"], row["completion"]])["input_ids"]
                tokens = [*prompt, *completion, tokenizer.eos_token_id][:BLOCK_SIZE]
                labels = [*[-100] * len(prompt), *tokens[len(prompt) :]][:BLOCK_SIZE]
                self._examples.append({"input_ids": tokens, "labels": labels})
        random.Random(0).shuffle(self._examples)

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return self._examples[index]


def _trainer_on_functions(folder: Path, work: Path) -> float:
    """Batches padded to their longest document, as TRL and the examples of transformers do.

    Counts the tokens of documents, not the padding.
    """
    clock, rows = Clock(), _Functions(folder)
    tokenizer = load_tokenizer(folder / "model")
    counted: list[int] = []

    def collate(examples: list[dict[str, list[int]]]) -> Any:
        counted.append(sum(len(example["input_ids"]) for example in examples))
        return DataCollatorForSeq2Seq(tokenizer)(examples)

    arguments = _arguments(work, dataloader_pin_memory=False)
    Trainer(
        AutoModelForCausalLM.from_pretrained(folder / "model"),
        arguments,
        train_dataset=rows,
        data_collator=collate,
        callbacks=[clock],
    ).train()
    tokens = sum(counted[WARM_UP : WARM_UP + STEPS])
    return tokens / (clock.times[-1] - clock.times[WARM_UP - 1])


def _moray_on_functions(folder: Path, work: Path) -> float:
    """Packed rows; counts the tokens of documents, not the padding."""
    split = read_manifest(folder / "functions-tokens")["splits"]["train"]
    share: float = split["tokens"] / (split["rows"] * BLOCK_SIZE)
    return share * _in_this_process(folder, work, tokens="functions-tokens")


def _products(folder: Path, work: Path, precision: str) -> float:
    """FLOP/s of the fastest of the model's matrix products alone, on all cores."""
    torch.set_num_threads(CORES)
    sizes = product_sizes(load_model(folder / "model"), BATCH_SIZE * BLOCK_SIZE)
    return product_peak(sizes, precision, torch.device("cpu"))


EAGER: dict[str, Any] = {"compile": False}
CONTESTANTS = {
    "Trainer, its defaults": Contestant(_trainer, "fp32"),
    "fp32": Contestant(
        partial(_in_this_process, without="kept memory, chunked loss", precision="fp32", **EAGER),
        "fp32",
    ),
    "+ precision: auto": Contestant(
        partial(_in_this_process, without="kept memory, chunked loss", **EAGER)
    ),
    "+ kept memory": Contestant(partial(_in_this_process, without="chunked loss", **EAGER)),
    "+ chunked loss": Contestant(partial(_in_this_process, **EAGER)),
    "+ compiled blocks": Contestant(partial(_in_this_process, without="plain attention")),
    "+ plain attention: moray": Contestant(_in_this_process),
}
LAUNCHED = {
    "torchrun": Contestant(partial(_launched, launcher="torchrun", workers=CORES)),
    "Ray": Contestant(partial(_launched, launcher="ray", workers=CORES)),
}
ON_FUNCTIONS = {
    "functions: Trainer, its defaults": Contestant(_trainer_on_functions, "fp32"),
    "functions: moray": Contestant(_moray_on_functions),
}
PRODUCTS = {
    f"matrix products, {precision}": Contestant(partial(_products, precision=precision), precision)
    for precision in DTYPES
}


if __name__ == "__main__":
    name, folder = sys.argv[1:]
    everything = CONTESTANTS | LAUNCHED | ON_FUNCTIONS | PRODUCTS
    with TemporaryDirectory(prefix="moray-benchmark-") as work:
        print(everything[name].measure(Path(folder), Path(work, "work")))
