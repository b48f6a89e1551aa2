"""The load-balancing loss, against that of transformers."""

from typing import Any

import numpy as np
import pytest
import torch
from architectures import PACKED, UNPACKED, build
from transformers import PreTrainedModel

from moray.errors import UserError
from moray.tasks.language.loss import TokenLoss, has_plain_head, make_batch
from moray.tasks.language.proofs.plain import pieces_of
from moray.tasks.language.rows import FIRST, TRAINED, row_type
from moray.train.task import Batch

KNOWN = PACKED | UNPACKED
WITH_BALANCE = [
    "Qwen3-MoE",
    "Mixtral",
    "OLMoE",
    "Phi-3.5-MoE",
    "Granite MoE",
    "gpt-oss",
    "Qwen2-MoE",
]
LENGTH = 24


def rows_of(lengths: list[list[int]]) -> Any:
    """Rows of documents of these lengths, trained but for their first token, and padding."""
    rng = np.random.default_rng(0)
    rows = np.zeros(len(lengths), row_type(LENGTH, np.dtype("<u2")))
    for row, documents in zip(rows, lengths, strict=True):
        ends = np.cumsum([0, *documents])
        row["tokens"][: ends[-1]] = rng.integers(1, 300, ends[-1])
        row["flags"][: ends[-1]] = TRAINED
        row["flags"][ends[ends < LENGTH]] = FIRST
    return rows


def by_transformers(model: PreTrainedModel, rows: Any) -> tuple[float, torch.Tensor]:
    """Its loss and balance of documents that are padded into one batch, and all gradients."""
    documents = [np.array(tokens) for tokens, _ in pieces_of(rows)]
    width = max(map(len, documents))
    ids = torch.zeros(len(documents), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, document in enumerate(documents):
        ids[number, : len(document)] = torch.from_numpy(document.astype(np.int64))
        mask[number, : len(document)] = 1
    labels = torch.where(mask > 0, ids, -100)
    output = model(input_ids=ids, attention_mask=mask, labels=labels, output_router_logits=True)
    output.loss.backward()
    gradients = [value.grad for value in model.parameters() if value.grad is not None]
    return output.loss.item(), torch.cat([value.flatten() for value in gradients])


def step(model: PreTrainedModel, batches: list[Any], setting: bool | float) -> Any:
    """Loss and gradients of a step of these micro-batches."""
    module = TokenLoss(model, has_plain_head(model))
    module.balance_routers(setting)
    module.train()
    made: list[Batch] = [make_batch(rows) for rows in batches]
    weight = sum(len(batch.targets) for batch in made)  # type: ignore[attr-defined, misc]
    module.begin_step(made, weight)
    total = 0.0
    for batch in made:
        loss = module(batch) / weight
        loss.backward()
        total += loss.item()
    gradients = [value.grad for value in model.parameters() if value.grad is not None]
    return total, torch.cat([value.flatten() for value in gradients])


@pytest.mark.parametrize("architecture", WITH_BALANCE)
def test_loss_and_gradients_are_those_of_transformers_in_any_micro_batches(
    architecture: str,
) -> None:
    packed = [[10, 9], [24], [7, 8, 5], [20]]
    rows = rows_of(packed if architecture in PACKED else [[10], [24], [7], [20]])
    # Large enough to be seen in the loss.
    models = [build(KNOWN[architecture]()) for _ in range(4)]
    for model in models:
        model.config.router_aux_loss_coef = model.router_aux_loss_coef = 0.5
    expected, gradients = by_transformers(models[0].train(), rows)
    assert expected > 0.5
    for model, batches in zip(models[1:], (1, 2, 4), strict=True):
        found = step(model, np.split(rows, batches), True)
        assert found[0] == pytest.approx(expected, rel=1e-6), batches
        torch.testing.assert_close(found[1], gradients, rtol=1e-4, atol=1e-6)


def test_a_number_is_the_coefficient_and_held_out_rows_have_none() -> None:
    rows = rows_of([[10, 9], [24]])
    off, one, two = (
        step(build(KNOWN["Mixtral"]()), [rows], value)[0] for value in (1e-9, 1.0, 2.0)
    )
    assert two - off == pytest.approx(2 * (one - off), rel=1e-4)
    # Four experts of which two are chosen: balanced, it is 2.
    assert 2 - 1e-3 < one - off < 4
    model = build(KNOWN["Mixtral"]())
    module = TokenLoss(model, plain_head=True)
    held_out = module.eval()(make_batch(rows))
    module.balance_routers(1.0)
    assert torch.equal(module.eval()(make_batch(rows)), held_out)


@pytest.mark.parametrize("architecture", ["Llama", "DeepSeek-V3"])
def test_architectures_without_one_are_refused(architecture: str) -> None:
    module = TokenLoss(build(KNOWN[architecture]()), plain_head=True)
    with pytest.raises(UserError, match=r"^train\.router_aux_loss: transformers has no load-bal"):
        module.balance_routers(True)
