"""Training without anything of the package's own: what its losses are held against.

Only the order of rows and the schedule are those of the package.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moray.config.schema.losses import Distillation, Kto, Preference
from moray.rows.store import StoredRows
from moray.tasks.distillation.proofs import losses as losses_with_teacher
from moray.tasks.kto.proofs import labels_of, losses_of, ratios_of
from moray.tasks.language.proofs.plain import load, log_probabilities, pieces_of
from moray.tasks.preference.proofs import answers_of, loss_of
from moray.train.schedule import learning_rate
from moray.train.spec import RunSpec
from moray.train.step import mixture_of


def losses_one_by_one(job: RunSpec) -> list[float]:
    """The loss of each step of a run, by plain transformers and AdamW, one document at a time.

    Of a start that is an adapter, by PEFT, which trains on it.
    """
    split, model = StoredRows(job.store, "train"), load(job.start)
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            weight.requires_grad_(True)

    def backward(rows: NDArray[np.int64]) -> float:
        documents = list(pieces_of(split.rows[rows]))
        count = sum(sum(mask) for _, mask in documents)
        total = 0.0
        for tokens, mask in documents:
            loss = -log_probabilities(model, tokens, mask).sum() / count
            torch.autograd.backward(loss)
            total += loss.item()
        return total

    return _trained(job, model, backward)


def balanced_losses(job: RunSpec) -> list[float]:
    """The loss of each step of a mixture of experts, whose documents are padded into one batch.

    With the load-balancing loss of transformers.
    """
    split, model = StoredRows(job.store, "train"), load(job.start).train()

    def backward(rows: NDArray[np.int64]) -> float:
        documents = list(pieces_of(split.rows[rows]))
        ids = torch.zeros(len(documents), max(len(tokens) for tokens, _ in documents)).long()
        labels, attended = torch.full_like(ids, -100), torch.zeros_like(ids)
        for number, (tokens, mask) in enumerate(documents):
            count = len(tokens)
            ids[number, :count], attended[number, :count] = torch.tensor(tokens), 1
            labels[number, :count] = torch.where(torch.tensor(mask), torch.tensor(tokens), -100)
        loss = model(
            input_ids=ids, attention_mask=attended, labels=labels, output_router_logits=True
        ).loss
        torch.autograd.backward(loss)
        return float(loss)

    return _trained(job, model, backward)


def preference_losses_one_by_one(job: RunSpec) -> list[float]:
    """The loss of each step on pairs, with both models in memory and each answer alone."""
    split, model, start = StoredRows(job.store, "train"), load(job.start), load(job.start)
    settings = Preference(**job.task_settings["preference"])

    def backward(rows: NDArray[np.int64]) -> float:
        reference = start if settings.has_reference else None
        pairs = answers_of(model, reference, split.rows[rows])
        losses = [loss_of(*pair, settings) for pair in pairs]
        mean = torch.stack(losses).mean()
        torch.autograd.backward(mean)
        return mean.item()

    return _trained(job, model, backward)


def taught_losses_one_by_one(job: RunSpec) -> list[float]:
    """The loss of each step of a run with a teacher, one document at a time."""
    split, model = StoredRows(job.store, "train"), load(job.start)
    settings = Distillation(**job.task_settings["distillation"])

    def backward(rows: NDArray[np.int64]) -> float:
        chosen = split.rows[rows]
        count = sum(sum(mask[1:]) for _, mask in pieces_of(chosen))
        total = 0.0
        for loss in losses_with_teacher(model, chosen, settings):
            torch.autograd.backward(loss / count)
            total += loss.item() / count
        return total

    return _trained(job, model, backward)


def kto_losses_one_by_one(job: RunSpec) -> list[float]:
    """The loss of each step on good and bad answers, likewise."""
    split, model, start = StoredRows(job.store, "train"), load(job.start), load(job.start)
    settings = Kto(**job.task_settings["kto"])

    def backward(rows: NDArray[np.int64]) -> float:
        some = split.rows[rows]
        ratios, apart = ratios_of(model, start, some)
        mean = torch.stack([*losses_of(ratios, labels_of(some), apart, settings)]).mean()
        torch.autograd.backward(mean)
        return mean.item()

    return _trained(job, model, backward)


def _trained(
    job: RunSpec, model: Any, backward: Callable[[NDArray[np.int64]], float]
) -> list[float]:
    """Train a model by AdamW; `backward` adds the gradients of a step's rows, and has its loss."""
    settings = job.settings
    groups: list[dict[str, Any]] = [
        {
            "params": [p for p in model.parameters() if p.dim() >= 2],
            "weight_decay": settings.weight_decay,
        },
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(settings.adam_beta1, settings.adam_beta2))
    mixture, losses = mixture_of(job.parts, settings), []
    assert settings.max_steps is not None
    for step in range(settings.max_steps):
        losses.append(backward(mixture.rows(step)[1]))
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, settings.max_steps)
        optimizer.step()
        optimizer.zero_grad()
    return losses
