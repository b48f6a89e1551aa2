"""A teacher and the loss with it by plain transformers: a document at a time, all of its logits.

Of stored rows, `teacher_tokens` and `teacher_logs` have an entry for each trained token.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from moray.config.schema.losses import Distillation
from moray.proofs.budget import TOO_LARGE, num_affordable
from moray.proofs.comparison import Comparison, transformers_version
from moray.proofs.figures import ROUNDED
from moray.tasks.language.proofs.plain import load, pieces_of

_MOST_DOCUMENTS = 8
# Of sums over probabilities that are stored in 16 bits.
_STORED = 2e-3


def losses(model: Any, rows: NDArray[np.void], settings: Distillation) -> Iterator[Tensor]:
    """The sum of the losses of each document in some rows, nats, shape ().

    Source: Hinton et al., "Distilling the Knowledge in a Neural Network", 2015; what the teacher's
    entries leave out is one class.
    """
    alpha, temperature = settings.alpha, settings.temperature
    for logits, targets, tokens, logs in _documents(model, rows):
        student = F.softmax(logits / temperature, -1)
        teacher = torch.zeros_like(student).scatter(1, tokens, logs.exp())
        is_whole = tokens.shape[1] == student.shape[1]
        mass = teacher.sum(1, keepdim=True)
        teacher = teacher / (mass if is_whole else mass.clamp(min=1))
        if not is_whole:
            student, teacher = (_with_rest(one, tokens) for one in (student, teacher))
        divergence = F.kl_div(student.clamp(min=1e-300).log(), teacher, reduction="sum")
        own = F.cross_entropy(logits, targets, reduction="sum")
        yield (1 - alpha) * own + alpha * temperature**2 * divergence


def _with_rest(distribution: Tensor, tokens: Tensor) -> Tensor:
    """The probabilities of some tokens, and what is missing to 1."""
    chosen = distribution.gather(1, tokens)
    return torch.cat([chosen, (1 - chosen.sum(1, keepdim=True)).clamp(min=0)], 1)


def compare_with_plain(
    teacher: Path,
    rows: NDArray[np.void],
    temperature: float,
    vocabulary: int,
    seconds: float,
    bf16: bool,
) -> Iterator[Comparison]:
    """Compare the entropy of the tokens that were stored with that of plain transformers.

    Args:
        rows: of the stored split.
        vocabulary: number of tokens that the teacher's probabilities are of.
        seconds: that the stage took.
        bf16: whether the teacher computed in bf16.
    """
    what = "entropy of the teacher's likeliest tokens"
    device = torch.device("cpu")
    affordable = num_affordable(teacher, seconds, device) // rows["tokens"].shape[1]
    if not affordable:
        yield Comparison(what, skipped=TOO_LARGE)
        return
    here = plain = 0.0
    count = 0
    with torch.no_grad():
        documents = _documents(load(teacher), rows)
        for logits, targets, tokens, stored in islice(documents, min(_MOST_DOCUMENTS, affordable)):
            logs = F.log_softmax(logits[:, :vocabulary] / temperature, -1).gather(1, tokens)
            here, plain = (
                total - float((one.exp() * one).sum())
                for total, one in ((here, stored), (plain, logs))
            )
            count += len(targets)
    most = ROUNDED if bf16 else _STORED
    yield Comparison(what, here / count, plain / count, transformers_version(), len(rows), most)


def _documents(model: Any, rows: NDArray[np.void]) -> Iterator[tuple[Tensor, ...]]:
    """Of each document: logits, fp64, trained tokens, and the tokens and logs of their entries."""
    for row in rows:
        entry = 0
        for piece, mask in pieces_of(np.array([row])):
            ids = torch.tensor([piece], device=model.device)
            trained = torch.tensor(mask[1:], device=model.device)
            end = entry + int(trained.sum())
            tokens, logs = (
                torch.from_numpy(row[field][entry:end].astype(kind)).to(model.device)
                for field, kind in (("teacher_tokens", "i8"), ("teacher_logs", "f8"))
            )
            entry = end
            logits = model(input_ids=ids).logits[0, :-1][trained].double()
            yield logits, ids[0, 1:][trained], tokens, logs
