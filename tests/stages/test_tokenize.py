"""From a dataset to its token store."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conversations import CHATML, SAID, TALKS, TURNS, conversation
from run_stage import stage_command
from transformers import PreTrainedTokenizerFast
from turn_templates import DEEPSEEK, QWEN3

from moray.config.formats import FormatName
from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import SPLITS, Document, read_documents, write_dataset
from moray.errors import UserError
from moray.provenance.manifest import damaged_files, read_manifest
from moray.stages.base_model import base_model
from moray.stages.download import download
from moray.stages.tokenize import tokenize
from moray.tasks import task_of
from moray.tasks.language.encode import ROLES
from moray.tasks.language.rows import Segment, StoredSplit, is_trained
from moray.tasks.language.tokenizer import load_tokenizer

STOP = "<|endoftext|>"


def recipe(format: str = "text", **keys: object) -> dict[str, Any]:
    return {"format": format, **result_keys(Data.model_validate({"block_size": 16} | keys))}


CFG = recipe()
ON_THE_FLY = recipe(tokenize="on-the-fly", loader="stream")


def rows_of(dataset: Path, split: str) -> list[Document]:
    return [row for batch in read_documents(dataset / f"{split}.parquet") for row in batch]


def test_each_split_holds_its_documents(
    tmp_path: Path, dataset: Path, model_folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    tokenize(dataset, model_folder, tmp_path / "out", CFG)
    manifest = read_manifest(tmp_path / "out")
    assert manifest["block_size"] == 16
    assert damaged_files(tmp_path / "out") == []
    for name in SPLITS:
        split, rows = StoredSplit(tmp_path / "out", name), rows_of(dataset, name)
        trained = [row.get("text", row.get("completion", "")) for row in rows]
        plain = {"add_special_tokens": False}
        count = sum(len(tokenizer(text, **plain)["input_ids"]) + 1 for text in trained)
        counts = manifest["splits"][name]
        assert counts["weight"] == count == is_trained(split.rows).sum()
        assert counts["tokens"] == split.segments[:, Segment.LENGTH].sum()
        assert (counts["rows"], counts["segments"]) == (len(split), len(split.segments))
        # Bytes are what scores are a ratio to; train isn't scored.
        size = 0 if name == "train" else sum(len(text.encode()) for text in trained)
        assert split.segments[:, Segment.BYTES].sum() == size
        assert set(split.segments[:, Segment.DOCUMENT].tolist()) == set(range(len(rows)))


def test_documents_are_numbered_through_all_row_groups(
    tmp_path: Path, model_folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    for name in SPLITS:
        rows = [{"text": str(number)} for number in range(2100 if name == "train" else 1)]
        pq.write_table(pa.Table.from_pylist(rows), dataset / f"{name}.parquet", row_group_size=500)
    tokenize(dataset, model_folder, tmp_path / "out", CFG)
    split = StoredSplit(tmp_path / "out", "train")
    assert len(split.windows) == 5
    for start, length, document, _ in split.segments[::50].tolist():
        tokens = split.rows["tokens"].reshape(-1)[start : start + length]
        assert tokenizer.decode(tokens[1:-1].tolist()) == str(document)


def test_the_same_dataset_makes_the_same_bytes(
    tmp_path: Path, dataset: Path, model_folder: Path
) -> None:
    for name in ("one", "other"):
        tokenize(dataset, model_folder, tmp_path / name, CFG)
    assert read_manifest(tmp_path / "one") == read_manifest(tmp_path / "other")


def without_rows(dataset: Path, split: str, folder: Path) -> Path:
    """A copy of a dataset with an empty split."""
    copy = Path(shutil.copytree(dataset, folder))
    file = copy / f"{split}.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)
    return copy


def test_an_empty_validation_split_is_fine(
    tmp_path: Path, dataset: Path, model_folder: Path
) -> None:
    copy = without_rows(dataset, "validation", tmp_path / "dataset")
    tokenize(copy, model_folder, tmp_path / "out", CFG)
    assert len(StoredSplit(tmp_path / "out", "validation")) == 0


@pytest.mark.parametrize("split", ["train", "test"])
def test_with_nothing_to_train_on_there_is_no_store(
    tmp_path: Path, dataset: Path, model_folder: Path, split: str
) -> None:
    copy = without_rows(dataset, split, tmp_path / "dataset")
    tokenize(dataset, model_folder, tmp_path / "out", CFG)
    with pytest.raises(
        UserError, match=rf"^datasets\.dataset: the {split} split has no tokens to train on"
    ):
        tokenize(copy, model_folder, tmp_path / "out", CFG)
    assert not (tmp_path / "out").exists()


TURNED = recipe("messages", chat_template=CHATML, block_size=64)


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """A dataset of three conversations in each split."""
    pairs = ((split, talk) for split in SPLITS for talk in TALKS)
    write_dataset(tmp_path / "talks", pairs, "messages", {"source": "test"})
    return tmp_path / "talks"


def trained_of(split: StoredSplit, model: Path) -> list[str]:
    """What is trained of each of three documents."""
    tokenizer = load_tokenizer(model)
    tokens, trained = split.rows["tokens"].reshape(-1), is_trained(split.rows).reshape(-1)
    said = dict.fromkeys(range(3), "")
    for start, length, document, _ in split.segments.tolist():
        part = slice(start, start + length)
        said[document] += tokenizer.decode(tokens[part][trained[part]])
    return list(said.values())


@pytest.mark.parametrize("format", ["messages", "instruction"])
def test_of_conversations_the_store_trains_what_the_assistant_says(
    tmp_path: Path, talks: Path, chat_folder: Path, format: str
) -> None:
    tokenize(talks, chat_folder, tmp_path / "out", TURNED | {"format": format})
    for name in SPLITS:
        split = StoredSplit(tmp_path / "out", name)
        assert trained_of(split, chat_folder) == ["".join(turns) for turns in SAID]
        size = split.segments[:, Segment.BYTES].sum()
        texts = [turn.removesuffix("<|im_end|>") for turns in SAID for turn in turns]
        assert size == (0 if name == "train" else sum(len(text.encode()) for text in texts))


def test_without_the_history_only_the_last_turn_of_the_assistant_is_trained(
    tmp_path: Path, talks: Path, chat_folder: Path
) -> None:
    tokenize(talks, chat_folder, tmp_path / "out", TURNED | {"mask_history": True})
    split = StoredSplit(tmp_path / "out", "test")
    assert trained_of(split, chat_folder) == [turns[-1] for turns in SAID]


def test_the_template_of_the_tokenizer_serves_where_none_is_given(
    tmp_path: Path, talks: Path, chat_folder: Path
) -> None:
    folder = Path(shutil.copytree(chat_folder, tmp_path / "model"))
    (folder / "chat_template.jinja").write_text(CHATML)
    tokenize(talks, chat_folder, tmp_path / "given", TURNED)
    tokenize(talks, folder, tmp_path / "own", recipe("messages", block_size=64))
    for split in SPLITS:
        given, own = (StoredSplit(tmp_path / name, split).rows for name in ("given", "own"))
        np.testing.assert_array_equal(given, own)


@pytest.mark.parametrize("tokenizing", [{}, {"tokenize": "on-the-fly", "loader": "stream"}])
def test_of_a_base_s_several_templates_that_for_tools_serves_talks_with_tools(
    tmp_path: Path, chat_folder: Path, tokenizing: dict[str, str]
) -> None:
    folder = Path(shutil.copytree(chat_folder, tmp_path / "source"))
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = {"default": "{{ 1 / 0 }}", "tool_use": "Tools:" + CHATML}
    tokenizer.save_pretrained(folder)
    assert (folder / "additional_chat_templates/tool_use.jinja").exists()
    model, data = tmp_path / "model", tmp_path / "data"
    base_model(model, {"source": "path", "path": str(folder)})
    talks = [talk for talk in TALKS if talk["tools"]]
    rows = ((split, talk) for split in SPLITS for talk in talks)
    write_dataset(data, rows, "messages", {"source": "test"})
    tokenize(data, model, tmp_path / "out", recipe("messages", block_size=512, **tokenizing))
    read = task_of(tmp_path / "out", {}).window_reader(tmp_path / "out", str(tmp_path / "out"))
    (row,) = read(0)
    text = load_tokenizer(model).decode(row["tokens"])
    assert text.startswith("Tools:<|im_start|>system\nCall.")
    trained = load_tokenizer(model).decode(row["tokens"][is_trained(row)])
    assert trained == "".join(SAID[2])


def test_a_row_that_the_template_cannot_take_leaves_nothing_behind(
    tmp_path: Path, talks: Path, chat_folder: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/manifest.json").write_text("of an earlier store")
    template = "{{ messages[0].missing.deeper if messages[0].content == 'x' }}" + CHATML
    with pytest.raises(UserError, match=r"^datasets\.talks: the chat template"):
        tokenize(talks, chat_folder, tmp_path / "out", TURNED | {"chat_template": template})
    assert not (tmp_path / "out").exists()


STRICT = """
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate') }}
    {%- endif %}
{%- endfor %}
"""
ASKED_TWICE = [
    {"from": "human", "value": "Are you there?"},
    {"from": "human", "value": "Hello?"},
    {"from": "gpt", "value": "Yes."},
]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows({key: json.dumps(row[key], indent=1) for key in row} for row in rows)


def write_pairs(path: Path, rows: list[dict[str, Any]]) -> None:
    """With a second answer to each."""
    other = {"from": "gpt", "value": "No."}
    write_lines(
        path,
        [
            {"chosen": row["conversations"], "rejected": [*row["conversations"][:-1], other]}
            for row in rows
        ],
    )


@pytest.mark.parametrize(
    ("name", "write", "format", "place"),
    [
        ("talks.jsonl", write_lines, "messages", "line 5"),
        ("talks.json", lambda path, rows: path.write_text(json.dumps(rows)), "messages", "entry 3"),
        ("talks.csv", write_csv, "messages", "line 35"),
        (
            "talks.parquet",
            lambda path, rows: pq.write_table(pa.Table.from_pylist(rows), path),
            "messages",
            "row 3",
        ),
        ("pairs.jsonl", write_pairs, "preference", "line 5"),
    ],
)
def test_a_row_that_the_template_refuses_is_named_where_the_user_has_it(
    tmp_path: Path,
    chat_folder: Path,
    name: str,
    write: Callable[[Path, list[dict[str, Any]]], None],
    format: str,
    place: str,
) -> None:
    def talk(number: int) -> dict[str, Any]:
        question = {"from": "human", "value": f"{number}?"}
        return {"conversations": [question, {"from": "gpt", "value": "Yes."}]}

    train, test = tmp_path / name, tmp_path / f"test {name}"
    write(train, [talk(1)])
    # One that is there twice is dropped, so the row has another number in the test split.
    write(test, [talk(2), talk(2), {"conversations": ASKED_TWICE}, talk(3)])
    columns = {} if format == "messages" else {"prompt": "prompt"}
    source: dict[str, Any] = {"source": "files", "path": {"train": str(train), "test": str(test)}}
    source |= {"format": format, "columns": columns, "validation_share": 0}
    files = {"train": [str(train)], "test": [str(test)]}
    download(tmp_path / "asked", source, files)
    cfg = recipe(format, block_size=64, chat_template=STRICT + CHATML)
    arguments = (tmp_path / "asked", chat_folder, tmp_path / "out", cfg)
    said = (
        "the chat template fails (TemplateError: Conversation roles must alternate), in the "
        "conversation that begins 'Are you there?"
    )
    with pytest.raises(UserError) as caught:
        tokenize(*arguments, source, files)
    assert str(caught.value).startswith(f"{test}, {place}: {said}")
    assert str(caught.value).endswith("; fix data.chat_template or remove the row")
    # A file that isn't there any more, or one that was fetched.
    test.unlink()
    for given in (files, {}):
        with pytest.raises(UserError) as caught:
            tokenize(*arguments, source, given)
        assert str(caught.value).startswith(f"datasets.asked: {said}")


def test_on_the_fly_the_store_keeps_what_its_rows_are_made_from(
    tmp_path: Path, dataset: Path, model_folder: Path
) -> None:
    tokenize(dataset, model_folder, tmp_path / "ahead", CFG)
    tokenize(dataset, model_folder, tmp_path / "out", ON_THE_FLY)
    manifest = read_manifest(tmp_path / "out")
    assert damaged_files(tmp_path / "out") == []
    assert sorted(manifest["files"]) == [
        "preview.txt",
        "test.groups",
        "test.rows",
        "test.segments",
        "tokenizer/config.json",
        "tokenizer/generation_config.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
        "train.parquet",
        "validation.rows",
        "validation.segments",
    ]
    assert manifest["splits"] == read_manifest(tmp_path / "ahead")["splits"]
    kept = (tmp_path / "out/train.parquet").read_bytes()
    assert kept == (dataset / "train.parquet").read_bytes()
    assert manifest["recipe"] == ON_THE_FLY | {"packing": True}


def test_documents_that_are_dropped_are_counted_and_reported(
    tmp_path: Path,
    dataset: Path,
    model_folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tokenize(dataset, model_folder, tmp_path / "out", recipe(long_documents="drop"))
    splits = read_manifest(tmp_path / "out")["splits"]
    total = 0
    for name in SPLITS:
        texts = [tuple(row.values()) for row in rows_of(dataset, name)]
        lengths = [sum(len(tokenizer(t)["input_ids"]) for t in text) + 2 for text in texts]
        dropped = {n for n, length in enumerate(lengths) if length > 16}
        assert splits[name]["dropped_documents"] == len(dropped) > 0
        kept = set(StoredSplit(tmp_path / "out", name).segments[:, Segment.DOCUMENT].tolist())
        assert kept == set(range(len(texts))) - dropped
        total += len(dropped)
    assert f", {total} documents longer than a row dropped" in capsys.readouterr().err


@pytest.mark.parametrize("when", ["ahead", "on-the-fly"])
def test_tokens_are_counted_by_role(
    tmp_path: Path,
    talks: Path,
    chat_folder: Path,
    capsys: pytest.CaptureFixture[str],
    when: str,
) -> None:
    loader = "memory" if when == "ahead" else "stream"
    cfg = recipe("messages", block_size=512, chat_template=CHATML, tokenize=when, loader=loader)
    tokenize(talks, chat_folder, tmp_path / "out", cfg)
    tokenizer, expected = load_tokenizer(chat_folder), dict.fromkeys(ROLES, 0)
    for talk, answers in zip(TALKS, SAID, strict=True):
        for message in json.loads(talk["messages"]):
            if message["role"] != "assistant":
                count = len(tokenizer(message["content"], add_special_tokens=False)["input_ids"])
                expected[message["role"]] += count
        for answer in answers:
            # What is in front of a first call is the header's.
            tokens = tokenizer(answer, add_special_tokens=False)["input_ids"]
            expected["assistant"] += len(tokens)
    facts = read_manifest(tmp_path / "out")["splits"]["train"]
    counts = facts["roles"]
    for role in ("system", "user", "tool"):
        assert counts[role] == {"tokens": expected[role], "trained": 0}, role
    assert counts["assistant"] == {"tokens": facts["weight"], "trained": facts["weight"]}
    assert facts["weight"] == expected["assistant"]
    assert sum(count["tokens"] for count in counts.values()) == facts["tokens"]
    assert (
        f"; tokens by role: template {counts['template']['tokens']}, system {expected['system']}, "
        f"user {expected['user']}, assistant {facts['weight']} ({facts['weight']} trained), tool "
    ) in capsys.readouterr().err


@pytest.mark.parametrize("format", ["text", "prompt-completion"])
def test_of_texts_the_parts_are_counted(
    tmp_path: Path,
    model_folder: Path,
    documents: dict[str, list[Document]],
    capsys: pytest.CaptureFixture[str],
    format: FormatName,
) -> None:
    rows = [(split, row) for split in SPLITS for row in documents[format]]
    write_dataset(tmp_path / "dataset", iter(rows), format, {})
    tokenize(tmp_path / "dataset", model_folder, tmp_path / "out", recipe(format, block_size=4096))
    facts = read_manifest(tmp_path / "out")["splits"]["train"]
    rest = facts["tokens"] - facts["weight"]
    line = capsys.readouterr().err
    if format == "text":
        # All but the first token of each document.
        assert facts["roles"] == {"text": {"tokens": facts["tokens"], "trained": facts["weight"]}}
        assert "by role" not in line
    else:
        assert facts["roles"] == {
            "prompt": {"tokens": rest, "trained": 0},
            "completion": {"tokens": facts["weight"], "trained": facts["weight"]},
        }
        trained = f"{facts['weight']:,}"
        assert (
            f"; tokens by role: prompt {rest:,}, completion {trained} ({trained} trained)" in line
        )


def test_what_a_template_does_to_answers_is_named_and_recorded(
    tmp_path: Path, chat_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    thought = conversation(
        ("user", "Two?"),
        ("assistant", "<think>\none and one\n</think>\n\n2"),
        ("user", "Three?"),
        ("assistant", "<think>\ntwo and one\n</think>\n\n3"),
    )
    rows = [(split, row) for split in SPLITS for row in (thought, conversation(*TURNS))]
    write_dataset(tmp_path / "dataset", iter(rows), "messages", {})
    cfg = recipe("messages", block_size=512, chat_template=QWEN3)
    tokenize(tmp_path / "dataset", chat_folder, tmp_path / "out", cfg)
    block = "<think>\n\n</think>\n\n"
    facts = read_manifest(tmp_path / "out")["splits"]["test"]["chat_template"]
    assert facts == {"answers": 4, "left_out": 1, "untrained": {block: 1}}
    line = capsys.readouterr().err
    assert f"; the chat template puts {block!r} before 3 of 12 answers, not trained" in line
    assert "; the chat template leaves out a part of 3 of 12 answers" in line
    shown = (tmp_path / "out/preview.txt").read_text("utf-8")
    assert (
        f"⟦non, 東京 🐍.<|im_end|>⟧\n\n... the chat template puts {block!r} before 1 of 2" in shown
    )


def test_an_answer_of_which_the_template_drops_reasoning_is_refused(
    tmp_path: Path, chat_folder: Path
) -> None:
    lost = conversation(("user", "2?"), ("assistant", "<think>\nHm.\n</think>\n\n2"))
    rows = [(split, row) for split in SPLITS for row in (conversation(*TURNS), lost)]
    write_dataset(tmp_path / "dataset", iter(rows), "messages", {})
    cfg = recipe("messages", block_size=512, chat_template=DEEPSEEK)
    with pytest.raises(UserError) as caught:
        tokenize(tmp_path / "dataset", chat_folder, tmp_path / "out", cfg)
    assert str(caught.value) == (
        r"datasets.dataset: the chat template leaves out '<think>\nHm.\n</think>' of message 2, "
        "the last that is trained, in the conversation that begins "
        r"'2?\n<think>\nHm.\n</think>\n\n2'; "
        "set a data.chat_template that renders it, or remove it from the row"
    )


def test_special_tokens_in_texts_are_named(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else nobody would know that an answer stops in its middle."""
    rows = ["a<|endoftext|>b", "<|endoftext|>", "c"]
    named = "; special tokens in the text of documents: <|endoftext|> in 6"
    for texts in (rows, ["c"]):
        folder = tmp_path / str(len(texts))
        documents = [(split, Document(text=text)) for split in SPLITS for text in texts]
        write_dataset(folder / "dataset", iter(documents), "text", {})
        tokenize(folder / "dataset", model_folder, folder / "out", recipe(format="text"))
        assert (named in capsys.readouterr().err) == (texts == rows)
        for facts in read_manifest(folder / "out")["splits"].values():
            found = {"<|endoftext|>": 2} if texts == rows else None
            assert facts.get("special_tokens") == found


