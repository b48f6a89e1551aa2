"""Training without anything of the package's own: what its losses are held against.

Only the order of rows and the schedule are those of the package.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from packed import pieces_of
from transformers import AutoModelForCausalLM

from moray.rows.store import StoredRows
from moray.tasks.language.rows import StoredSplit
from moray.train.job import Job
from moray.train.schedule import learning_rate
from moray.train.step import mixture_of

Answer = tuple[list[int], list[bool]]


def losses_one_by_one(job: Job) -> list[float]:
    """The loss of each step of a run, by plain transformers and AdamW, one document at a time."""
    split, model = StoredSplit(job.store, "train"), _start_of(job)

    def backward(rows: NDArray[np.int64]) -> float:
        documents = [piece for row in rows for piece in documents_of(split, int(row))]
        count = sum(int(mask.sum()) for _, mask in documents)
        total = 0.0
        for tokens, mask in documents:
            logits = model(input_ids=tokens.unsqueeze(0)).logits[0, :-1]
            nll = F.cross_entropy(logits, tokens[1:], reduction="none")
            loss = nll[mask[1:]].sum() / count
            torch.autograd.backward(loss)
            total += loss.item()
        return total

    return _trained(job, model, backward)


def preference_losses_one_by_one(job: Job) -> list[float]:
    """The loss of each step of DPO or IPO, with both models in memory and each answer alone."""
    split, model, start = StoredRows(job.store, "train"), _start_of(job), _start_of(job)

    def backward(rows: NDArray[np.int64]) -> float:
        pairs = [pair for row in split.rows[rows] for pair in pairs_of(row)]
        total = 0.0
        for pair in pairs:
            now = [log_probability(model, answer) for answer in pair]
            with torch.no_grad():
                before = [log_probability(start, answer) for answer in pair]
            ratios = [a - b for a, b in zip(now, before, strict=True)]
            loss = loss_of(ratios, [sum(mask) for _, mask in pair], job.task_settings["preference"])
            torch.autograd.backward(loss / len(pairs))
            total += loss.item() / len(pairs)
        return total

    return _trained(job, model, backward)


def _start_of(job: Job) -> Any:
    return AutoModelForCausalLM.from_pretrained(job.start, dtype=torch.float32)


def _trained(job: Job, model: Any, backward: Callable[[NDArray[np.int64]], float]) -> list[float]:
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


def documents_of(split: StoredSplit, row: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and mask of each piece in a row."""
    return [
        (torch.from_numpy(piece.tokens.astype(np.int64)), torch.from_numpy(piece.mask))
        for piece in pieces_of(split, row)
    ]


def loss_of(ratios: list[Any], lengths: list[int], keys: dict[str, Any]) -> Any:
    """The loss of a pair from the log-ratios of chosen and rejected."""
    beta, noise = keys["beta"], keys["label_smoothing"]
    if keys["loss"] == "ipo":
        return (ratios[0] / lengths[0] - ratios[1] / lengths[1] - 0.5 / beta) ** 2
    margin = beta * (ratios[0] - ratios[1])
    return (1 - noise) * F.softplus(-margin) + noise * F.softplus(margin)


def log_probability(model: Any, answer: Answer) -> Any:
    """Of an answer's trained tokens."""
    tokens, mask = torch.tensor([answer[0]]), torch.tensor(answer[1][1:])
    logs = model(input_ids=tokens).logits[0, :-1].log_softmax(-1)
    return logs.gather(1, tokens[0, 1:, None])[:, 0][mask].sum()


def pairs_of(row: np.void) -> list[tuple[Answer, Answer]]:
    """The pairs of a row, by its flags: 1 trained, 2 first, 4 rejected."""
    pieces: list[Answer] = []
    for token, flag in zip(row["tokens"].tolist(), row["flags"].tolist(), strict=True):
        if flag & 2:
            pieces.append(([], []))
            assert bool(flag & 4) == (len(pieces) % 2 == 0) or token == 0
        pieces[-1][0].append(token)
        pieces[-1][1].append(bool(flag & 1))
    # What is left of the row is padding.
    whole = [piece for piece in pieces if any(piece[1])]
    return list(zip(whole[::2], whole[1::2], strict=True))
