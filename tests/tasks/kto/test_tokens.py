"""Good and bad answers as rows of tokens, each beside its prompt with another's answer."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conversations import CHATML
from small_model import EXECUTION, HELD
from transformers import PreTrainedTokenizerFast

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import SPLITS, Document
from moray.corpus.documents import write_dataset
from moray.errors import UserError
from moray.provenance.manifest import damaged_files, read_manifest
from moray.rows.store import Rows
from moray.tasks.kto.rows import DESIRABLE, num_desirable
from moray.tasks.kto.task import make_answer_batch
from moray.tasks.kto.tokens import encode_window, neighbours, warnings
from moray.tasks.language.encode import Encoder
from moray.tasks.language.rows import FIRST, PackedRows, Segment, StoredSplit
from moray.tasks.language.tokenize import tokenize
from moray.tasks.preference.reference import reference
from moray.tasks.preference.rows import REJECTED, in_pairs, num_pairs, with_reference


def answer(prompt: str, completion: str, label: bool = True) -> Document:
    return Document(prompt=prompt, completion=completion, tools=None, label=label)


DOCUMENTS = [
    answer("def f", "return é"),
    answer("if", "not 1:\n    pass", False),
    answer("while 1:", "\n    continue"),
    answer("for", "i", False),
]


def encoded(
    tokenizer: PreTrainedTokenizerFast,
    documents: list[Document],
    block_size: int = 64,
    packing: bool = True,
    drop: bool = False,
) -> PackedRows:
    return encode_window(documents, 5, Encoder(tokenizer, block_size), drop, packing, True)


@pytest.mark.parametrize("packing", [True, False])
def test_halves_of_a_row_have_the_same_prompts_with_their_own_and_other_answers(
    tokenizer: PreTrainedTokenizerFast, packing: bool
) -> None:
    window = encoded(tokenizer, DOCUMENTS, packing=packing)
    assert (window.dropped, window.cut) == (0, 0)
    assert (len(window.rows) < 4) == packing
    assert num_pairs(window.rows).sum() == 4
    assert num_desirable(window.rows).sum() == 2
    assert (np.diff(window.segments[:, Segment.START]) > 0).all()
    tokens, flags = window.rows["tokens"].ravel(), window.rows["flags"].ravel()
    texts = {}
    for pair in in_pairs(window.segments[:, Segment.DOCUMENT]):
        own, other = window.segments[pair].tolist()
        assert own[0] // 64 == other[0] // 64
        assert own[0] % 64 < 32 <= other[0] % 64
        document = DOCUMENTS[own[2] - 5]
        parts = [slice(start, start + length) for start, length, *_ in (own, other)]
        for part, marks in zip(parts, (DESIRABLE * document["label"], REJECTED), strict=True):
            assert set((flags[part] & (DESIRABLE | REJECTED)).tolist()) == {marks}
            assert flags[part.start] & FIRST
        trained = [tokens[part][flags[part] & 1 > 0] for part in parts]
        texts[own[2] - 5] = [tokenizer.decode(some[:-1]) for some in trained]
        assert all(some[-1] == tokenizer.eos_token_id for some in trained)
        starts = [tokens[part][flags[part] & 1 == 0].tolist() for part in parts]
        assert starts[0] == starts[1]
        assert (own[3], other[3]) == (len(document["completion"].encode()), 0)
    # Each has the answer of the one before it.
    assert texts == {
        number: [DOCUMENTS[number]["completion"], DOCUMENTS[number - 1]["completion"]]
        for number in range(4)
    }


def test_another_answer_differs_and_is_to_another_prompt_if_there_is_one() -> None:
    a, b, c = (answer(prompt, prompt.upper()) for prompt in "abc")
    assert neighbours([a, b, c]) == [2, 0, 1]
    assert neighbours([a]) == [None]
    assert neighbours([a, a]) == [None, None]
    assert neighbours([answer("a", "x"), answer("b", "x"), answer("c", "y")]) == [2, 2, 1]
    # Pairs that were taken apart: the other answer to the same prompt is no stand-in.
    apart = [answer("a", "x"), answer("a", "y", False), answer("b", "v"), answer("b", "w", False)]
    assert neighbours(apart) == [3, 3, 1, 1]
    assert neighbours(apart[:2]) == [1, 0]


def test_a_long_answer_is_truncated_by_its_own_length_or_dropped(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    documents = [answer("return " * 40, "yield"), answer("a", "import " * 40, False)]
    window = encoded(tokenizer, documents)
    assert (window.dropped, window.cut) == (0, 2)
    assert (window.segments[:, Segment.LENGTH] <= 32).all()
    short = [answer("a", "b"), *documents[1:]]
    window = encoded(tokenizer, short, drop=True)
    assert (window.dropped, window.cut) == (1, 0)
    (own, other) = window.segments[:, Segment.LENGTH].tolist()
    # The other's answer is cut, and nothing of this one.
    assert other == 32
    assert own < 6


def rows_with_reference(window: PackedRows) -> Rows:
    """With minus the document's number for its own answer, and half less for the other."""
    rows = np.zeros(len(window.rows), with_reference(window.rows.dtype, 3))
    for field in ("tokens", "flags"):
        rows[field] = window.rows[field]
    pairs = in_pairs(window.segments[:, Segment.DOCUMENT])
    place = window.segments[pairs[:, 0]]
    for row in range(len(rows)):
        mine = -place[place[:, 0] // 64 == row, 2].astype(np.float32)
        rows["reference"][row, : len(mine)] = np.stack([mine, mine - 0.5], axis=1)
    return rows


@pytest.mark.parametrize("packing", [True, False])
def test_a_batch_knows_the_pieces_their_reference_and_the_labels(
    tokenizer: PreTrainedTokenizerFast, packing: bool
) -> None:
    window = encoded(tokenizer, DOCUMENTS, packing=packing)
    rows = rows_with_reference(window)
    batch = make_answer_batch(np.concatenate([rows, np.zeros(2, rows.dtype)]))
    numbers = window.segments[in_pairs(window.segments[:, Segment.DOCUMENT])[:, 0], 2]
    assert batch.own.reference.tolist() == (-numbers).tolist()
    assert batch.other.reference.tolist() == (-numbers - 0.5).tolist()
    assert batch.desirable.tolist() == [DOCUMENTS[number - 5]["label"] for number in numbers]
    for half, shift in ((batch.own, 0), (batch.other, -1)):
        assert half.input_ids.shape == (len(rows) + 2, 32)
        for piece, number in enumerate(numbers.tolist()):
            text = tokenizer.decode(half.targets[half.pieces == piece][:-1])
            assert text == DOCUMENTS[number - 5 + shift]["completion"]
    moved = batch.to(torch.device("meta"))
    assert {getattr(moved.other, f.name).device.type for f in fields(moved.other)} == {"meta"}
    nothing = make_answer_batch(np.zeros(2, rows.dtype))
    assert nothing.own.reference.shape == nothing.desirable.shape == (0,)


def dataset_of(folder: Path, documents: list[Document]) -> Path:
    rows = ((split, document) for split in SPLITS for document in documents)
    write_dataset(folder, rows, "unpaired-preference", {"source": "test"})
    return folder


def recipe(**keys: Any) -> dict[str, Any]:
    data = Data.model_validate({"block_size": 64} | keys)
    return {"format": "unpaired-preference", **result_keys(data)}


def test_each_split_holds_its_answers(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [answer(f"def f{n}", f"return {n}", n % 3 == 0) for n in range(30)]
    dataset, output = dataset_of(tmp_path / "dataset", documents), tmp_path / "out"
    tokenize(dataset, model_folder, output, recipe())
    assert "30 answers in " in (said := capsys.readouterr().err)
    assert "10 good and 20 bad" in said
    manifest = read_manifest(output)
    assert (manifest["task"], damaged_files(output)) == ("kto", [])
    for name in SPLITS:
        split, facts = StoredSplit(output, name), manifest["splits"][name]
        assert (facts["pairs"], facts["desirable"]) == (30, 10)
        assert facts["most_pairs_in_row"] == num_pairs(split.rows).max() > 1
    shown = (output / "preview.txt").read_text()
    assert "--- answer 1: " in shown
    assert "def f1⟦return 1<|endoftext|>⟧" in shown
    assert "--- another's answer to 1: " in shown
    assert "def f1⟦return 0<|endoftext|>⟧" in shown


def test_a_document_alone_is_left_out_and_said(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [answer("a", "x"), answer("b", "y", False)]
    rows = [("train", one) for one in documents] + [("test", one) for one in documents]
    write_dataset(
        tmp_path / "dataset",
        iter([*rows, ("validation", documents[0])]),
        "unpaired-preference",
        {"source": "test"},
    )
    tokenize(tmp_path / "dataset", model_folder, tmp_path / "out", recipe())
    assert "1 answers are left out, because the KL divergence needs" in capsys.readouterr().err
    assert read_manifest(tmp_path / "out")["splits"]["validation"]["dropped_documents"] == 1
    reference("run", model_folder, tmp_path / "out", tmp_path / "reference", HELD, EXECUTION)
    assert read_manifest(tmp_path / "reference")["splits"]["validation"]["rows"] == 0


def test_a_split_of_documents_that_are_all_alone_is_refused(
    tmp_path: Path, model_folder: Path
) -> None:
    rows = [("train", answer("a", "x")), ("train", answer("b", "y", False))]
    rows.append(("test", answer("c", "z")))
    write_dataset(tmp_path / "dataset", iter(rows), "unpaired-preference", {"source": "test"})
    with pytest.raises(UserError, match="no answer of the test split has another beside it"):
        tokenize(tmp_path / "dataset", model_folder, tmp_path / "out", recipe())


@pytest.mark.parametrize(
    ("good", "bad", "advice"),
    [
        (10, 10, None),
        (26, 10, None),
        (10, 19, None),
        (
            30,
            10,
            "kto.desirable_weight from 0.333 to 0.444, or undesirable_weight from 2.25 to 3",
        ),
        (10, 50, "kto.desirable_weight from 5 to 6.67, or undesirable_weight from 0.15 to 0.2"),
    ],
)
def test_unequal_numbers_get_the_advice_of_the_paper(
    good: int, bad: int, advice: str | None
) -> None:
    facts = {"train": {"pairs": good + bad, "desirable": good, "without_other": 0}}
    said = list(warnings(facts, "datasets.answers"))
    assert len(said) == (advice is not None)
    assert advice is None or said[0].endswith(advice)


def test_conversations_are_rendered_with_the_chat_template(
    tmp_path: Path, chat_folder: Path
) -> None:
    asked = {"role": "user", "content": "for?"}
    documents = [
        Document(
            completion=json.dumps([asked, {"role": "assistant", "content": word}]),
            tools=None,
            label=word == "if",
        )
        for word in ("if", "None")
    ]
    dataset = dataset_of(tmp_path / "dataset", documents)
    tokenize(dataset, chat_folder, tmp_path / "out", recipe(chat_template=CHATML, block_size=256))
    shown = (tmp_path / "out/preview.txt").read_text()
    for word in ("if", "None"):
        assert f"⟦{word}<|im_end|>" in shown
