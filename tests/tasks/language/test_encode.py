"""From documents to pieces."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from conversations import CHATML, SAID, TALKS, chat_tokenizer, conversation
from metaspace import SPECIAL, metaspace
from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from moray.corpus.dataset import Document
from moray.errors import UserError
from moray.tasks.language.chat import ChatTemplate
from moray.tasks.language.encode import Encoder
from moray.tasks.language.pieces import Piece

STOP = "<|endoftext|>"
BLOCK_SIZES = (8, 9, 64, 4096)


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
    scope="module",
    params=["plain", "without an opening token", "with trimmed offsets", "with a normalizer"],
)
def any_tokenizer(
    request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast, texts: list[str]
) -> PreTrainedTokenizerFast:
    return kind_of_tokenizer(request.param, tokenizer, texts)


@pytest.fixture(scope="module", params=["text", "prompt-completion"])
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
    prompt, text = row.get("prompt", ""), row.get("text", row.get("completion", ""))
    plain = {"add_special_tokens": False}
    context = tokenizer(prompt, **plain)["input_ids"]
    tokens = context + tokenizer(text, **plain)["input_ids"]
    if prompt and isinstance(tokenizer.backend_tokenizer.pre_tokenizer, pre_tokenizers.Metaspace):
        # Apart, a space would come between them.
        joint = tokenizer(prompt + text, **plain, return_offsets_mapping=True)
        tokens = joint["input_ids"]
        context = [n for n, (_, end) in enumerate(joint["offset_mapping"]) if end <= len(prompt)]
    return [*opening, *tokens, tokenizer.eos_token_id], len(opening) + len(context)


@pytest.fixture
def chatty(texts: list[str]) -> PreTrainedTokenizerFast:
    return chat_tokenizer(texts)


def chat_encoder(
    tokenizer: PreTrainedTokenizerFast, block_size: int, template: str = CHATML
) -> Encoder:
    chat = ChatTemplate(tokenizer, template, ["<|im_end|>"])
    return Encoder(tokenizer, block_size, chat=chat, stop_token_ids=[tokenizer.eos_token_id])


def encode(
    tokenizer: PreTrainedTokenizerFast, rows: list[Document], block_size: int, first: int = 0
) -> list[Piece]:
    pieces, dropped, _ = Encoder(tokenizer, block_size).encode(rows, first, count_bytes=True)
    assert dropped == 0
    return pieces


def pieces_of(
    tokenizer: PreTrainedTokenizerFast, rows: list[Document], block_size: int
) -> dict[int, list[Piece]]:
    pieces: dict[int, list[Piece]] = {number: [] for number in range(len(rows))}
    for piece in encode(tokenizer, rows, block_size):
        pieces[piece.document].append(piece)
    return pieces


def test_every_token_behind_the_prompt_is_trained_in_one_piece_after_all_before_it(
    any_tokenizer: PreTrainedTokenizerFast, rows: list[Document]
) -> None:
    wholes = [whole(any_tokenizer, row) for row in rows]
    for size in BLOCK_SIZES:
        for number, pieces in pieces_of(any_tokenizer, rows, size).items():
            tokens, context = wholes[number]
            first = max(context, 1)
            trained = [token for piece in pieces for token in piece.tokens[piece.mask]]
            assert trained == tokens[first:], (size, rows[number])
            # Pieces lie side by side from the back to the front, one token in two of them.
            end = len(tokens)
            for piece in reversed(pieces):
                start = (max(end - 2, 0) // (size - 1)) * (size - 1)
                mask = [start < place >= first for place in range(start, end)]
                assert piece.tokens.tolist() == tokens[start:end], (size, rows[number])
                assert piece.mask.tolist() == mask, (size, rows[number])
                assert len(piece.tokens) <= size
                end = start + 1
            assert end <= first, (size, rows[number])


def test_bytes_of_the_pieces_come_to_those_of_the_text(
    any_tokenizer: PreTrainedTokenizerFast, rows: list[Document]
) -> None:
    sizes = []
    for row in rows:
        text = row.get("text", row.get("completion", ""))
        tokens, context = whole(any_tokenizer, row)
        unpredicted = 0
        if context == 0 and text:
            # The first token is not predicted, nor counted; a character that it begins counts
            # as its own.
            unpredicted = len(text[: len(any_tokenizer.decode(tokens[:1]))].encode())
        sizes.append(len(text.encode()) - unpredicted)
    for block_size in BLOCK_SIZES:
        pieces = pieces_of(any_tokenizer, rows, block_size)
        assert all(piece.bytes >= 0 for mine in pieces.values() for piece in mine), block_size
        found = [sum(piece.bytes for piece in mine) for mine in pieces.values()]
        assert found == sizes, block_size


def test_bytes_that_the_tokenizer_leaves_out_at_the_end_are_those_of_the_last_token(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.normalizer = normalizers.Strip(left=False, right=True)
    stripping = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=STOP, eos_token=STOP)
    (piece,) = encode(stripping, [Document(text="value \n\n ")], 64)
    assert tokenizer.decode(piece.tokens[1:-1]) == "value"
    assert piece.bytes == 9


def test_bytes_of_a_piece_are_those_of_its_own_tokens(
    tokenizer: PreTrainedTokenizerFast, chatty: PreTrainedTokenizerFast
) -> None:
    written = encode(tokenizer, [Document(text="value not in naïve 東京\n" * 10)], 8)
    said = chat_encoder(chatty, 12).encode(TALKS, 0, count_bytes=True)[0]
    for one, pieces in ((tokenizer, written), (chatty, said)):
        for piece in pieces:
            tokens = [token for token in piece.tokens[piece.mask] if token != one.eos_token_id]
            # A byte-level letter is a byte; a character counts where it begins.
            own = sum(len(one.convert_ids_to_tokens(int(token))) for token in tokens)
            assert piece.bytes == pytest.approx(own, abs=3)


@pytest.mark.parametrize("ends", ["none", "BOS", "BOS and EOS", "EOS = PAD"])
@pytest.mark.parametrize(
    "kind", ["byte-level", "byte-level, prefix", "BPE, always", "BPE, first", "Unigram, always"]
)
def test_what_is_tokenised_decodes_to_the_document(
    kind: str, ends: str, tokenizer: PreTrainedTokenizerFast, texts: list[str]
) -> None:
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if "prefix" in kind:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif "byte-level" not in kind:
        backend = metaspace("Unigram" in kind, kind.rpartition(" ")[2], texts)
    bos = "<s>" if "<s>" in backend.get_vocab() else STOP
    known = {token: backend.token_to_id(token) for token in (bos, STOP)}
    if ends.startswith("BOS"):
        single = f"{bos} $A {STOP}" if "EOS" in ends else f"{bos} $A"
        backend.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[*known.items()]
        )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        eos_token=STOP,
        pad_token=STOP if "PAD" in ends else None,
    )
    rows = [Document(text=text) for text in (*texts, *SPECIAL)]
    rows += [
        Document(prompt=prompt, completion=text)
        for prompt in SPECIAL
        for text in (*texts[:20], *SPECIAL)
    ]
    encoder, decoded = (
        Encoder(wrapped, 8192),
        partial(wrapped.decode, clean_up_tokenization_spaces=False),
    )
    for kind_of_row in ("text", "prompt"):
        some = [row for row in rows if kind_of_row in row]
        for row, encoded in zip(some, encoder.encode_documents(some, 0, False), strict=True):
            tokens = [token for token in encoded.tokens.tolist() if token not in known.values()]
            text = row.get("prompt", "") + row.get("text", row.get("completion", ""))
            expected = decoded(wrapped(text, add_special_tokens=False)["input_ids"])
            assert decoded(tokens) == expected
            # Some tokenizers take a space at the start for theirs.
            assert expected.removeprefix(" ") == text.removeprefix(" ") or text.startswith("  ")
            assert encoded.tokens[-1] == known[STOP]


def test_a_special_token_of_the_prompt_is_not_trained_if_it_takes_the_space_behind_it(
    texts: list[str],
) -> None:
    """As Phi-3's do, with a tokenizer that can't take prompt and completion apart."""
    backend = metaspace(False, "always", [*texts, "ab cd"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=STOP)
    tokenizer.add_tokens([AddedToken("<|assistant|>", special=True, rstrip=True)])
    rows = [Document(prompt="<|assistant|>", completion=text) for text in ("ab", "  ab")]
    for encoded in Encoder(tokenizer, 64).encode_documents(rows, 0, count_bytes=False):
        trained = encoded.tokens[encoded.mask]
        assert tokenizer.decode(trained, skip_special_tokens=False) == f"ab{STOP}"


def test_training_sees_a_prompt_as_generation_does(
    any_tokenizer: PreTrainedTokenizerFast, documents: dict[str, list[Document]]
) -> None:
    """Unless a token has text of both."""
    rows = documents["prompt-completion"]
    for number, pieces in pieces_of(any_tokenizer, rows, 4096).items():
        (piece,) = pieces
        prompt = Encoder(any_tokenizer, 8).prompt_tokens(rows[number]["prompt"])
        context = piece.tokens[~piece.mask].tolist()
        if isinstance(any_tokenizer.backend_tokenizer.pre_tokenizer, pre_tokenizers.Metaspace):
            prompt = prompt[: len(context)]
        assert context == prompt or not prompt


def test_pieces_with_nothing_to_train_are_left_out(tokenizer: PreTrainedTokenizerFast) -> None:
    row = Document(prompt="value " * 100, completion="x")
    prompt = len(Encoder(tokenizer, 8).prompt_tokens(row["prompt"]))
    pieces = encode(tokenizer, [row], 8)
    assert prompt > 50
    assert len(pieces) <= 2
    assert sum(piece.mask.sum() for piece in pieces) == 2


def test_an_empty_text_is_a_stop_token_where_something_comes_before_it(
    tokenizer: PreTrainedTokenizerFast, texts: list[str]
) -> None:
    (piece,) = encode(tokenizer, [Document(text="")], 8)
    assert piece.tokens.tolist() == [tokenizer.bos_token_id, tokenizer.eos_token_id]
    assert piece.mask.tolist() == [False, True]
    assert piece.bytes == 0
    bare = kind_of_tokenizer("without an opening token", tokenizer, texts)
    assert encode(bare, [Document(text="")], 8) == []


def test_how_documents_are_batched_changes_nothing(
    tokenizer: PreTrainedTokenizerFast, rows: list[Document]
) -> None:
    at_once = encode(tokenizer, rows, 16)
    one_by_one = [
        piece for number, row in enumerate(rows) for piece in encode(tokenizer, [row], 16, number)
    ]
    assert len(at_once) == len(one_by_one)
    for piece, same in zip(at_once, one_by_one, strict=True):
        assert np.array_equal(piece.tokens, same.tokens)
        assert np.array_equal(piece.mask, same.mask)
        assert (piece.document, piece.bytes) == (same.document, same.bytes)


def test_without_bytes_the_tokens_are_the_same(
    any_tokenizer: PreTrainedTokenizerFast, rows: list[Document], chatty: PreTrainedTokenizerFast
) -> None:
    for encoder, some in ((Encoder(any_tokenizer, 16), rows), (chat_encoder(chatty, 16), TALKS)):
        counted, *_ = encoder.encode(some, 0, count_bytes=True)
        uncounted, *_ = encoder.encode(some, 0, count_bytes=False)
        assert any(piece.bytes for piece in counted)
        for piece, same in zip(counted, uncounted, strict=True):
            assert np.array_equal(piece.tokens, same.tokens)
            assert np.array_equal(piece.mask, same.mask)
            assert (piece.document, 0) == (same.document, same.bytes)


@pytest.mark.parametrize(
    ("ids", "width"),
    [(range(2**16), 2), (range(2**16 + 1), 4), ((0, 1, 2**16), 4)],
    ids=["fits two bytes", "does not", "does not because of a gap"],
)
def test_tokens_take_two_bytes_where_the_vocabulary_lets_them(
    ids: Sequence[int], width: int
) -> None:
    backend = Tokenizer(models.WordLevel({str(n): n for n in ids}, unk_token="0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="0")
    last = ids[-1]
    (piece,), *_ = Encoder(tokenizer, 8).encode([Document(text=f"1 {last}")], 0, False)
    assert piece.tokens.tolist() == [1, last, 0]
    assert piece.tokens.itemsize == Encoder(tokenizer, 8).dtype.itemsize == width


def test_documents_that_are_longer_than_a_row_can_be_dropped(
    tokenizer: PreTrainedTokenizerFast, rows: list[Document]
) -> None:
    lengths = [len(whole(tokenizer, row)[0]) for row in rows]
    for size in (8, 16, 64):
        encoder = Encoder(tokenizer, size, long_documents="drop")
        pieces, dropped, _ = encoder.encode(rows, 0, count_bytes=True)
        assert dropped == sum(length > size for length in lengths) > 0, size
        found = [(piece.document, len(piece.tokens)) for piece in pieces]
        assert found == [fit for fit in enumerate(lengths) if fit[1] <= size], size


def test_documents_that_are_longer_than_a_row_can_be_truncated(
    tokenizer: PreTrainedTokenizerFast, rows: list[Document]
) -> None:
    """Without a stop token, because they don't stop there; some have nothing left to train."""
    wholes = [whole(tokenizer, row) for row in rows]
    for size in (8, 16, 64):
        encoder = Encoder(tokenizer, size, long_documents="truncate")
        pieces, dropped, cut = encoder.encode(rows, 0, count_bytes=True)
        left = [number for number, (_, context) in enumerate(wholes) if max(context, 1) < size]
        assert [piece.document for piece in pieces] == left
        assert dropped == len(rows) - len(left)
        assert cut == sum(len(wholes[number][0]) > size for number in left) > 0
        for piece in pieces:
            tokens, context = wholes[piece.document]
            assert piece.tokens.tolist() == tokens[:size]
            assert piece.mask.tolist() == [n >= max(context, 1) for n in range(len(piece.tokens))]


