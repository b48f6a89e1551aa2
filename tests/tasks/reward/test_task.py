"""Losses and gradients of a batch of pairs are those of plain transformers, by TRL's formula."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from classified import DECODERS, ENCODERS, degree, prepare, with_labels
from rewarded import prepare_pairs, text_pairs
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from moray.errors import UserError
from moray.rows.store import Rows, StoredRows
from moray.tasks.reward.task import pair_losses
from moray.train.task import Task, task_of

Figures = tuple[float, dict[str, torch.Tensor]]


def task_with(folder: Path, coefficient: float | None = None) -> Task:
    return task_of(folder / "labelled", {"reward": {"center_rewards_coefficient": coefficient}})


def figures(task: Task, folder: Path, rows: Rows) -> Figures:
    """The mean loss of rows in one batch, and its gradients, in fp64."""
    model = task.load(folder / "model", torch.float64, None)
    module = task.loss_module(model).train()
    loss = module(task.batch(rows, None)) / task.weight(rows)
    loss.backward()
    return loss.item(), _gradients(model)


def _gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def trl_loss(
    chosen: torch.Tensor, rejected: torch.Tensor, margins: torch.Tensor, coefficient: float | None
) -> torch.Tensor:
    """The loss of TRL's `RewardTrainer`, as it is documented."""
    loss = -nn.functional.logsigmoid(chosen - rejected - margins).mean()
    if coefficient is not None:
        loss = loss + coefficient * torch.mean((chosen + rejected) ** 2)
    return loss


def trl_figures(folder: Path, rows: Rows, coefficient: float | None, side: str) -> Figures:
    """The same as TRL's `RewardTrainer` computes them, of a batch padded by the tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model", padding_side=side)
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        folder / "model", dtype=torch.float64
    )
    texts = [
        {"input_ids": row["tokens"][place, : row["length"][place]].astype(np.int64).tolist()}
        for place in (0, 1)
        for row in rows
    ]
    inputs = tokenizer.pad(texts, return_tensors="pt")
    outputs = model(**inputs, use_cache=False) if "use_cache" in model.config else model(**inputs)
    chosen, rejected = torch.chunk(outputs.logits.squeeze(-1), chunks=2)
    margins = torch.from_numpy(rows["margin"].astype(np.float64))
    loss = trl_loss(chosen, rejected, margins, coefficient)
    torch.autograd.backward(loss)
    return loss.item(), _gradients(model)


def check_equal(folder: Path, coefficient: float | None = None, side: str = "right") -> None:
    """Hold the figures of some rows, with one of padding among them, to TRL's."""
    task = task_with(folder, coefficient)
    rows = StoredRows(folder / "labelled", "train").rows[:8]
    padded = np.concatenate([rows[:3], np.zeros(1, rows.dtype), rows[3:]])
    found, gradients = figures(task, folder, padded)
    expected, others = trl_figures(folder, rows, coefficient, side)
    assert found == pytest.approx(expected, rel=1e-6)
    assert gradients.keys() == others.keys()
    norm = torch.stack([one.norm() for one in others.values()]).norm()
    for name, gradient in gradients.items():
        # Rewards are rounded to fp32.
        assert (gradient - others[name]).norm() < 1e-5 * norm, name
    start = folder / "model"
    plain = task.plain(start, start, rows, None, torch.device("cpu"), gradient=True)
    assert plain.loss == pytest.approx(expected, rel=1e-5)
    assert plain.gradient_norm == pytest.approx(float(norm), rel=1e-4)


@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS])
def test_each_architecture_has_the_losses_and_gradients_of_trl(name: str, tmp_path: Path) -> None:
    folder = prepare_pairs(tmp_path, text_pairs(60), (ENCODERS | DECODERS)[name]())
    check_equal(folder, 0.01)


@pytest.mark.parametrize("coefficient", [None, 0.01])
def test_the_formula_is_that_of_trl(coefficient: float | None) -> None:
    torch.manual_seed(0)
    rewards = (3 * torch.randn(64, 2, dtype=torch.float64)).requires_grad_()
    margins = torch.rand(64, dtype=torch.float64)
    loss = pair_losses(rewards, margins, coefficient).mean()
    expected = trl_loss(rewards[:, 0], rewards[:, 1], margins, coefficient)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    gradients = [torch.autograd.grad(one, rewards)[0] for one in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("pad", ["[PAD]", None])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_decoder_is_read_at_the_same_token_whatever_pads(
    side: str, pad: str | None, tmp_path: Path
) -> None:
    """Without a padding token, that is the EOS token, with which all texts end."""
    rows = text_pairs(60, margins=False)
    folder = prepare_pairs(tmp_path, rows, DECODERS["Llama"](), pad)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert tokenizer.pad_token == (pad or tokenizer.eos_token)
    check_equal(folder, None, side)


def test_there_is_no_dropout(tmp_path: Path) -> None:
    config = ENCODERS["BERT"]()
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.5
    folder = prepare_pairs(tmp_path, text_pairs(60), config)
    rows = StoredRows(folder / "labelled", "train").rows[:8]
    model = task_with(folder).load(folder / "model", torch.float32, None)
    loss, _ = figures(task_with(folder), folder, rows)
    start = folder / "model"
    plain = task_with(folder).plain(start, start, rows, None, torch.device("cpu"), gradient=False)
    assert loss == pytest.approx(plain.loss, rel=1e-5)
    assert model.config.hidden_dropout_prob == 0.5


def test_centring_adds_the_square_of_the_sum(tmp_path: Path) -> None:
    folder = prepare_pairs(tmp_path, text_pairs(60), DECODERS["Llama"]())
    rows = StoredRows(folder / "labelled", "train").rows[:8]
    losses = [figures(task_with(folder, one), folder, rows)[0] for one in (None, 0.0, 0.5, 1.0)]
    assert losses[0] == losses[1]
    assert losses[2] > losses[0]
    assert losses[3] - losses[0] == pytest.approx(2 * (losses[2] - losses[0]))


def test_a_model_that_is_not_for_a_number_is_refused(tmp_path: Path) -> None:
    folder = prepare_pairs(tmp_path / "a", text_pairs(60), ENCODERS["BERT"]())
    other = prepare(
        tmp_path / "b", with_labels(lambda words: len(words) % 2, 60), ENCODERS["BERT"]()
    )
    task = task_with(folder)
    with pytest.raises(UserError, match=r"^model: its labels, single_label_classification, aren't"):
        task.loss_module(task.load(other / "model", torch.float32, None))
    numbers = prepare(tmp_path / "c", with_labels(degree, 60), ENCODERS["BERT"]())
    task.loss_module(task.load(numbers / "model", torch.float32, None))
