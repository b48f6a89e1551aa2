"""Ways to evaluate on the test split and to continue prompts, all in the same arithmetic."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Trainer, TrainingArguments

from benchmarks.gpu.setting import sizes_of
from benchmarks.peak import DTYPES
from benchmarks.trainer import Rows
from moray.evaluate.execution import batches_of
from moray.evaluate.generation import Sampling, continue_prompts
from moray.evaluate.likelihood import score, select_documents
from moray.model.forward import resolve
from moray.model.load import load_model
from moray.model.size import flops_per_token
from moray.tasks.language.rows import StoredSplit


def trainer_evaluation(folder: Path, work: Path, device: torch.device) -> dict[str, float]:
    """The mean loss by the `Trainer` of transformers."""
    arguments = TrainingArguments(
        str(work),
        per_device_eval_batch_size=sizes_of(folder)["batch_size"],
        report_to=[],
        prediction_loss_only=True,
        use_cpu=device.type == "cpu",
    )
    rows, model = Rows(folder, "test"), _model(folder, device)
    evaluate = Trainer(model, arguments, eval_dataset=rows).evaluate
    return _evaluation(evaluate, model, len(rows), folder, device)


def moray_evaluation(folder: Path, work: Path, device: torch.device) -> dict[str, float]:
    """The scores of each document by moray."""
    split, model = StoredSplit(folder / "tokens", "test"), _model(folder, device)
    selection = select_documents(split, None)
    batches = batches_of(selection.rows, sizes_of(folder)["batch_size"])
    return _evaluation(
        lambda: score(model, split, selection, batches), model, len(split), folder, device
    )


def one_by_one(folder: Path, work: Path, device: torch.device) -> dict[str, float]:
    """`generate` of transformers, a prompt at a time."""
    prompts, model, sizes = _prompts(folder), _model(folder, device), sizes_of(folder)

    def generate() -> None:
        for prompt in prompts:
            tokens = torch.tensor([prompt], device=device)
            model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=sizes["new_tokens"],
                do_sample=False,
                eos_token_id=_never(model),
                pad_token_id=0,
            )

    return _generation(generate, sizes, device)


def moray_generation(folder: Path, work: Path, device: torch.device) -> dict[str, float]:
    """moray's continuations, in batches."""
    model, sizes = _model(folder, device), sizes_of(folder)
    prompts = list(enumerate(_prompts(folder)))
    stops = tuple(_never(model))
    sampling = Sampling(sizes["new_tokens"], 0.0, 1.0, seed=0, stops=stops, padding=0)

    def generate() -> None:
        for start in range(0, len(prompts), sizes["batch_size"]):
            batch = dict(prompts[start : start + sizes["batch_size"]])
            continue_prompts(model, batch, sampling)

    return _generation(generate, sizes, device)


def _model(folder: Path, device: torch.device) -> PreTrainedModel:
    model: Any = load_model(folder / "model")
    whole: PreTrainedModel = model.to(device, DTYPES[resolve("auto", device)])
    return whole


def _prompts(folder: Path) -> list[list[int]]:
    """As many tokens of the first rows as are to be written after them."""
    sizes, split = sizes_of(folder), StoredSplit(folder / "tokens", "test")
    rows = split.rows[: sizes["num_prompts"]]
    return [row["tokens"][: sizes["new_tokens"]].tolist() for row in rows]


def _never(model: PreTrainedModel) -> list[int]:
    """Stop tokens that no model writes, so that all write equally many."""
    return [model.config.vocab_size]


def _evaluation(
    evaluate: Callable[[], object],
    model: PreTrainedModel,
    num_rows: int,
    folder: Path,
    device: torch.device,
) -> dict[str, float]:
    block_size = sizes_of(folder)["block_size"]
    speed = num_rows * block_size / _second_time(evaluate, device)
    # A forward pass is a third of what a step of training takes.
    return {"tokens_per_second": speed, "flops": speed * flops_per_token(model, block_size) / 3}


def _generation(
    generate: Callable[[], None], sizes: dict[str, Any], device: torch.device
) -> dict[str, float]:
    tokens = sizes["num_prompts"] * sizes["new_tokens"]
    return {"tokens_per_second": tokens / _second_time(generate, device)}


def _second_time(run: Callable[[], object], device: torch.device) -> float:
    """Seconds; the first time doesn't count."""
    run()
    began = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
