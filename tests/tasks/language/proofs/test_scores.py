"""Faults planted into scores and continuations, and what plain transformers computes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from moray.proofs.comparison import Comparison
from moray.tasks.language.generation import Sampling, continue_prompts
from moray.tasks.language.likelihood import score, select_documents
from moray.tasks.language.proofs.scores import (
    Continuation,
    compare_continuations,
    compare_scores_with_plain,
)
from moray.tasks.language.rows import Segment, StoredSplit


def compared(
    tuned_folder: Path, store: Path, nll: np.ndarray[Any, Any], segments: np.ndarray[Any, Any]
) -> Comparison:
    rows = StoredSplit(store, "test").rows
    (found,) = compare_scores_with_plain({"x": tuned_folder}, rows, segments, {"x": nll}, 0, False)
    return found


def test_scores_are_those_of_plain_transformers(
    model: PreTrainedModel, tuned_folder: Path, store: Path
) -> None:
    split = StoredSplit(store, "test")
    selection = select_documents(split, None)
    scores = score(model, split, selection, [selection.rows])
    found = compared(tuned_folder, store, scores.nll, selection.segments)
    assert found.here == pytest.approx(found.plain, rel=1e-5)
    assert found.rows == 8
    # Of a piece more or less, and of the next piece's tokens.
    for wrong in (scores.nll * 1.001, np.roll(scores.nll, 1)):
        assert not compared(tuned_folder, store, wrong, selection.segments).holds
    moved = selection.segments.copy()
    moved[:, Segment.LENGTH] -= 1
    assert not compared(tuned_folder, store, scores.nll, moved).holds


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (0.8, 0.9)])
def test_continuations_are_possible_under_plain_transformers(
    model: PreTrainedModel,
    tuned_folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    temperature: float,
    top_p: float,
) -> None:
    prompts = {
        n: tokenizer(text)["input_ids"] for n, text in enumerate(("def self", "not in if a"))
    }
    stop = tokenizer.eos_token_id
    sampling = Sampling(12, temperature, top_p, 0, (stop,), stop)

    def of(new: dict[int, list[int]]) -> Comparison:
        samples = {"x": [Continuation(prompts[n], new[n], "") for n in prompts]}
        models = {"x": tuned_folder}
        tokens, _ = compare_continuations(models, samples, temperature, top_p, 0, False)
        return tokens

    new = continue_prompts(model, prompts, sampling)
    assert of(new).holds
    assert of(new).here == sum(map(len, new.values()))
    # As if the padding of a batch counted, or another model had written them.
    assert not of({n: tokens[::-1] for n, tokens in new.items()}).holds
    torch.manual_seed(0)
    for weight in model.parameters():
        weight.data += torch.randn_like(weight)
    assert not of(continue_prompts(model, prompts, sampling)).holds


@pytest.mark.parametrize(
    ("text", "fits"),
    [(" value", True), ("value", False), (" value<|endoftext|>", False), ("", False)],
)
def test_the_text_of_a_continuation_is_what_it_adds_to_the_prompt(
    tuned_folder: Path, tokenizer: PreTrainedTokenizerFast, text: str, fits: bool
) -> None:
    prompt, new = (tokenizer(part)["input_ids"] for part in ("not in", " value"))
    sample = Continuation(prompt, [*new, tokenizer.eos_token_id], text)
    _, texts = compare_continuations({"x": tuned_folder}, {"x": [sample]}, 0.0, 1.0, 0, False)
    assert (texts.here, texts.plain, texts.holds) == (1, int(fits), fits)
