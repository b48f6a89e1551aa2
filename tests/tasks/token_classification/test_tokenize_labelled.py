"""Rows of words with tags: which token has which tag, and which words have none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classified import DECODERS, ENCODERS
from metaspace import metaspace
from resumed import check_resumption, in_small_groups
from tagged import TAGS, prepare, sentences
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, RobertaTokenizer

from moray.corpus.dataset import read_documents, tags_of, words_of
from moray.provenance.manifest import read_manifest
from moray.rows.store import StoredRows
from moray.tasks.classification.base_model import _takes_words
from moray.tasks.token_classification.tokenize_labelled import (
    first_tokens,
    read_tags,
    tokenize_labelled,
)

WORDS = ["Ada", "Lovelace", "(", "lived", ")", "日本", "naïve", "in", "'s", "London"]
TEXT = " ".join(WORDS)


def byte_level(**keys: Any) -> Any:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", "<pad>", "<unk>", "<mask>"],
        show_progress=False,
    )
    backend.train_from_iterator([TEXT] * 3, trainer)
    file = json.loads(backend.to_str())["model"]
    return RobertaTokenizer(
        vocab=file["vocab"], merges=[tuple(pair) for pair in file["merges"]], **keys
    )


def word_piece() -> Any:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=60, special_tokens=["[UNK]"], show_progress=False
    )
    backend.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def sentence_piece(unigram: bool, scheme: str) -> Any:
    backend = metaspace(unigram, scheme, [TEXT] * 3)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize(
    "tokenizer",
    [
        byte_level(add_prefix_space=True),
        word_piece(),
        *(sentence_piece(*one) for one in ((True, "always"), (False, "always"), (True, "first"))),
    ],
    ids=["byte-level", "WordPiece", "Unigram", "BPE", "Unigram of a text's beginning"],
)
def test_first_tokens_are_those_of_transformers_where_it_takes_words(tokenizer: Any) -> None:
    assert _takes_words(tokenizer)
    found = tokenizer(TEXT, return_offsets_mapping=True)
    plain = tokenizer(WORDS, is_split_into_words=True)
    assert found["input_ids"] == plain["input_ids"]
    expected = [plain.word_ids().index(word) for word in range(len(WORDS))]
    firsts = first_tokens(WORDS, found["offset_mapping"], found.sequence_ids(0))
    assert firsts.tolist() == expected


def test_byte_level_tokens_have_the_spaces_of_the_text() -> None:
    """Of a list of words, such a tokenizer makes other tokens, as if they had none between them."""
    tokenizer = byte_level()
    assert not _takes_words(tokenizer)
    found = tokenizer(TEXT, return_offsets_mapping=True)
    firsts = first_tokens(WORDS, found["offset_mapping"], found.sequence_ids(0))
    tokens = tokenizer.convert_ids_to_tokens(found["input_ids"])
    assert all(tokens[place].startswith("Ġ") for place in firsts[1:])


def test_rows_have_the_tag_of_each_word_at_its_first_token(tmp_path: Path) -> None:
    folder = prepare(tmp_path, sentences(60), ENCODERS["BERT"]())
    manifest = read_manifest(folder / "labelled")
    assert manifest["label_names"] == [*TAGS]
    rows = StoredRows(folder / "labelled", "train").rows
    documents = next(read_documents(folder / "dataset/train.parquet"))
    for row, document in zip(rows, documents, strict=True):
        tags = [manifest["label_names"][number - 1] for number in row["labels"] if number]
        assert tags == tags_of(document)
        # The first token is [CLS], and `adason` and `bobson` have two tokens.
        assert row["labels"][0] == 0
        longer = sum(word.endswith("son") for word in words_of(document))
        assert row["length"] == len(tags) + longer + 2
    every = [tag for document in documents for tag in tags_of(document)]
    assert manifest["prior"] == [every.count(tag) for tag in TAGS]
    assert manifest["splits"]["train"]["weight"] == len(every)


def test_words_behind_the_end_of_a_row_are_counted_and_kept_for_the_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prepare(tmp_path, sentences(60, most=12), DECODERS["Llama"](), size=8)
    said = capsys.readouterr().err
    splits = read_manifest(folder / "labelled")["splits"]
    cut = {key: sum(one[key] for one in splits.values()) for key in ("cut_documents", "cut_words")}
    documents, words = cut.values()
    assert f"{documents} of them cut to 8 tokens, without {words} of their words" in said
    tags = read_tags(folder / "labelled")
    texts = next(read_documents(folder / "dataset/test.parquet"))
    for one, document in zip(tags, texts, strict=True):
        assert [TAGS[number] for number in np.abs(one) - 1] == tags_of(document)
        lost = np.flatnonzero(one < 0)
        # All behind the first that has none.
        assert len(lost) == 0 or np.all(one[lost[0] :] < 0)
    assert sum((one < 0).sum() for one in tags) == splits["test"]["cut_words"] > 0


def test_words_that_are_nothing_to_the_tokenizer_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = sentences(60)
    for row in rows[::3]:
        row["tokens"].insert(1, "\u200b")
        row["tags"].insert(1, "O")
    given = ENCODERS["BERT"]()
    folder = prepare(tmp_path, rows, given)
    # Its tokenizer has a token for what it doesn't know; a BERT's drops such characters before.
    assert "nothing to the tokenizer" not in capsys.readouterr().err
    file = folder / "model/tokenizer.json"
    backend = Tokenizer.from_file(str(file))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.save(str(file))
    cfg = {"block_size": 16, "format": "token-classification"}
    tokenize_labelled(folder / "dataset", folder / "model", folder / "labelled", cfg)
    said = capsys.readouterr().err
    assert "20 words are nothing to the tokenizer, such as '\\u200b'" in said
    splits = read_manifest(folder / "labelled")["splits"]
    assert sum(one["cut_words"] for one in splits.values()) == 0


def test_a_store_is_the_same_if_the_stage_is_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prepare(tmp_path, sentences(60), ENCODERS["BERT"](), size=8)
    dataset = in_small_groups(folder / "dataset", tmp_path / "groups", 12)
    cfg = {"block_size": 8, "format": "token-classification"}
    check_resumption(
        lambda store: tokenize_labelled(dataset, folder / "model", store, cfg), tmp_path, capsys
    )