def test_documents_that_go_on_in_another_row_are_counted(
    tokenizer: PreTrainedTokenizerFast, rows: list[Document]
) -> None:
    longer = [len(whole(tokenizer, row)[0]) > 16 for row in rows]
    assert Encoder(tokenizer, 16).encode(rows, 0, count_bytes=False)[1:] == (0, sum(longer))


def test_of_a_conversation_what_the_assistant_says_is_trained_and_nothing_else(
    chatty: PreTrainedTokenizerFast,
) -> None:
    for block_size in BLOCK_SIZES:
        pieces, *_ = chat_encoder(chatty, block_size).encode(TALKS, 0, count_bytes=True)
        for number, expected in enumerate(SAID):
            mine = [piece for piece in pieces if piece.document == number]
            trained = np.concatenate([piece.tokens[piece.mask] for piece in mine])
            assert chatty.decode(trained) == "".join(expected), block_size
            size = len("".join(expected).encode()) - len(expected) * len("<|im_end|>")
            assert sum(piece.bytes for piece in mine) == size, block_size
            assert not any(piece.mask[0] for piece in mine), block_size


def test_a_conversation_is_tokenised_as_one_text(chatty: PreTrainedTokenizerFast) -> None:
    """The template brings first and stop tokens along; none are added."""
    pieces, *_ = chat_encoder(chatty, 4096).encode(TALKS, 0, count_bytes=False)
    for piece, talk in zip(pieces, TALKS, strict=True):
        text = ChatTemplate(chatty, CHATML, ["<|im_end|>"]).render(talk).text
        assert piece.tokens.tolist() == chatty(text, add_special_tokens=False)["input_ids"]


