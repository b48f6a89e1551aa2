"""What is shown of a store before it is trained on."""

import re

import numpy as np
import pytest
from conversations import CHATML, TALKS, TOOLS, chat_tokenizer, conversation
from transformers import PreTrainedTokenizerFast

from moray.corpus.dataset import Document
from moray.tasks.language.chat import ChatTemplate
from moray.tasks.language.encode import Encoder
from moray.tasks.language.rows import pack_rows
from moray.tasks.language.tokens import preview

END = "<|endoftext|>"


def show(encoder: Encoder, documents: list[Document], count: int = 10) -> list[str]:
    """The preview's entries, each with its heading."""
    pieces, _ = encoder.encode(documents, 0, count_bytes=False)
    window = pack_rows(pieces, encoder.block_size, encoder.dtype)
    text = preview(window, encoder.tokenizer, count)
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
        "<|im_start|>assistant⟦<|im_end|>⟧\n"
    )


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
    pieces, _ = encoder.encode(documents, 0, count_bytes=False)
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
    assert preview(pack_rows([], 8, np.dtype("<u2")), tokenizer, 3) == "\n"
