"""Scores and continuations by plain transformers, a document at a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer

from moray.proofs.budget import TOO_LARGE, num_affordable
from moray.proofs.comparison import Comparison, transformers_version
from moray.proofs.figures import ROUNDED
from moray.tasks.language.proofs.plain import load, log_probabilities

_TRAINED = 1
_MOST_PIECES, _MOST_TOKENS = 8, 1024
_CPU = torch.device("cpu")
# A logit that differs so much from another, relative to the largest, may be the larger one.
_CLOSE = {False: 1e-4, True: 2e-2}


def compare_scores_with_plain(
    models: Mapping[str, Path],
    rows: NDArray[np.void],
    segments: NDArray[np.int64],
    nll: Mapping[str, NDArray[np.float64]],
    seconds: float,
    bf16: bool,
) -> Iterator[Comparison]:
    """Compare the losses of a few pieces of held-out documents.

    Args:
        models: folders by name.
        rows: of the split, shape (rows,).
        segments: offset in the flattened rows and length of each piece, shape (pieces, 2 or more).
        nll: for each model, the sum of each piece's losses, nats, shape (pieces,).
        seconds: that scoring took.
        bf16: whether the models were scored in bf16.
    """
    for name, folder in models.items():
        what = f"loss of {name} on held-out rows"
        affordable = num_affordable(folder, seconds, _CPU, num_models=len(models))
        few = _few(segments[:, 1].tolist(), affordable)
        if not few:
            yield Comparison(what, skipped=TOO_LARGE)
            continue
        model, total, count = load(folder), 0.0, 0
        with torch.no_grad():
            for start, length, *_ in segments[:few].tolist():
                tokens, mask = _piece(rows, start, length)
                scores = log_probabilities(model, tokens, mask)
                total, count = total - float(scores.double().sum()), count + len(scores)
        here, plain = float(nll[name][:few].sum()) / count, total / count
        tolerance = ROUNDED if bf16 else 1e-4
        yield Comparison(what, here, plain, transformers_version(), few, tolerance)


def _few(lengths: Sequence[int], affordable: int) -> int:
    """How many of the first pieces are compared; one may be longer than the usual sample."""
    ends = np.cumsum(lengths[:_MOST_PIECES])
    return int((ends <= min(affordable, max(_MOST_TOKENS, ends[0]))).sum())


def _piece(rows: NDArray[np.void], start: int, length: int) -> tuple[list[int], list[bool]]:
    row, column = divmod(start, rows["tokens"].shape[1])
    part = slice(column, column + length)
    mask = (rows["flags"][row, part] & _TRAINED).astype(bool)
    return rows["tokens"][row, part].tolist(), mask.tolist()


@dataclass(frozen=True)
class Continuation:
    """A prompt and its continuation, including the stop token, as tokens.

    `text` is what the continuation adds to the prompt, without the stop token.
    """

    prompt: Sequence[int]
    new: Sequence[int]
    text: str


def compare_continuations(
    models: Mapping[str, Path],
    samples: Mapping[str, Sequence[Continuation]],
    temperature: float,
    top_p: float,
    seconds: float,
    bf16: bool,
) -> Iterator[Comparison]:
    """Count the tokens of a few continuations that plain transformers could choose.

    Without a temperature, those are the likeliest at their places; else those of the smallest set
    that has `top_p` of the probability. And count the texts that make a prompt's text that of all
    tokens, which of a first word without its space isn't so. Other arguments are those of
    `compare_scores_with_plain`.
    """
    # The tokenizer of a base model may lack the template's tokens.
    *_, last = models.values()
    tokenizer: Any = AutoTokenizer.from_pretrained(
        last, local_files_only=True, trust_remote_code=False
    )
    for name, folder in models.items():
        what = f"tokens of {name}'s continuations that can be drawn"
        # The shortest ones, as the first can be too long.
        shortest = sorted(samples[name], key=lambda one: len(one.prompt) + len(one.new))
        lengths = [len(one.prompt) + len(one.new) for one in shortest]
        few = shortest[
            : _few(lengths, num_affordable(folder, seconds, _CPU, num_models=len(models)))
        ]
        if not few:
            yield Comparison(what, skipped=TOO_LARGE)
            continue
        model = load(folder)
        possible = sum(_num_possible(model, one, temperature, top_p, _CLOSE[bf16]) for one in few)
        number = sum(len(sample.new) for sample in few)
        yield Comparison(what, number, possible, transformers_version(), len(few))
        fitting = sum(_fits(tokenizer, one) for one in few)
        what = f"texts of {name}'s continuations"
        yield Comparison(what, len(few), fitting, transformers_version(), len(few))


def _fits(tokenizer: Any, sample: Continuation) -> bool:
    """Whether a prompt with its continuation reads as all tokens do, up to the stop token.

    White space at the end doesn't count: some tokenizers put it before another token only.
    """
    prompt, whole = (
        str(tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))
        for tokens in (sample.prompt, [*sample.prompt, *sample.new])
    )
    if not whole.startswith(prompt):
        # If decoding changes the end of the prompt, nothing is the continuation's alone.
        return True
    stop = str(tokenizer.decode([sample.new[-1]], clean_up_tokenization_spaces=False))
    read = {whole.removesuffix(stop).rstrip()}
    if sample.new[-1] != tokenizer.eos_token_id:
        read.add(whole.rstrip())
    return f"{prompt}{sample.text}".rstrip() in read


@torch.no_grad()
def _num_possible(
    model: torch.nn.Module, sample: Continuation, temperature: float, top_p: float, close: float
) -> int:
    ids = torch.tensor([[*sample.prompt, *sample.new]])
    logits = model(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1].double()
    own = logits.gather(1, torch.tensor(sample.new)[:, None])
    likelier = logits > own + close * logits.abs().amax(1, keepdim=True)
    if not temperature:
        return int((~likelier.any(1)).sum())
    probabilities = (logits / temperature).softmax(1)
    return int(((probabilities * likelier).sum(1) < top_p).sum())
