"""Ways to evaluate on the test split and to continue prompts, all in the same arithmetic."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Trainer, TrainingArguments

from benchmarks.gpu.setting import sizes_of
from benchmarks.peak import DTYPES
from benchmarks.trainer import Rows
from benchmarks.turns import Turns
from moray.evaluate.worker import batches_of
from moray.model.forward import compile_model, resolve
from moray.model.load import load_model
from moray.model.size import flops_per_token
from moray.tasks.language.generation import Sampling, continue_prompts
from moray.tasks.language.likelihood import score, select_documents
from moray.tasks.language.rows import StoredSplit


def trainer_evaluation(folder: Path, work: Path, device: torch.device, turns: Turns) -> None:
    """The mean loss by the `Trainer` of transformers."""
    arguments = TrainingArguments(
        str(work),
        per_device_eval_batch_size=sizes_of(folder).rows,
        report_to=[],
        prediction_loss_only=True,
        use_cpu=device.type == "cpu",
    )
    rows, model = Rows(folder, "test"), _model(folder, device)
    _evaluated(Trainer(model, arguments, eval_dataset=rows).evaluate, model, folder, turns)


def moray_evaluation(
    folder: Path,
    work: Path,
    device: torch.device,
    turns: Turns,
    rows: int | None = None,
    compiled: bool = False,
) -> None:
    """The scores of each document by moray, in batches of `rows`, or of as many as in training."""
    split, model = StoredSplit(folder / "tokens", "test"), _model(folder, device)
    if compiled:
        compile_model(model, whole=False)
    selection = select_documents(split, None)
    batches = batches_of(selection.rows, rows or sizes_of(folder).rows)
    _evaluated(lambda: score(model, split, selection, batches), model, folder, turns)


def one_by_one(folder: Path, work: Path, device: torch.device, turns: Turns) -> None:
    """`generate` of transformers, a prompt at a time."""
    prompts, model, sizes = _prompts(folder), _model(folder, device), sizes_of(folder)

    def generate() -> None:
        for prompt in prompts:
            tokens = torch.tensor([prompt], device=device)
            model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=sizes.new_tokens,
                do_sample=False,
                eos_token_id=_never(model),
                pad_token_id=0,
            )

    turns.repeat(generate, sizes.num_prompts * sizes.new_tokens)


def moray_generation(folder: Path, work: Path, device: torch.device, turns: Turns) -> None:
    """moray's continuations, in batches."""
    model, sizes = _model(folder, device), sizes_of(folder)
    prompts = list(enumerate(_prompts(folder)))
    stops = tuple(_never(model))
    sampling = Sampling(sizes.new_tokens, 0.0, 1.0, seed=0, stops=stops, padding=0)

    def generate() -> None:
        for start in range(0, len(prompts), sizes.rows):
            continue_prompts(model, dict(prompts[start : start + sizes.rows]), sampling)

    turns.repeat(generate, sizes.num_prompts * sizes.new_tokens)


def _model(folder: Path, device: torch.device) -> PreTrainedModel:
    model: Any = load_model(folder / "model")
    whole: PreTrainedModel = model.to(device, DTYPES[resolve("auto", device)])
    return whole


def _prompts(folder: Path) -> list[list[int]]:
    """As many tokens of the first rows as are to be written after them."""
    sizes, split = sizes_of(folder), StoredSplit(folder / "tokens", "test")
    rows = split.rows[: sizes.num_prompts]
    return [row["tokens"][: sizes.new_tokens].tolist() for row in rows]


def _never(model: PreTrainedModel) -> list[int]:
    """Stop tokens that no model writes, so that all write equally many."""
    return [model.config.vocab_size]


def _evaluated(
    evaluate: Callable[[], object], model: PreTrainedModel, folder: Path, turns: Turns
) -> None:
    block_size = sizes_of(folder).block_size
    tokens = len(StoredSplit(folder / "tokens", "test")) * block_size
    # A forward pass is a third of what a step of training takes.
    turns.repeat(evaluate, tokens, flops_per_token(model, block_size) / 3)
