"""The token store of a dataset."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversations import CHATML, TALKS, chat_tokenizer, conversation
from packed import pieces_of
from transformers import PreTrainedTokenizerFast

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.config.tasks import FormatName
from moray.corpus.dataset import Document, num_groups, read_group
from moray.corpus.documents import write_dataset
from moray.errors import UserError
from moray.provenance.manifest import read_manifest, write_manifest
from moray.rows.journal import Journal
from moray.rows.store import RowsWriter, describe
from moray.stages.store import MakeWindow, OpenStore
from moray.tasks.language.chat import ChatTemplate
from moray.tasks.language.encode import Encoder, RefusedRowError, make_encoder
from moray.tasks.language.pieces import Piece
from moray.tasks.language.rows import (
    PackedRows,
    Segment,
    StoredSplit,
    encode_window,
    pack_rows,
    row_type,
)
from moray.tasks.language.tokenize import tokenize
from moray.tasks.language.tokens import SplitWriter
from moray.train.task import task_of
from moray.workers.pool import Threads


def write(folder: Path, documents: list[Document], format: FormatName) -> Path:
    """A dataset with these documents in each split, few of them in a row group."""
    pairs = ((split, row) for split in ("train", "validation", "test") for row in documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moray.corpus.writer._GROUP_BYTES", 300)
        write_dataset(folder, pairs, format, {"source": "test"})
    return folder


def encode_windows(file: Path, encode: MakeWindow[PackedRows]) -> list[PackedRows]:
    """The windows of a split, as they are written."""
    store = OpenStore(file.parent, Journal(file.parent / "journal.jsonl"), Threads(2))
    with RowsWriter(file.parent, "test", keep=False) as writer:
        return [window for _, window in store.windows(file, encode, writer, "tokenize")]


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
    encoder = Encoder(tokenizer, 32, long_documents="drop")
    encode = partial(encode_window, encoder=encoder, packing=packing, count_bytes=count_bytes)
    windows = encode_windows(file, encode)
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


def test_a_row_that_cannot_be_encoded_is_known_by_its_number(
    tmp_path: Path, chat_folder: Path
) -> None:
    """In the file, whichever row group it is in."""
    file = write(tmp_path / "dataset", TALKS * 2, "messages") / "test.parquet"
    first = read_group(file, 0)
    assert len(first) < 3 < num_groups(file)
    template = "{{ messages[2].missing.deeper if tools }}" + CHATML
    cfg = {"format": "messages", **result_keys(Data(chat_template=template))}
    encoder = make_encoder(chat_folder, cfg)
    encode = partial(encode_window, encoder=encoder, packing=True, count_bytes=True)
    with pytest.raises(
        RefusedRowError, match=r"^row 3: the chat template fails \(Undefined"
    ) as caught:
        encode_windows(file, encode)
    assert caught.value.number == 3


def test_special_tokens_in_the_text_of_documents_are_counted(texts: list[str]) -> None:
    """They may end the answer that they are in; those of the template itself don't count."""
    chatty = chat_tokenizer(texts)
    chat = ChatTemplate(chatty, CHATML, ["<|im_end|>"])
    encoder = Encoder(chatty, 64, chat=chat)
    asked = conversation(("user", "<|im_end|>?"), ("assistant", "<|im_end|> ends, <|im_end|>"))
    begun = conversation(("user", "<|im_start|>"), ("assistant", "and <|im_end|>"))
    window = encode_window([*TALKS, asked, begun], 7, encoder, packing=True, count_bytes=False)
    assert window.special == {"<|im_end|>": 2, "<|im_start|>": 1}
    written = [Document(text="a<|im_end|>"), Document(text="a")]
    window = encode_window(written, 7, encoder, packing=True, count_bytes=False)
    assert window.special == {"<|im_end|>": 1}


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


BLOCK_SIZE = 16


