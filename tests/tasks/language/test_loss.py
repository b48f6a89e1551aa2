"""Batches of rows, and the loss of their trained tokens."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from numpy.typing import NDArray
from packed import pieces_of
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from moray.rows.store import Rows
from moray.tasks.language.cross_entropy import softmax_loss
from moray.tasks.language.loss import TokenBatch, TokenLoss, has_plain_head, make_batch
from moray.tasks.language.pieces import Piece
from moray.tasks.language.rows import StoredSplit, pack_rows

RowNumbers = NDArray[np.int64]

VOCABULARY = 320
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    # Large weights, so that attention is sharp and a cap on logits bites.
    "initializer_range": 0.3,
}
GPT2_SIZES = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}

Config = Callable[[], hf.PretrainedConfig]
PLAIN: dict[str, Config] = {
    "llama": lambda: hf.LlamaConfig(**SIZES),
    "llama, tied": lambda: hf.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "qwen3": lambda: hf.Qwen3Config(**SIZES, head_dim=8),
    "gpt2": lambda: hf.GPT2Config(**GPT2_SIZES, initializer_range=0.3),
    "head with a bias": lambda: hf.PhiConfig(**SIZES),
}
# Architectures that change what their output embedding gives.
CHANGED: dict[str, Config] = {
    "soft-capped": lambda: hf.Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=5.0),
    "divided": lambda: hf.GraniteConfig(**SIZES, logits_scaling=4.0),
    "multiplied": lambda: hf.CohereConfig(**SIZES, logit_scale=0.25),
}


def build(config: hf.PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()


def loss_of(model: PreTrainedModel) -> TokenLoss:
    return TokenLoss(model, has_plain_head(model))


def documents(split: StoredSplit, rows: RowNumbers) -> list[tuple[Tensor, Tensor]]:
    """Tokens and mask of each document in some rows, in reading order."""
    found = []
    for row in rows.tolist():
        for piece in pieces_of(split, row):
            tokens = torch.from_numpy(piece.tokens.astype(np.int64))
            found.append((tokens, torch.from_numpy(piece.mask)))
    return found


def alone(model: PreTrainedModel, split: StoredSplit, rows: RowNumbers) -> Tensor:
    """Losses of the trained tokens by one plain forward pass a document."""
    losses = []
    for tokens, mask in documents(split, rows):
        logits = model(input_ids=tokens.unsqueeze(0)).logits[0]
        losses.append(F.cross_entropy(logits[:-1], tokens[1:], reduction="none")[mask[1:]])
    return torch.cat(losses)


@pytest.fixture
def split(store: Path) -> StoredSplit:
    return StoredSplit(store, "train")


@pytest.fixture
def rows(split: StoredSplit) -> RowNumbers:
    """Rows of many documents and rows of one."""
    by_documents = sorted(range(len(split)), key=lambda row: -len(pieces_of(split, row)))
    assert len(pieces_of(split, by_documents[0])) >= 3
    return np.array(by_documents[:4] + by_documents[-2:])


@pytest.mark.parametrize("architecture", [*PLAIN, *CHANGED])
def test_packed_losses_are_those_of_each_document_alone(
    architecture: str, split: StoredSplit, rows: RowNumbers
) -> None:
    model = build((PLAIN | CHANGED)[architecture]())
    assert has_plain_head(model) is (architecture in PLAIN)
    expected = alone(model, split, rows)
    assert expected.std() > 0.3, "losses that are all alike would prove little"
    module, batch = loss_of(model), make_batch(split.rows[rows])
    each = F.cross_entropy(module.logits(batch), batch.targets, reduction="none")
    torch.testing.assert_close(each, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(module(batch), expected.sum(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "architecture", ["llama", "llama, tied", "head with a bias", "soft-capped"]
)
def test_gradients_are_those_of_each_document_alone(
    architecture: str, split: StoredSplit, rows: RowNumbers
) -> None:
    model = build((PLAIN | CHANGED)[architecture]())
    losses = alone(model, split, rows)
    torch.autograd.backward(losses.mean())
    expected = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    torch.autograd.backward(loss_of(model)(make_batch(split.rows[rows])) / len(losses))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("architecture", CHANGED)
def test_a_changed_head_is_noticed_before_its_logits_are_large(
    architecture: str, split: StoredSplit, rows: RowNumbers
) -> None:
    config = CHANGED[architecture]()
    config.initializer_range = 1e-3
    module = loss_of(build(config))
    with torch.no_grad():
        for weights in module.model.parameters():
            if weights.dim() == 2:
                weights.mul_(300)
        expected = alone(module.model, split, rows).sum()
        torch.testing.assert_close(
            module(make_batch(split.rows[rows])), expected, rtol=1e-5, atol=1e-4
        )


def test_logits_are_of_the_trained_places_in_reading_order(
    model: PreTrainedModel, split: StoredSplit, rows: RowNumbers
) -> None:
    batch = make_batch(split.rows[rows])
    whole = model(
        input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False
    ).logits
    expected = torch.stack(
        [whole[divmod(at, split.block_size)] for at in batch.target_indices.tolist()]
    )
    torch.testing.assert_close(loss_of(model).logits(batch), expected, rtol=1e-5, atol=1e-5)


def test_logits_are_made_for_few_more_than_the_trained_places(model: PreTrainedModel) -> None:
    block_size, trained = 128, 10
    made: list[int] = []
    module = loss_of(model)

    def counted(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        made.append(len(logits))
        return softmax_loss(logits, targets)

    module.softmax = counted
    tokens = torch.arange(4 * block_size).view(4, block_size) % VOCABULARY
    places = torch.arange(2 * block_size, 2 * block_size + trained)
    positions = torch.arange(block_size).expand(4, -1)
    ends = torch.arange(5, dtype=torch.int32) * block_size
    module(TokenBatch(tokens, positions, places, tokens.flatten()[places + 1], ends))
    assert len(made) == 1
    assert trained <= made[0] <= 256 < tokens.numel()


@pytest.mark.parametrize("architecture", ["llama", "head with a bias", "soft-capped"])
def test_a_batch_with_nothing_to_train_costs_nothing_and_teaches_nothing(
    architecture: str,
) -> None:
    model = build((PLAIN | CHANGED)[architecture]())
    tokens, nothing = torch.zeros(2, 8, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    ends = torch.tensor([0, 8, 16, 16], dtype=torch.int32)
    loss = loss_of(model)(TokenBatch(tokens, torch.arange(8).expand(2, -1), nothing, nothing, ends))
    assert (loss.shape, loss.item()) == ((), 0)
    torch.autograd.backward(loss)
    gradients = [weights.grad for weights in model.parameters() if weights.grad is not None]
    assert gradients
    assert not any(gradient.any() for gradient in gradients)


def test_asking_for_the_head_leaves_the_model_as_it_was(
    model: PreTrainedModel, split: StoredSplit, rows: RowNumbers
) -> None:
    batch = make_batch(split.rows[rows])
    inputs = {"input_ids": batch.input_ids, "position_ids": batch.position_ids}
    before = model(**inputs, use_cache=False).logits
    has_plain_head(model)
    assert torch.equal(model(**inputs, use_cache=False).logits, before)


def brute_force(split: StoredSplit, row: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Positions of a row, and its trained next tokens by where they follow, piece by piece."""
    positions: list[int] = []
    trained: list[tuple[int, int]] = []
    for piece in pieces_of(split, row):
        for place in range(1, len(piece.tokens)):
            if piece.mask[place]:
                trained.append((len(positions) + place - 1, int(piece.tokens[place])))
        positions += range(len(piece.tokens))
    return [*positions, *range(split.block_size - len(positions))], trained


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_positions_and_targets_are_those_of_each_document_alone(store: Path, name: str) -> None:
    split = StoredSplit(store, name)
    batch = make_batch(split.rows)
    assert batch.input_ids.tolist() == split.rows["tokens"].tolist()
    expected: list[tuple[int, int]] = []
    for row in range(len(split)):
        positions, trained = brute_force(split, row)
        assert batch.position_ids[row].tolist() == positions
        expected += [(row * split.block_size + place, token) for place, token in trained]
    assert expected
    found = zip(batch.target_indices.tolist(), batch.targets.tolist(), strict=True)
    assert list(found) == expected


@pytest.fixture
def spelt_out() -> Rows:
    """A full row, and one of two documents and padding."""
    trained = [np.array([False, *[True] * length]) for length in (2, 1, 7)]
    tokens = [np.array(ids) for ids in ([10, 11, 12], [20, 21], range(30, 38))]
    pieces = [Piece(t, m, i, 1) for i, (t, m) in enumerate(zip(tokens, trained, strict=True))]
    return pack_rows(pieces, 8, np.dtype("<u2")).rows


def test_a_row_spelt_out(spelt_out: Rows) -> None:
    batch = make_batch(spelt_out[[1, 0]])
    assert batch.input_ids.tolist() == [[10, 11, 12, 20, 21, 0, 0, 0], [*range(30, 38)]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2], [*range(8)]]
    assert batch.target_indices.tolist() == [0, 1, 3, *range(8, 15)]
    assert batch.targets.tolist() == [11, 12, 21, *range(31, 38)]


def test_a_batch_moves_as_a_whole(spelt_out: Rows) -> None:
    moved = make_batch(spelt_out).to(torch.device("meta"))
    assert {tensor.device.type for tensor in vars(moved).values()} == {"meta"}