def test_where_all_documents_are_dropped_the_length_is_named(
    tmp_path: Path, model_folder: Path
) -> None:
    rows = ((split, Document(text="x" * 20)) for split in SPLITS)
    write_dataset(tmp_path / "dataset", rows, "text", {})
    cfg = recipe(long_documents="drop")
    with pytest.raises(UserError, match=r"too long: 1; .*data\.block_size \(16\)"):
        tokenize(tmp_path / "dataset", model_folder, tmp_path / "out", cfg)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("cfg", [CFG, ON_THE_FLY])
def test_a_preview_shows_documents_of_the_test_split(
    tmp_path: Path, dataset: Path, model_folder: Path, cfg: dict[str, Any]
) -> None:
    tokenize(dataset, model_folder, tmp_path / "out", cfg | {"block_size": 4096})
    heading, *entries = (tmp_path / "out/preview.txt").read_text("utf-8").split("\n--- document ")
    assert heading == "test split"
    shown = [
        f"{STOP}{row.get('prompt', '')}⟦{row.get('completion', row.get('text'))}{STOP}⟧"
        for row in rows_of(dataset, "test")[:3]
    ]
    shown[-1] += "\n"
    assert [entry.partition("\n")[2] for entry in entries] == shown


FULL_DISK = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.parametrize(
    ("cfg", "limit"), [(CFG, 4096), pytest.param(ON_THE_FLY, 4096, marks=pytest.mark.long)]
)
def test_a_full_disk_costs_one_line_and_no_restart_by_hand(
    tmp_path: Path, model_folder: Path, texts: list[str], cfg: dict[str, Any], limit: int
) -> None:
    """The kernel refuses to write more than `limit` bytes of a file, as it does with a quota."""
    dataset, out = tmp_path / "dataset", tmp_path / "out"
    pairs = ((split, Document(text=text)) for split in SPLITS for text in texts)
    write_dataset(dataset, pairs, "text", {})
    command = stage_command("tokenize", dataset=dataset, model=model_folder, output=out, cfg=cfg)
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(limit), *command[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {out}: the disk is full after writing ")
    assert line.endswith("; free some space and run the same command again")
    assert not out.exists()
    tokenize(dataset, model_folder, out, cfg)
    assert damaged_files(out) == []