def test_offsets_that_leave_spaces_out_change_nothing(chatty: PreTrainedTokenizerFast) -> None:
    talk = conversation(("user", "?"), ("assistant", " \n\n a  \n "), ("assistant", "\n"))
    pieces = {}
    for trim in (False, True):
        chatty.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
        (pieces[trim],) = chat_encoder(chatty, 64).encode([talk], 0, count_bytes=True)[0]
    assert pieces[True].mask.tolist() == pieces[False].mask.tolist()
    assert pieces[True].bytes == pieces[False].bytes == 10
    trained = pieces[True].tokens[pieces[True].mask]
    assert chatty.decode(trained) == " \n\n a  \n <|im_end|>\n<|im_end|>"


@pytest.mark.parametrize("trim", [False, True])
def test_a_token_of_template_and_answer_is_trained_and_counts_for_the_answer(trim: bool) -> None:
    """Such as the template's line break with the space that the answer begins with."""
    merging = chat_tokenizer(["a\n \n\n  \n b\n\n" * 50])
    merging.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    begins = set()
    for answer in (" ", " a", "\n\n", "  a  ", "b"):
        talk = conversation(("user", "?"), ("assistant", answer))
        (piece,) = chat_encoder(merging, 64).encode([talk], 0, count_bytes=True)[0]
        begin, said, rest = merging.decode(piece.tokens[piece.mask]).rpartition(answer)
        assert (said, rest) == (answer, "<|im_end|>")
        assert piece.bytes == len(answer)
        begins.add(begin)
    assert begins == {"", "\n"}


