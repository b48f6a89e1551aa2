"""From a dataset to its token store."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fleet import until
from resumed import check_resumption, in_small_groups
from run_stage import stage_command
from small_model import recipe
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from moray.config.tasks import FormatName
from moray.corpus.dataset import SPLITS, Document, read_documents
from moray.corpus.documents import write_dataset
from moray.errors import UserError
from moray.provenance.manifest import (
    DATASET,
    JOURNAL,
    damaged_files,
    read_manifest,
    write_json,
    write_manifest,
)
from moray.stages.base_model import base_model
from moray.tasks.language.rows import Segment, StoredSplit, is_trained
from moray.tasks.language.tokenize import tokenize

STOP = "<|endoftext|>"


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
    write_json(dataset / DATASET, {})
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


@pytest.mark.parametrize("format", ["text", "preference", "unpaired-preference"])
def test_a_store_is_the_same_if_the_stage_is_interrupted(
    format: FormatName, tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(
        tmp_path / "rows",
        ((split, row_of(format, number)) for split in SPLITS for number in range(20)),
        format,
        {},
    )
    dataset = in_small_groups(tmp_path / "rows", tmp_path / "dataset", 8)
    cfg = recipe(format, block_size=48, long_documents="drop")
    check_resumption(lambda store: tokenize(dataset, model_folder, store, cfg), tmp_path, capsys)


@pytest.mark.long
def test_a_killed_process_loses_the_windows_of_a_second(tmp_path: Path, model_folder: Path) -> None:
    counts = {"train": 4000, "validation": 4, "test": 4}
    rows = ((split, row_of("text", n)) for split, count in counts.items() for n in range(count))
    write_dataset(tmp_path / "rows", rows, "text", {})
    dataset = in_small_groups(tmp_path / "rows", tmp_path / "dataset", 2)
    paths = {"dataset": dataset, "model": model_folder, "cfg": CFG}
    begin = stage_command("tokenize", output=tmp_path / "killed", **paths)
    with subprocess.Popen(begin) as process:
        until(lambda: lines_of(tmp_path / "killed") > 1)
        process.kill()
    assert lines_of(tmp_path / "killed") < 2000
    done = subprocess.run(begin, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "killed: continues after " in done.stderr
    tokenize(dataset, model_folder, tmp_path / "undisturbed", CFG)
    assert read_manifest(tmp_path / "killed") == read_manifest(tmp_path / "undisturbed")
    assert not (tmp_path / "killed" / JOURNAL).exists()


def lines_of(store: Path) -> int:
    journal = store / JOURNAL
    return journal.read_bytes().count(b"\n") if journal.is_file() else 0


def row_of(format: FormatName, number: int) -> Document:
    if format == "text":
        return Document(text=f"x = {number}" + " + 1" * (number % 7))
    prompt, answer = f"x{number} =", f" {number}" + " + 1" * (number % 7)
    if format == "preference":
        return Document(prompt=prompt, chosen=answer, rejected=answer + " * 2", tools=None)
    return Document(prompt=prompt, completion=answer, tools=None, label=number % 3 > 0)


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


@pytest.mark.parametrize("long_documents", ["split", "truncate", "drop"])
def test_prompts_longer_than_a_row_are_warned_of(
    long_documents: str,
    tmp_path: Path,
    model_folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whether its answer sees the whole prompt depends on the tokens in front of the answer."""
    prompts = [" x" * number for number in (1, 8, 14, 15, 16, 17, 40)]
    plain = {"add_special_tokens": False}
    opening = tokenizer.bos_token_id is not None
    lengths = [opening + len(tokenizer(prompt, **plain)["input_ids"]) for prompt in prompts]
    rows = [Document(prompt=prompt, completion=" y = 1" * 20) for prompt in prompts]
    named = ((split, row) for split in SPLITS for row in rows)
    write_dataset(tmp_path / "dataset", named, "prompt-completion", {})
    cfg = recipe("prompt-completion", long_documents=long_documents)
    if long_documents == "drop":
        with pytest.raises(UserError, match="no tokens to train on"):
            tokenize(tmp_path / "dataset", model_folder, tmp_path / "out", cfg)
        return
    tokenize(tmp_path / "dataset", model_folder, tmp_path / "out", cfg)
    # The first token of a row follows nothing.
    cut = 3 * sum(length >= 16 for length in lengths)
    assert 0 < cut < 3 * len(rows)
    line = f"warning: datasets.dataset: the prompts of {cut} documents are longer than a row, "
    assert (line in capsys.readouterr().err) == (long_documents == "split")


