"""Texts of documents compared with what their tokens decode to."""

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from moray.corpus.dataset import Document
from moray.proofs.comparison import Comparison, transformers_version

# Characters that are shown, from shortly before the first difference.
_SHOWN, _BEFORE = 40, 10


def compare_texts(folder: Path, documents: Sequence[Document]) -> Iterator[Comparison]:
    """Compare the tokens of documents' texts with those of `tokenizer.json`, and what they lose.

    Transformers may make others, by the tokenizer's class. And the texts are compared with what
    their tokens decode to.

    Many tokenizers lose something: line breaks, upper case, accents, characters that they don't
    know. A model can't learn what it never sees, so a difference is reported, and never refused.

    Args:
        folder: the tokenizer's.
        documents: texts, prompts with completions, or conversations; halves of pairs.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    plain = _alone(folder / "tokenizer.json")
    equal = num_lost = 0
    first: tuple[str, str] | None = None
    for document in documents:
        texts = list(_texts(document))
        tokens = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        if plain:
            encodings = plain.encode_batch(texts, add_special_tokens=False)
            equal += tokens == [encoding.ids for encoding in encodings]
        for text, ids in zip(texts, tokens, strict=True):
            decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
            # Tokenizers of SentencePiece put a space in front of a text, or take it away.
            if decoded.removeprefix(" ") != text.removeprefix(" "):
                num_lost, first = num_lost + 1, first or (text, decoded)
                break
    if plain:
        library, what = (
            f"tokenizers {version('tokenizers')}",
            "documents with the tokens of tokenizer.json",
        )
        yield Comparison(what, len(documents), equal, library, len(documents), advisory=True)
    what = (
        f"text of {num_lost:,} document{'s' * (num_lost != 1)}" if num_lost else "text of documents"
    )
    text, decoded = first or ("equal", "equal")
    part = slice(at := _first_difference(text, decoded), at + _SHOWN)
    yield Comparison(
        f"{what}, which their tokens should decode to",
        text[part],
        decoded[part],
        transformers_version(),
        len(documents),
        advisory=True,
    )


def _alone(file: Path) -> Tokenizer | None:
    """The tokenizer of a file, without a class of transformers around it."""
    if not file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _texts(document: Document) -> Iterator[str]:
    if "messages" not in document:
        yield document.get("text") or document.get("prompt", "") + document.get("completion", "")
        return
    for message in json.loads(document["messages"]):
        yield from (message[key] for key in ("reasoning_content", "content") if message.get(key))


def _first_difference(one: str, other: str) -> int:
    """The place shortly before the first one; 0 if there is none."""
    pairs = enumerate(zip(one, other, strict=False))
    at = next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))
    return 0 if one == other else max(0, at - _BEFORE)