def draw_windows(counts: list[int], vocabulary: int = 300) -> list[PackedRows]:
    """Windows of so many pieces each, of documents that are counted through."""
    random, dtype = np.random.default_rng(0), np.dtype("<u4" if vocabulary > 2**16 else "<u2")
    windows, document = [], 0
    for count in counts:
        pieces = []
        for _ in range(count):
            length = int(random.integers(2, BLOCK_SIZE + 1))
            mask = random.random(length) < 0.5
            mask[0] = False
            tokens = random.integers(vocabulary, size=length).astype(dtype)
            pieces.append(Piece(tokens, mask, document, int(random.integers(500))))
            document += 1
        packed = pack_rows(pieces, BLOCK_SIZE, dtype)
        windows.append(PackedRows(packed.rows, packed.segments, dropped=count % 3))
    return windows


def write_store(folder: Path, windows: list[PackedRows], keep_rows: bool = True) -> dict[str, Any]:
    with SplitWriter(folder, "train", BLOCK_SIZE, keep_rows) as writer:
        for window in windows:
            writer.add_window(window)
        facts = writer.facts()
    record = windows[0].rows.dtype if windows else row_type(BLOCK_SIZE, np.dtype("<u2"))
    described = describe(record)
    write_manifest(folder, block_size=BLOCK_SIZE, record=described, splits={"train": facts})
    return facts


COUNTS = [[1], [50], [20, 1, 30], [5, 0, 7, 0], [0]]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("vocabulary", [300, 2**32])
def test_a_split_is_its_windows_one_after_another(
    tmp_path: Path, counts: list[int], vocabulary: int
) -> None:
    windows = draw_windows(counts, vocabulary)
    write_store(tmp_path, windows)
    split, first = StoredSplit(tmp_path, "train"), 0
    assert split.block_size == BLOCK_SIZE
    assert split.windows == [len(window.rows) for window in windows]
    for window in windows:
        rows = split.rows[first : first + len(window.rows)]
        np.testing.assert_array_equal(rows, window.rows)
        assert rows.dtype == window.rows.dtype
        places = split.segments[:, Segment.START] // BLOCK_SIZE - first
        mine = np.array(split.segments[(places >= 0) & (places < len(rows))])
        mine[:, Segment.START] -= first * BLOCK_SIZE
        np.testing.assert_array_equal(mine, window.segments)
        first += len(rows)
    assert len(split) == first
    assert (np.diff(split.segments[:, Segment.START]) > 0).all()


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_counts_are_those_of_the_windows(tmp_path: Path, counts: list[int]) -> None:
    windows = draw_windows(counts)
    flags = [window.rows["flags"] for window in windows]
    expected = {
        "rows": sum(len(window.rows) for window in windows),
        "segments": sum(counts),
        "tokens": sum(int(window.segments[:, Segment.LENGTH].sum()) for window in windows),
        "weight": sum(int((flag & 1).sum()) for flag in flags),
        "dropped_documents": sum(count % 3 for count in counts),
        "cut_documents": 0,
        "windows": [len(window.rows) for window in windows],
    }
    for keep_rows in (False, True):
        assert write_store(tmp_path, windows, keep_rows) == expected, keep_rows


def test_a_split_without_windows_is_empty(tmp_path: Path) -> None:
    assert write_store(tmp_path, [])["windows"] == []
    split = StoredSplit(tmp_path, "train")
    assert (len(split), split.block_size, split.segments.shape) == (0, BLOCK_SIZE, (0, 4))


def test_a_split_is_read_only(tmp_path: Path) -> None:
    write_store(tmp_path, draw_windows([5]))
    split = StoredSplit(tmp_path, "train")
    for array in (split.rows["tokens"], split.rows["flags"], split.segments):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1


@pytest.mark.parametrize("kind", ["rows", "segments"])
@pytest.mark.parametrize("change", ["truncated", "missing"])
def test_a_damaged_file_is_named(tmp_path: Path, kind: str, change: str) -> None:
    write_store(tmp_path, draw_windows([20]))
    path = tmp_path / f"train.{kind}"
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with pytest.raises(UserError) as caught:
        StoredSplit(tmp_path, "train")
    assert str(caught.value).startswith(f"{path}: got ")
