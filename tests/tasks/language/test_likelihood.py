"""The documents that are scored, and their scores against plain transformers on each piece."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from packed import pieces_of
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import Document, read_documents
from moray.evaluate.bootstrap import sums_of_units
from moray.evaluate.worker import batches_of
from moray.model.attention import varlen_if_possible
from moray.tasks.language.likelihood import Scores, Selection, score, select_documents, total
from moray.tasks.language.loss import TokenBatch, TokenLoss
from moray.tasks.language.rows import Segment, StoredSplit, is_trained
from moray.tasks.language.tokenize import tokenize

Sums = tuple[float, int, int, int]


def score_all(
    model: PreTrainedModel, split: StoredSplit, selection: Selection, batch_size: int
) -> Scores:
    return score(model, split, selection, batches_of(selection.rows, batch_size))


@pytest.fixture
def split(store: Path) -> StoredSplit:
    return StoredSplit(store, "test")


@pytest.fixture
def rows(dataset: Path) -> list[Document]:
    return [row for batch in read_documents(dataset / "test.parquet") for row in batch]


@torch.no_grad()
def one_by_one(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, row: Document, block_size: int
) -> Sums:
    """Sums over a document: each of its parts by a plain forward pass, token by token."""
    prompt, text = row.get("prompt", ""), row.get("text", row.get("completion", ""))
    context = [tokenizer.bos_token_id, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    tokens = [*context, *tokenizer(text, add_special_tokens=False)["input_ids"]]
    tokens.append(tokenizer.eos_token_id)
    nll, correct = 0.0, 0
    for place in range(len(context), len(tokens)):
        # Parts overlap by a token: what a place sees begins at a multiple of block_size - 1.
        begin = (place - 1) // (block_size - 1) * (block_size - 1)
        logits = model(input_ids=torch.tensor([tokens[begin:place]])).logits[0, -1].double()
        nll -= logits.log_softmax(0)[tokens[place]].item()
        correct += int(logits.argmax()) == tokens[place]
    return nll, len(tokens) - len(context), len(text.encode()), correct


def as_sums(scores: Scores) -> list[Sums]:
    columns = (scores.nll, scores.tokens, scores.bytes, scores.correct)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def check_equal(got: list[Sums], expected: list[Sums]) -> None:
    """Equal but for the rounding of losses."""
    assert [sums[1:] for sums in got] == [sums[1:] for sums in expected]
    assert [sums[0] for sums in got] == pytest.approx([sums[0] for sums in expected], rel=1e-5)


def test_scores_are_those_of_each_document_alone(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    split: StoredSplit,
    rows: list[Document],
) -> None:
    numbers = split.segments[:, Segment.DOCUMENT]
    assert len(numbers) > len(set(numbers.tolist())), "some documents are cut over rows"
    scores = score_all(model, split, select_documents(split, None), 4)
    assert np.unique(scores.document).tolist() == list(range(len(rows)))
    expected = [one_by_one(model, tokenizer, row, split.block_size) for row in rows]
    assert sum(correct for _, _, _, correct in expected) > 0
    got = sums_of_units(scores.sums(), scores.document)
    check_equal([tuple(sums) for sums in got.tolist()], expected)


def test_of_rows_with_a_document_each_hardly_any_padding_is_computed(
    model: PreTrainedModel,
    model_folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    dataset: Path,
    rows: list[Document],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cfg = {"format": "text", **result_keys(Data(block_size=256, packing=False))}
    tokenize(dataset, model_folder, tmp_path, cfg)
    split = StoredSplit(tmp_path, "test")
    shapes, scores_of = list[tuple[int, ...]](), TokenLoss.scores

    def noted(self: TokenLoss, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        shapes.append(tuple(batch.input_ids.shape))
        return scores_of(self, batch)

    monkeypatch.setattr(TokenLoss, "scores", noted)
    scores = score_all(model, split, select_documents(split, None), 2)
    lengths = sorted(split.segments[:, Segment.LENGTH].tolist(), reverse=True)
    expected_shapes = [
        (len(batch), min(size for size in (64, 128, 192, 256) if size >= batch[0]))
        for batch in (lengths[n : n + 2] for n in range(0, len(lengths), 2))
    ]
    assert len(set(expected_shapes)) > 1
    assert shapes == expected_shapes
    expected = [one_by_one(model, tokenizer, row, split.block_size) for row in rows]
    got = sums_of_units(scores.sums(), scores.document)
    check_equal([tuple(sums) for sums in got.tolist()], expected)


def test_a_piece_has_its_own_tokens_and_bytes(model: PreTrainedModel, split: StoredSplit) -> None:
    scores = score_all(model, split, select_documents(split, None), 4)
    pieces = [
        (piece.document, int(piece.mask.sum()), piece.bytes)
        for row in range(len(split))
        for piece in pieces_of(split, row)
    ]
    columns = (scores.document, scores.tokens, scores.bytes)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == pieces


def test_the_batch_size_changes_nothing(model: PreTrainedModel, split: StoredSplit) -> None:
    selection = select_documents(split, None)
    expected = as_sums(score_all(model, split, selection, 4))
    for batch_size in (1, 3, 100):
        check_equal(as_sums(score_all(model, split, selection, batch_size)), expected)


def test_of_a_selection_only_its_documents_are_scored(
    model: PreTrainedModel, split: StoredSplit
) -> None:
    """Whole documents, with the sums that they have when all are scored."""
    whole = score_all(model, split, select_documents(split, None), 4)
    some = score_all(model, split, select_documents(split, 5), 4)
    assert len(np.unique(some.document)) == 5
    at = np.isin(whole.document, some.document)
    for name in ("document", "tokens", "bytes", "correct"):
        assert getattr(some, name).tolist() == getattr(whole, name)[at].tolist()
    assert some.nll == pytest.approx(whole.nll[at], rel=1e-5)


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_that_share_the_batches_score_what_one_does(
    model: PreTrainedModel, split: StoredSplit, workers: int
) -> None:
    selection = select_documents(split, None)
    batches = batches_of(selection.rows, 4)
    parts = [score(model, split, selection, batches[rank::workers]) for rank in range(workers)]
    assert as_sums(total(parts)) == as_sums(score(model, split, selection, batches))


def test_a_batch_too_large_for_memory_is_scored_in_parts(
    model: PreTrainedModel, split: StoredSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = select_documents(split, None)
    expected = as_sums(score_all(model, split, selection, 4))
    scores, sizes = TokenLoss.scores, list[int]()

    def limited(self: TokenLoss, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        sizes.append(len(batch.input_ids))
        if len(batch.input_ids) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return scores(self, batch)

    monkeypatch.setattr(TokenLoss, "scores", limited)
    got = as_sums(score_all(model, split, selection, 4))
    check_equal(got, expected)
    assert sizes[:4] == [4, 2, 1, 1]


@pytest.mark.gpu
def test_on_a_gpu_scores_are_those_of_a_cpu(model: PreTrainedModel, split: StoredSplit) -> None:
    """Attention is computed by `varlen` there."""
    selection = select_documents(split, None)
    expected = score_all(model, split, selection, 4)
    on_gpu = copy.deepcopy(model).to("cuda", torch.bfloat16)
    with varlen_if_possible(on_gpu) as attention:
        assert attention == "varlen"
    # The model is as before, so that it can be scored again.
    for _ in range(2):
        got = score_all(on_gpu, split, selection, 4)
        assert got.tokens.tolist() == expected.tokens.tolist()
        assert got.nll == pytest.approx(expected.nll, rel=1e-2)


def documents_of(segments: np.ndarray) -> set[int]:
    return set(segments[:, Segment.DOCUMENT].tolist())


def test_without_a_limit_all_documents_are_selected(split: StoredSplit) -> None:
    selection = select_documents(split, None)
    assert np.array_equal(selection.segments, split.segments)
    assert sorted(selection.rows.tolist()) == list(range(len(split)))
    assert np.array_equal(selection.read(split, selection.rows), split.rows[selection.rows])


@pytest.mark.parametrize("count", [1, 3, 7])
def test_documents_are_selected_whole_and_nothing_else_is_trained_in_their_rows(
    split: StoredSplit, count: int
) -> None:
    selection = select_documents(split, count)
    chosen = documents_of(selection.segments)
    assert len(chosen) == count
    pieces = [piece for row in range(len(split)) for piece in pieces_of(split, row)]
    expected = [piece.document for piece in pieces if piece.document in chosen]
    assert selection.segments[:, Segment.DOCUMENT].tolist() == expected
    read = selection.read(split, selection.rows)
    assert read["tokens"].tolist() == split.rows["tokens"][selection.rows].tolist()
    for row, trained in zip(selection.rows.tolist(), is_trained(read), strict=True):
        flags = [
            flag and piece.document in chosen
            for piece in pieces_of(split, row)
            for flag in piece.mask.tolist()
        ]
        assert trained.tolist() == flags + [False] * (split.block_size - len(flags))
        assert any(flags), "each row holds a selected document"


def test_the_first_rows_are_not_preferred(split: StoredSplit) -> None:
    """Packing puts the longest pieces first, so the documents of the first rows are no sample."""
    first = list(dict.fromkeys(split.segments[:, Segment.DOCUMENT].tolist()))[:5]
    assert documents_of(select_documents(split, 5).segments) != set(first)
    assert select_documents(split, 5).rows.max() > 5
