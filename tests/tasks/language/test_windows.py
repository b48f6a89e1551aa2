"""Windows of a split, from the documents of its row groups."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversations import CHATML, TALKS
from packed import pieces_of
from transformers import PreTrainedTokenizerFast

from moray.config.formats import FormatName
from moray.config.schema import Data, result_keys
from moray.corpus.dataset import Document, num_groups, read_group, write_dataset
from moray.errors import UserError
from moray.provenance.manifest import read_manifest
from moray.stages.tokenize import tokenize
from moray.tasks import task_of
from moray.tasks.language.encode import Encoder, make_encoder
from moray.tasks.language.rows import Segment, StoredSplit, encode_window
from moray.tasks.language.tokens import encode_windows


def write(folder: Path, documents: list[Document], format: FormatName) -> Path:
    """A dataset with these documents in each split, few of them in a row group."""
    pairs = ((split, row) for split in ("train", "validation", "test") for row in documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moray.corpus.dataset._GROUP_BYTES", 300)
        write_dataset(folder, pairs, format, {"source": "test"})
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    folder = write(
        tmp_path_factory.mktemp("texts"), [Document(text=text) for text in texts], "text"
    )
    assert num_groups(folder / "test.parquet") > 5
    return folder / "test.parquet"


def test_a_window_holds_the_documents_of_its_row_group(
    file: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    encoder, number = Encoder(tokenizer, 4096), 0
    for group in range(num_groups(file)):
        documents = read_group(file, group)
        window = encode_window(documents, number, encoder, packing=True, count_bytes=True)
        texts = [document["text"] for document in documents]
        expected = dict(enumerate(texts, number))
        number += len(texts)
        for row in range(len(window.rows)):
            for piece in pieces_of(window, row):
                text = expected.pop(piece.document)
                assert tokenizer.decode(piece.tokens[1:-1]) == text
                assert piece.bytes == len(text.encode())
        assert expected == {}


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("count_bytes", [True, False])
def test_all_windows_of_a_split_come_in_order(
    file: Path, tokenizer: PreTrainedTokenizerFast, count_bytes: bool, packing: bool
) -> None:
    encoder = Encoder(tokenizer, 32, drop_long=True)
    encode = partial(encode_window, encoder=encoder, packing=packing, count_bytes=count_bytes)
    windows = list(encode_windows(file, encode))
    assert len(windows) == num_groups(file)
    assert sum(window.dropped for window in windows) > 0
    first_document = 0
    for group, window in enumerate(windows):
        documents = read_group(file, group)
        alone = encode_window(documents, first_document, encoder, packing, count_bytes)
        first_document += len(documents)
        np.testing.assert_array_equal(window.rows, alone.rows)
        np.testing.assert_array_equal(window.segments, alone.segments)
        assert window.dropped == alone.dropped
        assert (window.segments[:, Segment.BYTES].sum() > 0) == (
            count_bytes and len(window.rows) > 0
        )


def test_a_row_that_cannot_be_encoded_is_named_with_its_file(
    tmp_path: Path, chat_folder: Path
) -> None:
    """By its number in the file, whichever row group it is in."""
    file = write(tmp_path / "dataset", TALKS * 2, "messages") / "test.parquet"
    first = read_group(file, 0)
    assert len(first) < 3 < num_groups(file)
    template = "{{ messages[2].missing.deeper if tools }}" + CHATML
    cfg = {"format": "messages", **result_keys(Data(chat_template=template))}
    encoder = make_encoder(chat_folder, cfg)
    encode = partial(encode_window, encoder=encoder, packing=True, count_bytes=True)
    with pytest.raises(UserError) as caught:
        list(encode_windows(file, encode))
    assert str(caught.value).startswith(f"{file}, row 3: the chat template fails (Undefined")


def test_a_bad_template_is_reported_by_its_key(tmp_path: Path, chat_folder: Path) -> None:
    file = write(tmp_path / "dataset", TALKS, "messages") / "test.parquet"
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    cfg = {"format": "messages", **result_keys(Data(chat_template=template))}
    encoder = make_encoder(chat_folder, cfg)
    encode = partial(encode_window, encoder=encoder, packing=True, count_bytes=True)
    with pytest.raises(UserError, match=r"^data\.chat_template: with this template"):
        list(encode_windows(file, encode))


READS: dict[str, dict[str, Any]] = {
    "text": {"block_size": 32},
    "text, a row each": {"block_size": 32, "packing": False},
    "text, long ones dropped": {"block_size": 32, "long_documents": "drop"},
    "messages": {"block_size": 48, "chat_template": CHATML},
}


@pytest.mark.parametrize("name", READS)
def test_a_window_is_read_or_made_again_with_the_same_rows(
    tmp_path: Path,
    chat_folder: Path,
    texts: list[str],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")  # which a reader sets for good
    format: FormatName = "messages" if name.startswith("messages") else "text"
    documents = TALKS * 3 if format == "messages" else [Document(text=text) for text in texts]
    dataset = write(tmp_path / "dataset", documents, format)
    for when, loader in (("ahead", "memory"), ("on-the-fly", "stream")):
        data = Data.model_validate({**READS[name], "tokenize": when, "loader": loader})
        tokenize(dataset, chat_folder, tmp_path / when, {"format": format, **result_keys(data)})
    facts = [read_manifest(tmp_path / when)["splits"]["train"] for when in ("ahead", "on-the-fly")]
    assert facts[0] == facts[1]
    split = StoredSplit(tmp_path / "ahead", "train")
    assert len(split.windows) > 3
    readers = [
        task_of(tmp_path / when, {}).window_reader(tmp_path / when, str(tmp_path / when))
        for when in ("ahead", "on-the-fly")
    ]
    ends = np.cumsum(split.windows).tolist()
    for window in reversed(range(len(ends))):
        expected = split.rows[ends[window] - split.windows[window] : ends[window]]
        for read in readers:
            rows = read(window)
            assert rows.dtype == split.rows.dtype
            np.testing.assert_array_equal(rows, expected)
