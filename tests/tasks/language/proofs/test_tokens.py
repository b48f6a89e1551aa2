"""Stored tokens compared with the tokenizer alone: right ones, and planted faults."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversations import CHATML, TALKS, TURNS, conversation
from numpy.typing import NDArray
from tokenizers import AddedToken
from transformers import AutoTokenizer
from turn_templates import DEEPSEEK, QWEN3

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import Document
from moray.tasks.language.encode import make_encoder
from moray.tasks.language.proofs.answers import Piece
from moray.tasks.language.proofs.tokens import compare_tokens

Change = Callable[[list[int], NDArray[np.bool_]], tuple[list[int], NDArray[np.bool_]]]


def pieces_of(
    folder: Path, documents: list[Document], format: str, **keys: Any
) -> list[list[Piece]]:
    """What moray makes of documents, by document."""
    cfg = {"format": format, **result_keys(Data.model_validate(keys))}
    pieces, *_ = make_encoder(folder, cfg).encode(documents, 0, count_bytes=False)
    return [
        [(piece.tokens, piece.mask) for piece in pieces if piece.document == number]
        for number in range(len(documents))
    ]


@pytest.mark.parametrize("long_documents", ["split", "truncate"])
@pytest.mark.parametrize("block_size", [12, 512])
@pytest.mark.parametrize("format", ["text", "prompt-completion", "messages"])
def test_right_tokens_do_not_differ(
    chat_folder: Path,
    documents: dict[str, list[Document]],
    format: str,
    block_size: int,
    long_documents: str,
) -> None:
    rows = [*TALKS, conversation(*TURNS)] if format == "messages" else documents[format][:50]
    template = CHATML if format == "messages" else None
    keys = {"block_size": block_size, "long_documents": long_documents, "chat_template": template}
    pieces = pieces_of(chat_folder, rows, format, **keys)
    assert compare_tokens(chat_folder, rows, pieces, template) == []


@pytest.mark.parametrize("bos", [True, False])
def test_texts_begin_as_the_config_says(
    chat_folder: Path, documents: dict[str, list[Document]], bos: bool
) -> None:
    rows = documents["text"][:3]
    pieces = pieces_of(chat_folder, rows, "text", bos=bos, block_size=4096)
    assert compare_tokens(chat_folder, rows, pieces, bos=bos) == []
    found = compare_tokens(chat_folder, rows, pieces, bos=not bos)
    assert {difference.kind for difference in found} <= {"tokens", "missing", "added"}
    assert {difference.document for difference in found} == {0, 1, 2}


def test_what_a_template_drops_and_what_it_trims_is_named(chat_folder: Path) -> None:
    trimming = CHATML.replace("message.content }}", "message.content | trim }}")
    row = conversation(("user", "é"), ("assistant", " 2\n"))
    pieces = pieces_of(chat_folder, [row], "messages", chat_template=trimming)
    (difference,) = compare_tokens(chat_folder, [row], pieces, trimming)
    assert (difference.kind, difference.expected) == ("white_space", " 2\n")
    # By a template that takes reasoning out, as if nobody had refused the row.
    lost = conversation(("user", "2?"), ("assistant", "<think>Hm.</think>2"))
    pieces = pieces_of(
        chat_folder, [conversation(("user", "2?"), ("assistant", "2"))], "messages",
        chat_template=DEEPSEEK,
    )  # fmt: skip
    found = compare_tokens(chat_folder, [lost], pieces, DEEPSEEK)
    assert found[0].kind == "missing"
    assert found[0].expected == "<think>Hm.</think>2"


def trained_too_early(tokens: list[int], mask: NDArray[np.bool_]) -> Any:
    """The token in front of the last answer is trained as well."""
    mask = mask.copy()
    mask[np.flatnonzero(np.diff(mask.astype(int)) == 1)[-1]] = True
    return tokens, mask


def trained_too_late(tokens: list[int], mask: NDArray[np.bool_]) -> Any:
    mask = mask.copy()
    mask[np.flatnonzero(np.diff(mask.astype(int)) == 1)[-1] + 1] = False
    return tokens, mask


@pytest.mark.parametrize("begin", ["", "<|endoftext|>"])
@pytest.mark.parametrize("end", ["", "<|endoftext|>"])
def test_a_text_with_tokens_of_its_own_at_the_ends_is_right(
    model_folder: Path, begin: str, end: str
) -> None:
    rows = [
        Document(text=f"{begin}value{end}"),
        Document(prompt=f"{begin}value", completion=f" in{end}"),
    ]
    for row, format in zip(rows, ("text", "prompt-completion"), strict=True):
        pieces = pieces_of(model_folder, [row], format)
        assert compare_tokens(model_folder, [row], pieces) == []
        # The end once more, as if the row hadn't it.
        ((tokens, mask),) = pieces[0]
        twice = [(np.append(tokens, tokens[-1]), np.append(mask, True))]
        assert compare_tokens(model_folder, [row], [twice])


@pytest.mark.parametrize(("lstrip", "rstrip"), [(True, False), (False, True), (False, False)])
def test_a_stop_token_that_takes_white_space_is_right(
    model_folder: Path, tmp_path: Path, lstrip: bool, rstrip: bool
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    stop = AddedToken("<|e|>", special=True, lstrip=lstrip, rstrip=rstrip)
    tokenizer.add_special_tokens({"eos_token": stop})
    tokenizer.save_pretrained(tmp_path)
    rows = [Document(text="value <|e|>"), Document(text="value <|e|>\n"), Document(text="value")]
    pieces = pieces_of(tmp_path, rows, "text")
    assert [
        one for one in compare_tokens(tmp_path, rows, pieces) if one.kind != "white_space"
    ] == []


def without_stop(tokens: list[int], mask: NDArray[np.bool_]) -> Any:
    mask = mask.copy()
    mask[np.flatnonzero(mask)[-1]] = False
    return tokens, mask


def another_token(tokens: list[int], mask: NDArray[np.bool_]) -> Any:
    return [*tokens[:3], tokens[3] + 1, *tokens[4:]], mask


def swapped_turns(tokens: list[int], mask: NDArray[np.bool_]) -> Any:
    """The user is trained instead of the assistant."""
    return tokens, ~mask


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        (trained_too_early, {"added", "white_space"}),
        (trained_too_late, {"missing"}),
        (without_stop, {"stop"}),
        (another_token, {"tokens"}),
        (swapped_turns, {"missing", "stop"}),
    ],
)
@pytest.mark.parametrize("format", ["prompt-completion", "messages"])
def test_planted_faults_are_found(
    chat_folder: Path, format: str, fault: Change, kinds: set[str]
) -> None:
    row = Document(prompt="value?", completion="naïve not in")
    template = None
    if format == "messages":
        row, template = conversation(("user", "value?"), ("assistant", "naïve not in")), CHATML
    ((piece,),) = pieces_of(chat_folder, [row], format, chat_template=template)
    tokens, mask = fault(piece[0].tolist(), piece[1])
    changed = [[(np.array(tokens), mask)]]
    found = compare_tokens(chat_folder, [row], changed, template)
    assert found
    assert {difference.kind for difference in found} & kinds, found


def test_empty_reasoning_that_is_trained_is_found(chat_folder: Path) -> None:
    """As versions before 0.3.0 did."""
    row = conversation(("user", "2?"), ("assistant", "2"))
    ((piece,),) = pieces_of(chat_folder, [row], "messages", chat_template=QWEN3)
    tokenizer = AutoTokenizer.from_pretrained(chat_folder)
    mask = np.zeros(len(piece[0]), np.bool_)
    header = "<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n"
    start = len(tokenizer(header, add_special_tokens=False)["input_ids"])
    mask[start : np.flatnonzero(piece[1])[-1] + 1] = True
    (difference,) = compare_tokens(chat_folder, [row], [[(piece[0], mask)]], QWEN3)
    assert (difference.kind, difference.stored) == ("added", "<think></think>")


def test_tokens_of_another_tokenizer_differ(chat_folder: Path, tmp_path: Path) -> None:
    """As when a stale file of special tokens is read first."""
    folder = Path(shutil.copytree(chat_folder, tmp_path / "other"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = "<|im_start|>"
    tokenizer.save_pretrained(folder)
    row = Document(text="value")
    pieces = pieces_of(chat_folder, [row], "text")
    (difference,) = compare_tokens(folder, [row], pieces)
    assert difference.kind == "tokens"