def test_a_conversation_that_the_template_cannot_take_is_named_by_its_row(
    chatty: PreTrainedTokenizerFast,
) -> None:
    template = "{{ messages[1].content.missing.deeper if messages[0].content == 'x' }}" + CHATML
    with pytest.raises(UserError, match=r"^row 72: the chat template fails \(Undefined"):
        chat_encoder(chatty, 64, template).encode(TALKS, 70, count_bytes=True)


def test_a_template_without_stop_tokens_is_no_row_s_fault(chatty: PreTrainedTokenizerFast) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(UserError, match=r"^data\.chat_template: "):
        chat_encoder(chatty, 64, template).encode(TALKS, 70, count_bytes=True)


@pytest.mark.parametrize(
    ("prompt", "completion", "spanning"),
    [("Say 1: ", "the end", 1), ("Say 1:", " the end", 0), ("Say 1:\n", "the end", 0)],
)
def test_a_token_of_both_prompt_and_completion_is_counted(
    prompt: str, completion: str, spanning: int, texts: list[str]
) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=metaspace(False, "always", [*texts, " the end" * 50]),
        bos_token="<s>",
        eos_token=STOP,
        unk_token="<unk>",
    )
    encoder = Encoder(tokenizer, 4096)
    (row,) = encoder.encode_documents([Document(prompt=prompt, completion=completion)], 0, False)
    alone = encoder.prompt_tokens(prompt)
    assert (row.tokens[: len(alone)].tolist() != alone) == bool(spanning)
    assert row.alterations["spanning", ""] == spanning
    assert row.alterations["prompts", ""] == 1


