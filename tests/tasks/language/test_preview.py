"""What is shown of the first documents of a split."""

import re

import numpy as np
import pytest
from conversations import CHATML, TALKS, TOOLS, TURNS, chat_tokenizer, conversation
from transformers import PreTrainedTokenizerFast
from turn_templates import QWEN3

from moray.corpus.dataset import Document
from moray.tasks.language.chat import ChatTemplate
from moray.tasks.language.encode import Encoder
from moray.tasks.language.preview import preview
from moray.tasks.language.rows import (
    pack_rows,
)

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
