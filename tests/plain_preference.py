"""DPO and IPO without anything of the package's own but the order of rows and the schedule."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from moray.rows.store import StoredRows
from moray.train.job import Job
from moray.train.schedule import learning_rate
from moray.train.step import mixture_of

Answer = tuple[list[int], list[bool]]


def preference_losses_one_by_one(job: Job) -> list[float]:
    """The loss of each step, with both models in memory and each answer alone."""
    settings, split = job.settings, StoredRows(job.store, "train")
    model, start = (
        AutoModelForCausalLM.from_pretrained(job.start, dtype=torch.float32) for _ in range(2)
    )
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    mixture, means = mixture_of(job.parts, settings), []
    assert settings.max_steps is not None
    for step in range(settings.max_steps):
        pairs = [pair for row in split.rows[mixture.rows(step)[1]] for pair in pairs_of(row)]
        total = 0.0
        for pair in pairs:
            now = [log_probability(model, answer) for answer in pair]
            with torch.no_grad():
                before = [log_probability(start, answer) for answer in pair]
            ratios = [a - b for a, b in zip(now, before, strict=True)]
            loss = loss_of(ratios, [sum(mask) for _, mask in pair], job.task_settings["preference"])
            torch.autograd.backward(loss / len(pairs))
            total += loss.item() / len(pairs)
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, settings.max_steps)
        optimizer.step()
        optimizer.zero_grad()
        means.append(total)
    return means


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