@pytest.mark.parametrize("bos", ["<s>", STOP], ids=["bos", "one token for both"])
@pytest.mark.parametrize("format", ["text", "prompt-completion"])
def test_a_text_that_has_its_bos_and_stop_token_gets_no_second_one(
    bos: str, format: str, texts: list[str]
) -> None:
    """As a chat template has rendered it for other trainers."""
    words = metaspace(False, "never", [*texts, "Say é." * 50])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token=bos, eos_token=STOP, unk_token="<unk>"
    )
    encoder = Encoder(tokenizer, 4096, bos=True)

    def row(begin: str, end: str) -> tuple[list[int], list[bool], list[int]]:
        if format == "text":
            document = Document(text=f"{begin}Say é.{end}")
        else:
            document = Document(prompt=f"{begin}Say", completion=f" é.{end}")
        (encoded,) = encoder.encode_documents([document], 0, count_bytes=True)
        prompt = document.get("prompt", f"{begin}Say")
        assert encoder.prompt_tokens(prompt) == tokenizer(f"{bos}Say")["input_ids"]
        assert encoded.bytes is not None
        return encoded.tokens.tolist(), encoded.mask.tolist(), encoded.bytes.tolist()

    plain = row("", "")
    assert plain[0][0] == tokenizer.bos_token_id
    assert plain[0].count(tokenizer.eos_token_id) == 1 + (bos == STOP)
    assert row("", STOP) == plain
    for end in ("", STOP):
        tokens, mask, sizes = row(bos, end)
        assert (tokens, mask[1:]) == (plain[0], plain[1][1:])
        # The text of the BOS token is a part of the row's.
        assert sizes[1:] == plain[2][1:]
