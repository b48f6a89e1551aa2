"""Conversations as a store of tokens."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conversations import CHATML, SAID, TALKS, TURNS, conversation
from small_model import recipe
from turn_templates import DEEPSEEK, QWEN3

from moray.corpus.dataset import SPLITS
from moray.corpus.documents import write_dataset
from moray.errors import UserError
from moray.provenance.manifest import read_manifest
from moray.stages.base_model import base_model
from moray.stages.download import download
from moray.tasks.language.pieces import ROLES
from moray.tasks.language.rows import Segment, StoredSplit, is_trained
from moray.tasks.language.tokenize import tokenize
from moray.tasks.language.tokenizer import load_tokenizer
from moray.train.task import task_of

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
    assert facts == {"answers": 4, "earlier": 2, "left_out": 1, "untrained": {block: 1}}
    line = capsys.readouterr().err
    assert f"; the chat template puts {block!r} before 3 of 12 answers, not trained" in line
    assert "; the chat template leaves out a part of 3 of 12 answers" in line
    assert (
        "\ndatasets.dataset: 6 of 12 answers are trained in another form than generation has, as "
        "the chat template renders earlier turns differently from the last; data.turns: each "
        "trains every answer in the form of generation\n"
    ) in line
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
