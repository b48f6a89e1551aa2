"""From documents to pieces."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from moray.corpus.document import Document
from moray.errors import UserError
from moray.tokens.encode import Piece, encode, load_tokenizer, prompt_tokens

STOP = "<|endoftext|>"


def kind_of_tokenizer(
    kind: str, tokenizer: PreTrainedTokenizerFast, texts: list[str]
) -> PreTrainedTokenizerFast:
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if kind == "without an opening token":
        return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=STOP)
    if kind == "with trimmed offsets":
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
    if kind == "with a normalizer":
        backend = Tokenizer(models.BPE(unk_token="<unk>"))
        backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        special = [STOP, "<unk>"]
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, limit_alphabet=60, show_progress=False
        )
        backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=STOP, eos_token=STOP)


@pytest.fixture(
    params=["plain", "without an opening token", "with trimmed offsets", "with a normalizer"]
)
def any_tokenizer(
    request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast, texts: list[str]
) -> PreTrainedTokenizerFast:
    return kind_of_tokenizer(request.param, tokenizer, texts)


@pytest.fixture(params=["text", "prompt-completion"])
def rows(request: pytest.FixtureRequest, documents: dict[str, list[Document]]) -> list[Document]:
    more = {
        "text": [Document(text=text) for text in ("", "a", "🐍", "a 🐍🐍🐍", " \n\t ", "a \n ")],
        "prompt-completion": [
            Document(prompt=prompt, completion=completion)
            for prompt in ("", "long prompt 🐍 " * 20)
            for completion in ("", "a", "a 👩‍👩‍👧", "a  \n")
        ],
    }
    format = request.param
    return documents[format] + more[format]


def whole(tokenizer: PreTrainedTokenizerFast, row: Document) -> tuple[list[int], int]:
    """All tokens of a document, and how many of them come before what is trained."""
    opening = [] if tokenizer.bos_token is None else [tokenizer.bos_token_id]
    plain = {"add_special_tokens": False}
    context = opening + tokenizer(row.get("prompt", ""), **plain)["input_ids"]
    text = tokenizer(row.get("text", row.get("completion", "")), **plain)["input_ids"]
    return [*context, *text, tokenizer.eos_token_id], len(context)


def pieces_of(
    tokenizer: PreTrainedTokenizerFast, rows: list[Document], block_size: int
) -> dict[int, list[Piece]]:
    pieces: dict[int, list[Piece]] = {number: [] for number in range(len(rows))}
    for piece in encode(tokenizer, rows, block_size, 0):
        pieces[piece.document].append(piece)
    return pieces


@pytest.mark.parametrize("block_size", [8, 9, 64, 4096])
def test_every_token_behind_the_prompt_is_trained_in_one_piece_after_all_before_it(
    any_tokenizer: PreTrainedTokenizerFast, rows: list[Document], block_size: int
) -> None:
    for number, pieces in pieces_of(any_tokenizer, rows, block_size).items():
        tokens, context = whole(any_tokenizer, rows[number])
        first = max(context, 1)
        trained = [token for piece in pieces for token in piece.tokens[piece.mask]]
        assert trained == tokens[first:]
        # Pieces lie side by side from the back to the front, one token in two of them.
        end = len(tokens)
        for piece in reversed(pieces):
            start = (max(end - 2, 0) // (block_size - 1)) * (block_size - 1)
            assert piece.tokens.tolist() == tokens[start:end]
            assert piece.mask.tolist() == [start < place >= first for place in range(start, end)]
            assert len(piece.tokens) <= block_size
            end = start + 1
        assert end <= first


@pytest.mark.parametrize("block_size", [8, 9, 64, 4096])
def test_bytes_of_the_pieces_come_to_those_of_the_text(
    any_tokenizer: PreTrainedTokenizerFast, rows: list[Document], block_size: int
) -> None:
    for number, pieces in pieces_of(any_tokenizer, rows, block_size).items():
        text = rows[number].get("text", rows[number].get("completion", ""))
        tokens, context = whole(any_tokenizer, rows[number])
        unpredicted = 0
        if context == 0 and text:
            # The first token is not predicted, nor counted; a character that it begins counts
            # as its own.
            unpredicted = len(text[: len(any_tokenizer.decode(tokens[:1]))].encode())
        assert all(piece.bytes >= 0 for piece in pieces)
        assert sum(piece.bytes for piece in pieces) == len(text.encode()) - unpredicted


def test_bytes_of_a_piece_are_those_of_its_own_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "value not in naïve 東京\n" * 10
    for piece in encode(tokenizer, [Document(text=text)], 8, 0):
        tokens = piece.tokens[piece.mask]
        own = sum(
            len(tokenizer.convert_ids_to_tokens(int(token)))  # a byte-level letter is a byte
            for token in tokens
            if token != tokenizer.eos_token_id
        )
        assert piece.bytes == pytest.approx(own, abs=3)  # a character counts where it begins


def test_trained_tokens_decode_to_the_completion_and_end_with_the_stop_token(
    tokenizer: PreTrainedTokenizerFast, rows: list[Document]
) -> None:
    for number, pieces in pieces_of(tokenizer, rows, 16).items():
        trained = [token for piece in pieces for token in piece.tokens[piece.mask]]
        assert trained[-1] == tokenizer.eos_token_id
        row = rows[number]
        assert tokenizer.decode(trained[:-1]) == row.get("text", row.get("completion"))


def test_training_sees_a_prompt_as_generation_does(
    any_tokenizer: PreTrainedTokenizerFast, documents: dict[str, list[Document]]
) -> None:
    rows = documents["prompt-completion"]
    for number, pieces in pieces_of(any_tokenizer, rows, 4096).items():
        (piece,) = pieces
        prompt = prompt_tokens(any_tokenizer, rows[number]["prompt"])
        assert piece.tokens[~piece.mask].tolist() == prompt or not prompt


def test_pieces_with_nothing_to_train_are_left_out(tokenizer: PreTrainedTokenizerFast) -> None:
    row = Document(prompt="value " * 100, completion="x")
    prompt = len(prompt_tokens(tokenizer, row["prompt"]))
    pieces = list(encode(tokenizer, [row], 8, 0))
    assert prompt > 50
    assert len(pieces) <= 2
    assert sum(piece.mask.sum() for piece in pieces) == 2


def test_an_empty_text_is_a_stop_token_where_something_comes_before_it(
    tokenizer: PreTrainedTokenizerFast, texts: list[str]
) -> None:
    (piece,) = encode(tokenizer, [Document(text="")], 8, 0)
    assert piece.tokens.tolist() == [tokenizer.bos_token_id, tokenizer.eos_token_id]
    assert piece.mask.tolist() == [False, True]
    assert piece.bytes == 0
    bare = kind_of_tokenizer("without an opening token", tokenizer, texts)
    assert list(encode(bare, [Document(text="")], 8, 0)) == []


def test_documents_are_numbered_on(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [Document(text="value " * 20), Document(text="x")]
    numbers = [piece.document for piece in encode(tokenizer, rows, 8, 70)]
    assert numbers == sorted(numbers)
    assert set(numbers) == {70, 71}


def test_how_documents_are_batched_changes_nothing(
    tokenizer: PreTrainedTokenizerFast, rows: list[Document]
) -> None:
    at_once = list(encode(tokenizer, rows, 16, 0))
    one_by_one = [
        piece for number, row in enumerate(rows) for piece in encode(tokenizer, [row], 16, number)
    ]
    assert len(at_once) == len(one_by_one)
    for piece, same in zip(at_once, one_by_one, strict=True):
        assert np.array_equal(piece.tokens, same.tokens)
        assert np.array_equal(piece.mask, same.mask)
        assert (piece.document, piece.bytes) == (same.document, same.bytes)


@pytest.fixture
def folder(tmp_path: Path, model_folder: Path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "model"))


def change(path: Path, **keys: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_a_tokenizer_that_truncates_and_pads_does_neither_here(folder: Path) -> None:
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding()
    backend.save(str(folder / "tokenizer.json"))
    rows = [Document(text="value " * 20), Document(text="x")]
    long, short = encode(load_tokenizer(folder), rows, 4096, 0)
    assert load_tokenizer(folder).decode(long.tokens[1:-1]) == rows[0]["text"]
    assert len(short.tokens) == 3


def test_a_tokenizer_without_a_stop_token_is_refused(folder: Path) -> None:
    change(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(UserError, match="got a tokenizer without eos_token"):
        load_tokenizer(folder)


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_tokenizer_that_cannot_be_read_costs_one_line(folder: Path, content: str | None) -> None:
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(UserError) as caught:
        load_tokenizer(folder)
    assert str(caught.value).startswith(f"{folder}: got no tokenizer that can be read")


def test_code_that_comes_with_a_tokenizer_is_never_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    (folder / "custom.py").write_text(
        f"import pathlib\npathlib.Path({str(folder / 'ran')!r}).touch()\n"
        "from transformers import PreTrainedTokenizerFast as Custom\n"
    )
    change(
        folder / "tokenizer_config.json",
        auto_map={"AutoTokenizer": [None, "custom.Custom"]},
        tokenizer_class="Custom",
    )
    change(folder / "config.json", model_type="custom", auto_map={"AutoConfig": "custom.Custom"})
    with pytest.raises(UserError):
        load_tokenizer(folder)
    assert not (folder / "ran").exists()
