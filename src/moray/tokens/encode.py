"""From documents to pieces: runs of at most `block_size` tokens that know what is trained."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from moray.corpus.document import Document
from moray.errors import UserError


@dataclass(frozen=True)
class Piece:
    """A document, or a part of a long one.

    Attributes:
        tokens: token ids, shape (length,).
        mask: whether the model is trained to predict the token, shape (length,). The first
            token never is: nothing in the piece comes before it.
        document: number of the document in its split.
        bytes: UTF-8 bytes of text behind the trained tokens; a stop token stands for none.
    """

    tokens: NDArray[np.int64]
    mask: NDArray[np.bool_]
    document: int
    bytes: int


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a Hugging Face folder; it neither truncates nor pads.

    Raises:
        UserError: if it is no fast tokenizer, or has no stop token to train.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # tokenizers raises bare ones
        first = str(error).partition("\n")[0]
        raise UserError(
            str(folder), f"got no tokenizer that can be read ({first})", "check its tokenizer.json"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(
            str(folder), "got a slow tokenizer, expected a tokenizer.json", "convert the tokenizer"
        )
    if tokenizer.eos_token_id is None:
        raise UserError(
            str(folder),
            "got a tokenizer without eos_token, expected a stop token to train",
            "name it in tokenizer_config.json",
        )
    # A tokenizer.json can bring both along; documents would be cut, and padding trained.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def prompt_tokens(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """A prompt as the model was trained to see it: after the first token of a document."""
    ids: list[int] = tokenizer.backend_tokenizer.encode(prompt, add_special_tokens=False).ids
    return [*_opening(tokenizer), *ids]


def encode(
    tokenizer: PreTrainedTokenizerFast,
    documents: list[Document],
    block_size: int,
    first_document: int,
) -> Iterator[Piece]:
    """Tokenise documents, each between the tokenizer's first and stop tokens.

    A prompt and its completion are tokenised apart, so that the prompt's tokens are the same
    when it stands alone. Documents longer than a block are cut into pieces that overlap by one
    token, so that each token after a document's first is trained in exactly one piece. Pieces
    in which nothing is trained are left out.

    Args:
        tokenizer: encodes batches in threads of its own.
        documents: rows of a dataset.
        block_size: tokens in a piece, at most.
        first_document: number of the first document.
    """
    backend = tokenizer.backend_tokenizer
    prompts = [document.get("prompt", "") for document in documents]
    trained = [document.get("text", document.get("completion", "")) for document in documents]
    encoded_prompts = backend.encode_batch(prompts, add_special_tokens=False)
    encoded_texts = backend.encode_batch(trained, add_special_tokens=False)
    opening = _opening(tokenizer)
    for number, (prompt, text) in enumerate(zip(encoded_prompts, encoded_texts, strict=True)):
        context = [*opening, *prompt.ids]
        tokens = np.array([*context, *text.ids, tokenizer.eos_token_id], dtype=np.int64)
        mask = np.arange(len(tokens)) >= len(context)
        source = trained[number]
        # Without an opening token the text's first token is never predicted.
        reached = 0 if context or not text.ids else text.token_to_chars(0)[1]
        for start in range(0, max(len(tokens) - 1, 1), block_size - 1):
            end = min(start + block_size, len(tokens))
            piece_mask = mask[start:end].copy()
            piece_mask[0] = False
            if not piece_mask.any():
                continue
            # Where the text has been predicted up to; the stop token lies behind all of it.
            last = end - 1 - len(context)
            here = len(source) if last >= len(text.ids) else text.token_to_chars(last)[1]
            size = len(source[reached:here].encode())
            reached = here
            yield Piece(tokens[start:end], piece_mask, first_document + number, size)


def _opening(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    return [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
