"""How far bf16 puts losses of long answers apart, by models in both precisions."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from moray.config.schema.losses import Preference
from moray.rows.store import Rows
from moray.tasks.language.rows import FIRST, TRAINED, row_type
from moray.tasks.preference.proofs import figures_of
from moray.tasks.preference.rows import REJECTED

LENGTH = 256


def pairs() -> Rows:
    """A pair of random answers, each of a whole half of a row."""
    rows = np.zeros(1, row_type(2 * LENGTH, np.dtype("u2")))
    rows["tokens"] = np.random.default_rng(0).integers(0, 512, (1, 2 * LENGTH))
    rows["flags"][:, [0, LENGTH]] = FIRST
    rows["flags"][:, 1:LENGTH] = rows["flags"][:, LENGTH + 1 :] = TRAINED
    rows["flags"][:, LENGTH:] |= REJECTED
    return rows


def model_of(seed: int, noise: float = 0.0) -> Any:
    """The model of seed 0, with noise of another seed on its weights."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.25,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * torch.randn_like(weight)
    return model


@pytest.mark.parametrize("loss", ["dpo", "cpo", "ipo", "simpo"])
def test_a_difference_of_long_answers_is_within_the_rounding_of_bf16(loss: Any) -> None:
    settings, rows = Preference(loss=loss), pairs()
    reference = model_of(0) if settings.has_reference else None
    differences, roundings = [], []
    for seed in range(1, 9):
        model = model_of(seed, 0.02)
        figures = figures_of(model, reference, rows, settings)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = figures_of(model, reference, rows, settings)
        differences.append(abs(rounded.loss - figures.loss))
        roundings.append(figures.rounding)
        if loss == "dpo" and seed == 1:
            # More than is allowed of means over tokens.
            assert differences[0] > 0.05 * figures.loss
    ratios = np.divide(differences, roundings)
    # Four deviations; those of eight models are near one.
    assert ratios.max() < 1
    assert 0.1 < np.sqrt(np.mean(ratios**2)) < 0.5
