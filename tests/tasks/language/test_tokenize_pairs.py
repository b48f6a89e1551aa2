"""From pairs of answers to a token store."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversations import CHATML
from turn_templates import QWEN3

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import SPLITS, Document
from moray.corpus.documents import write_dataset
from moray.errors import UserError
from moray.provenance.manifest import damaged_files, read_manifest, write_manifest
from moray.tasks.language.rows import Segment, StoredSplit
from moray.tasks.language.tokenize import tokenize
from moray.tasks.language.tokenizer import load_tokenizer
from moray.tasks.preference.rows import num_pairs


def recipe_of_pairs(**keys: object) -> dict[str, Any]:
    data = Data.model_validate({"block_size": 64} | keys)
    return {"format": "preference", **result_keys(data)}


def dataset_of(folder: Path, documents: list[Document]) -> Path:
    rows = ((split, document) for split in SPLITS for document in documents)
    write_dataset(folder, rows, "preference", {"source": "test"})
    return folder


def pair(number: int, length: int = 1) -> Document:
    chosen, rejected = f"return {number}" * length, f"yield {number}" * length
    return Document(prompt="def f", chosen=chosen, rejected=rejected, tools=None)


@pytest.mark.parametrize("packing", [True, False])
def test_each_split_holds_its_pairs(tmp_path: Path, model_folder: Path, packing: bool) -> None:
    dataset = dataset_of(tmp_path / "dataset", [pair(number) for number in range(30)])
    output = tmp_path / "out"
    tokenize(dataset, model_folder, output, recipe_of_pairs(packing=packing))
    manifest = read_manifest(output)
    assert (manifest["task"], manifest["block_size"]) == ("preference", 64)
    assert damaged_files(output) == []
    for name in SPLITS:
        split, facts = StoredSplit(output, name), manifest["splits"][name]
        numbers = num_pairs(split.rows)
        assert facts["pairs"] == numbers.sum() == 30
        assert facts["most_pairs_in_row"] == numbers.max()
        assert (numbers.max() > 1) == packing
        assert len(split.segments) == 60
        documents = split.segments[:, Segment.DOCUMENT].reshape(-1, 2)
        assert sorted(documents[:, 0]) == sorted(documents[:, 1]) == list(range(30))
        size = split.segments[:, Segment.BYTES].sum()
        expected = sum(len(f"return {n}yield {n}") for n in range(30))
        assert size == (expected if name == "test" else 0)
    shown = (output / "preview.txt").read_text()
    assert "--- chosen 0: " in shown
    assert "def f⟦return 0<|endoftext|>⟧" in shown
    assert "--- rejected 0: " in shown
    assert "def f⟦yield 0<|endoftext|>⟧" in shown


def test_long_pairs_are_truncated_or_dropped_and_counted(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = dataset_of(tmp_path / "dataset", [pair(1), pair(2, 50)])
    for key, words in (("split", "3 pairs truncated"), ("drop", "3 pairs dropped")):
        output = tmp_path / key
        tokenize(dataset, model_folder, output, recipe_of_pairs(long_documents=key))
        assert words in capsys.readouterr().err
        counts = read_manifest(output)["splits"]["train"]
        kept = (counts["pairs"], counts["dropped_documents"], counts["cut_documents"])
        assert kept == ((2, 0, 1) if key == "split" else (1, 1, 0))
        assert StoredSplit(output, "train").segments[:, Segment.LENGTH].max() <= 32


def test_if_no_pair_is_left_to_train_on_nothing_is_left_behind(
    tmp_path: Path, model_folder: Path
) -> None:
    dataset = dataset_of(tmp_path / "dataset", [pair(2, 50)])
    cfg = recipe_of_pairs(long_documents="drop")
    with pytest.raises(UserError, match="the train split has no tokens to train on"):
        tokenize(dataset, model_folder, tmp_path / "out", cfg)
    assert not (tmp_path / "out").exists()


def test_pairs_of_conversations_are_rendered_with_the_chat_template(
    tmp_path: Path, chat_folder: Path
) -> None:
    asked = {"role": "user", "content": "for?"}
    chosen, rejected = (
        json.dumps([asked, {"role": "assistant", "content": answer}]) for answer in ("if", "None")
    )
    pairs = [Document(chosen=chosen, rejected=rejected, tools=None)]
    dataset = dataset_of(tmp_path / "dataset", pairs)
    tokenize(dataset, chat_folder, tmp_path / "out", recipe_of_pairs(chat_template=CHATML))
    shown = (tmp_path / "out/preview.txt").read_text()
    for answer in ("if", "None"):
        assert f"<|im_start|>user\nfor?<|im_end|>\n<|im_start|>assistant\n⟦{answer}<|im_e" in shown
    with pytest.raises(UserError, match=r"^data\.chat_template: is not set"):
        tokenize(dataset, chat_folder, tmp_path / "none", recipe_of_pairs())


def test_of_each_half_of_a_pair_what_the_template_leaves_out_is_counted(
    tmp_path: Path, chat_folder: Path
) -> None:
    before = [
        {"role": "user", "content": "for?"},
        {"role": "assistant", "content": "in", "reasoning_content": "not in"},
        {"role": "user", "content": "if?"},
    ]
    chosen, rejected = (
        json.dumps([*before, {"role": "assistant", "content": answer}])
        for answer in ("if", "<think>\nNone\n</think>\n\nNone")
    )
    pairs = [Document(chosen=chosen, rejected=rejected, tools=None)]
    dataset = dataset_of(tmp_path / "dataset", pairs)
    cfg = recipe_of_pairs(chat_template=QWEN3, block_size=512)
    tokenize(dataset, chat_folder, tmp_path / "out", cfg)
    shown = (tmp_path / "out/preview.txt").read_text("utf-8").splitlines()
    count = len(load_tokenizer(chat_folder)("not in", add_special_tokens=False)["input_ids"])
    assert [line for line in shown if "leaves out" in line] == [
        f"... the chat template leaves out {count} tokens of the messages of {half} 0, "
        "beginning with 'not in'"
        for half in ("chosen", "rejected")
    ]
    # The rejected answer has a thought of its own.
    assert [line for line in shown if "puts" in line] == [
        r"... the chat template puts '<think>\n\n</think>\n\n' before 1 of 2 answers, not trained, "
        "in chosen 0"
    ]


def test_models_that_do_not_isolate_documents_get_a_row_for_each_pair(
    tmp_path: Path, model_folder: Path
) -> None:
    model = Path(shutil.copytree(model_folder, tmp_path / "model"))
    write_manifest(model, architecture="other", isolates_documents=False)
    dataset = dataset_of(tmp_path / "dataset", [pair(number) for number in range(4)])
    tokenize(dataset, model, tmp_path / "out", recipe_of_pairs())
    rows = StoredSplit(tmp_path / "out", "train").rows
    np.testing.assert_array_equal(num_pairs(rows), [1] * 4)
    with pytest.raises(UserError, match=r"^data\.packing: packed documents would attend"):
        tokenize(dataset, model, tmp_path / "packed", recipe_of_pairs(packing=True))


def test_pairs_of_two_kinds_in_one_dataset_cost_one_line(tmp_path: Path) -> None:
    talk = Document(chosen="[]", rejected="[1]", tools=None)
    with pytest.raises(UserError, match="got some rows as text and others as messages"):
        dataset_of(tmp_path / "dataset", [pair(1), talk])


def test_special_tokens_in_pairs_are_named(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = pair(1)
    marked = Document(**{**row, "rejected": "no<|endoftext|>"})
    dataset = dataset_of(tmp_path / "dataset", [row, marked])
    tokenize(dataset, model_folder, tmp_path / "out", recipe_of_pairs())
    named = "; special tokens in the text of documents: <|endoftext|> in 3"
    assert named in capsys.readouterr().err