@pytest.mark.parametrize(
    ("prompt", "completion", "warned"), [("x = ", "note", 12), ("x =", " note", 0)]
)
@pytest.mark.parametrize("format", ["prompt-completion", "preference"])
def test_a_prompt_that_shares_a_token_with_the_completion_is_warned_of(
    tmp_path: Path,
    model_folder: Path,
    capsys: pytest.CaptureFixture[str],
    format: FormatName,
    prompt: str,
    completion: str,
    warned: int,
) -> None:
    """With tokenizers that begin each text with a space, both are tokenised as one text."""
    given = Path(shutil.copytree(model_folder, tmp_path / "given"))
    one = PreTrainedTokenizerFast.from_pretrained(given)
    one.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    one.save_pretrained(given)
    base_model(tmp_path / "model", {"source": "path", "path": str(given)})
    if format == "preference":
        row = Document(prompt=prompt, chosen=completion, rejected=completion + "s", tools=None)
    else:
        row = Document(prompt=prompt, completion=completion)
    count = 2 if format == "preference" else 4
    rows = [(split, row) for split in SPLITS for _ in range(count)]
    write_dataset(tmp_path / "dataset", iter(rows), format, {})
    tokenize(
        tmp_path / "dataset", tmp_path / "model", tmp_path / "out", recipe(format, block_size=64)
    )
    line = f"warning: datasets.dataset: in {warned} of 12 texts, the last token of the prompt also"
    assert (line in capsys.readouterr().err) == bool(warned)


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


@pytest.mark.parametrize("format", ["text", "prompt-completion", "preference"])
def test_characters_that_the_tokenizer_does_not_know_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format: FormatName
) -> None:
    """Else a base of another language learns to write one token for all words."""
    texts = ["ab" * 20, "a東b京" * 5, "b 東", "ba"]
    letters = Tokenizer(WordLevel({"<unk>": 0, "</s>": 1, "a": 2, "b": 3, " ": 4}, "<unk>"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    letters.decoder = decoders.Fuse()
    folder = tmp_path / "model"
    PreTrainedTokenizerFast(
        tokenizer_object=letters, unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(folder)
    write_manifest(folder, isolates_documents=True, architecture="llama")
    rows = [
        Document(text=text)
        if format == "text"
        else Document(prompt="ab", completion=text)
        if format == "prompt-completion"
        else Document(prompt="ab", chosen=text, rejected="a", tools=None)
        for text in texts
    ]
    write_dataset(tmp_path / "dataset", ((s, row) for s in SPLITS for row in rows), format, {})
    tokenize(tmp_path / "dataset", folder, tmp_path / "out", recipe(format, block_size=16))
    splits = read_manifest(tmp_path / "out")["splits"]
    # Of pairs, half a row is left: two tokens of the prompt and six of the answer.
    assert splits["test"]["unknown"] == {
        "tokens": 4 if format == "preference" else 11,
        "documents": 2,
    }
    total = 3 * splits["test"]["unknown"]["tokens"]
    warning = f"warning: datasets.dataset: {total} tokens in 6 documents are of characters that the"
    assert warning in capsys.readouterr().err


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


@pytest.mark.parametrize("template", [None, "{{ messages }}"])
@pytest.mark.parametrize("format", ["text", "prompt-completion", "preference"])
def test_prompts_of_text_for_a_model_with_a_chat_template_are_told(
    tmp_path: Path,
    model_folder: Path,
    documents: dict[str, list[Document]],
    capsys: pytest.CaptureFixture[str],
    template: str | None,
    format: FormatName,
) -> None:
    """It would be asked in another form than it was trained."""
    given, model = tmp_path / "given", tmp_path / "model"
    shutil.copytree(model_folder, given)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(given)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(given)
    base_model(model, {"source": "path", "path": str(given)})
    pair = Document(prompt="a", chosen="b", rejected="c", tools=None)
    rows = documents.get(format, [pair])
    write_dataset(tmp_path / "rows", ((split, row) for split in SPLITS for row in rows), format, {})
    tokenize(tmp_path / "rows", model, tmp_path / "out", recipe(format, block_size=64))
    told = "so the model's chat template isn't used" in capsys.readouterr().err
    assert told == (template is not None and format != "text")
