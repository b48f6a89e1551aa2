"""The token store of a dataset."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversations import CHATML, TALKS, TOOLS, TURNS, chat_tokenizer, conversation
from packed import pieces_of
from transformers import PreTrainedTokenizerFast
from turn_templates import QWEN3

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.config.tasks import FormatName
from moray.corpus.dataset import Document, num_groups, read_group, write_dataset
from moray.errors import UserError
from moray.provenance.manifest import read_manifest, write_manifest
from moray.rows.store import describe
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
from moray.tasks.language.tokens import SplitWriter, encode_windows, preview
from moray.train.task import task_of


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
    encoder = Encoder(tokenizer, 32, long_documents="drop")
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
        list(encode_windows(file, encode))
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


END = "<|endoftext|>"


def show(encoder: Encoder, documents: list[Document], count: int = 10) -> list[str]:
    """The preview's entries, each with its heading."""
    pieces, *_ = encoder.encode(documents, 0, count_bytes=False)
    window = pack_rows(pieces, encoder.block_size, encoder.dtype)
    text = preview(window, documents, encoder, count)
    assert text.startswith("--- document ")
    assert text.endswith("\n")
    return text[len("--- document ") : -1].split("\n--- document ")


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        (Document(text="naïve 東京 🐍\n"), f"{END}⟦naïve 東京 🐍\n{END}⟧"),
        (Document(text=""), f"{END}⟦{END}⟧"),
        (Document(prompt="def (", completion=" x):"), f"{END}def (⟦ x):{END}⟧"),
        (Document(prompt="東", completion=" 京 "), f"{END}東⟦ 京 {END}⟧"),
        (Document(prompt="", completion=""), f"{END}⟦{END}⟧"),
    ],
)
def test_what_is_trained_stands_between_brackets(
    tokenizer: PreTrainedTokenizerFast, document: Document, shown: str
) -> None:
    (entry,) = show(Encoder(tokenizer, 64), [document])
    assert entry.partition("\n")[2] == shown


def test_a_conversation_has_brackets_around_each_answer(texts: list[str]) -> None:
    tokenizer = chat_tokenizer(texts)
    encoder = Encoder(tokenizer, 4096, chat=ChatTemplate(tokenizer, CHATML, ["<|im_end|>"]))
    talk = conversation(
        ("system", "S"), ("user", "é"), ("assistant", " 都 "), ("user", ""), ("assistant", ""),
        tools=TOOLS,
    )  # fmt: skip
    tools = '{"type": "function", "function": {"name": "weather", "parameters": {}}}'
    *_, entry = show(encoder, [*TALKS, talk])
    assert entry.partition("\n")[2] == (
        f"<|im_start|>system\nS\n# Tools\n{tools}<|im_end|>\n<|im_start|>user\né<|im_end|>\n"
        "<|im_start|>assistant\n⟦ 都 <|im_end|>⟧\n<|im_start|>user<|im_end|>\n"
        "<|im_start|>assistant⟦<|im_end|>⟧\n\n"
        "... in generation, prompts end in '\\n', which 1 of 2 answers lack here, in document 3"
    )


def test_of_a_conversation_what_its_template_leaves_out_is_counted(texts: list[str]) -> None:
    tokenizer = chat_tokenizer(texts)
    encoder = Encoder(tokenizer, 12, chat=ChatTemplate(tokenizer, QWEN3, ["<|im_end|>"]))
    thoughts = ["<think>\nnot in value\n</think>\n\n", "value not in 東京"]
    talk = conversation(
        ("user", "a?"),
        ("assistant", f"{thoughts[0]}a"),
        ("user", "b?"),
        {"role": "assistant", "content": "b", "reasoning_content": thoughts[1]},
        ("user", "c?"),
        ("assistant", "<think>\nof course\n</think>\n\nc"),
    )
    entries = show(encoder, [talk, conversation(*TURNS)])
    (entry,) = (entry for entry in entries if "leaves out" in entry)
    # Behind its last piece.
    assert entry == [entry for entry in entries if entry.startswith("0:")][-1]
    count = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in thoughts)
    assert entry.splitlines()[-2:] == [
        f"... the chat template leaves out {count} tokens of the messages of document 0, "
        r"beginning with '<think>\nnot in value\n</think>'",
        "... 2 of 3 answers are trained in another form than generation has, as the chat template "
        "renders earlier turns differently from the last, in document 0",
    ]


_PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% if m.role == 'assistant' %}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.mark.parametrize("prompt", ["assistant: ", "assistant:"])
def test_a_prompt_that_has_other_tokens_in_generation_is_named(
    texts: list[str], prompt: str
) -> None:
    tokenizer = chat_tokenizer(texts)
    template = _PLAIN.replace("assistant: {% endif", f"{prompt}{{% endif")
    encoder = Encoder(tokenizer, 4096, chat=ChatTemplate(tokenizer, template, ["<|im_end|>"]))
    # One token begins with the space before it.
    assert len(encoder.tokens_of(" None")) == 1
    entry = show(encoder, [conversation(("user", "é"), ("assistant", "None"))])[-1]
    remark = (
        "... in generation, the prompt of document 0 has other tokens than here: the answer's "
        "first one begins within 'ssistant: ', so end the prompt before that"
    )
    assert (entry.splitlines()[-1] == remark) == (prompt == "assistant: ")
    assert (remark in entry) == (prompt == "assistant: ")


def test_a_document_that_is_cut_is_shown_piece_by_piece(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    documents = [Document(text="zyxwvutsrqponm"), Document(text="x")]
    one, other, short = show(Encoder(tokenizer, 10), documents)
    assert one == f"0: 10 tokens in row 0\n{END}⟦zyxwvutsr⟧"
    assert other == f"0: 7 tokens in row 1\nr⟦qponm{END}⟧"
    assert short == f"1: 3 tokens in row 1\n{END}⟦x{END}⟧"


@pytest.mark.parametrize("block_size", [100, 4096])
def test_of_a_long_document_the_beginning_is_shown_and_the_rest_counted(
    tokenizer: PreTrainedTokenizerFast, block_size: int
) -> None:
    prompt, completion = "z" * 50, "zyxw" * 5_000
    encoder = Encoder(tokenizer, block_size)
    documents = [Document(prompt=prompt, completion=completion), Document(text="x")]
    pieces, *_ = encoder.encode(documents, 0, count_bytes=False)
    *shown, last = show(encoder, documents)
    assert last.startswith("1: 3 tokens in row ")
    text, _, rest = "\n".join(shown).rpartition("\n... ")
    assert len(text) < 3000
    assert text.startswith(f"0: {min(block_size, 4096):,} tokens in row 0\n{END}zz")
    assert "⟦zyxw" in text

    found = re.fullmatch(r"([\d,]+) more tokens in (\d+) rows?, ([\d,]+) of them trained", rest)
    assert found is not None
    tokens, rows, trained = (int(number.replace(",", "")) for number in found.groups())
    mine = [piece for piece in pieces if piece.document == 0]
    assert tokens == sum(len(piece.tokens) for piece in mine) - 1024
    assert rows == len(mine) - 1024 // block_size
    masks = np.concatenate([piece.mask for piece in mine])
    assert trained == masks[1024:].sum()


def test_the_first_documents_are_shown_whichever_row_they_are_in(
    tokenizer: PreTrainedTokenizerFast, texts: list[str]
) -> None:
    documents = [Document(text=text) for text in texts]
    entries = show(Encoder(tokenizer, 4096), documents, count=5)
    assert [entry.partition(":")[0] for entry in entries] == list("01234")
    assert [entry.partition("\n")[2] for entry in entries] == [
        f"{END}⟦{text}{END}⟧" for text in texts[:5]
    ]


def test_of_a_window_without_pieces_nothing_is_shown(tokenizer: PreTrainedTokenizerFast) -> None:
    assert preview(pack_rows([], 8, np.dtype("<u2")), [], Encoder(tokenizer, 8), 3) == "\n"
