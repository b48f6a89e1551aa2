"""Training without anything of the package's own: what its losses are held against."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from packed import pieces_of
from transformers import AutoModelForCausalLM

from moray.tasks.language.rows import StoredSplit
from moray.train.job import Job
from moray.train.schedule import learning_rate
from moray.train.step import mixture_of


def losses_one_by_one(job: Job) -> list[float]:
    """The loss of each step of a run, by plain transformers and AdamW, one document at a time."""
    settings, split = job.settings, StoredSplit(job.store, "train")
    model = AutoModelForCausalLM.from_pretrained(job.start, dtype=torch.float32)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        betas=(settings.adam_beta1, settings.adam_beta2),
    )
    mixture, means = mixture_of(job.parts, settings), []
    assert settings.max_steps is not None
    for step in range(settings.max_steps):
        documents = [
            piece for row in mixture.rows(step)[1] for piece in documents_of(split, int(row))
        ]
        count = sum(int(mask.sum()) for _, mask in documents)
        total = 0.0
        for tokens, mask in documents:
            logits = model(input_ids=tokens.unsqueeze(0)).logits[0, :-1]
            nll = F.cross_entropy(logits, tokens[1:], reduction="none")
            loss = nll[mask[1:]].sum() / count
            torch.autograd.backward(loss)
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, settings.max_steps)
        optimizer.step()
        optimizer.zero_grad()
        means.append(total)
    return means


def documents_of(split: StoredSplit, row: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and mask of each piece in a row."""
    return [
        (torch.from_numpy(piece.tokens.astype(np.int64)), torch.from_numpy(piece.mask))
        for piece in pieces_of(split, row)
    ]
