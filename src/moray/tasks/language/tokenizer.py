"""Load a model's tokenizer for training: fast, without truncation, with a stop token."""

from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from moray.errors import UserError, first_line


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a Hugging Face folder, with truncation and padding off.

    Raises:
        UserError: if it can't be loaded, isn't a fast tokenizer, or has no stop token.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # tokenizers raises bare exceptions
        raise UserError(
            str(folder),
            f"can't load the tokenizer ({first_line(error)})",
            "check its tokenizer.json and config.json",
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(
            str(folder),
            "got a slow tokenizer, expected a fast one with a tokenizer.json",
            "convert it to a fast tokenizer",
        )
    if tokenizer.eos_token_id is None:
        raise UserError(
            str(folder),
            "the tokenizer has no eos_token, so there is no stop token to train",
            "set eos_token in tokenizer_config.json",
        )
    # A tokenizer.json can turn both on: documents would be cut, and padding trained.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def stop_token_ids(tokenizer: PreTrainedTokenizerFast, folder: Path) -> list[int]:
    """The tokens that stop generation: the tokenizer's, and those in `generation_config.json`.

    Chat models often have several: one ends a turn, another the text.
    """
    stops = [tokenizer.eos_token_id]
    if (folder / "generation_config.json").is_file():
        configured = GenerationConfig.from_pretrained(folder).eos_token_id
        stops += configured if isinstance(configured, list) else [configured]
    return sorted({stop for stop in stops if stop is not None})


def opening(tokenizer: PreTrainedTokenizerFast, bos: str | bool = "auto") -> list[int]:
    """The BOS token, as a list, if documents begin with it; otherwise, an empty list.

    Args:
        bos: whether they do. `auto`: if a call of the tokenizer adds it, or if it is the stop token
            too, as in GPT-2's tokenizer: there, one token separates documents.

    Raises:
        UserError: if `bos` is true, and the tokenizer has none.
    """
    token = tokenizer.bos_token_id
    if token is None:
        if bos is True:
            raise UserError("data.bos", "the tokenizer has no bos_token", "set it to auto")
        return []
    if bos == "auto":
        bos = adds_bos(tokenizer) or token == tokenizer.eos_token_id
    return [token] if bos else []


def adds_bos(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether a call of the tokenizer begins with its BOS token."""
    ids = tokenizer.backend_tokenizer.encode("a", add_special_tokens=True).ids
    return bool(ids[0] == tokenizer.bos_token_id)


def begin_with_bos(tokenizer: PreTrainedTokenizerFast, bos: bool) -> None:
    """Make a call of the tokenizer begin with its BOS token, or not, also once it is saved."""
    backend = tokenizer.backend_tokenizer
    *_, last = backend.encode("a", add_special_tokens=True).ids
    alone = backend.encode("a", add_special_tokens=False).ids
    # Setting one of the two rebuilds the post-processor from both.
    tokenizer.add_eos_token = last == tokenizer.eos_token_id != alone[-1]
    tokenizer.add_bos_token = bos
    for key in tokenizer.init_kwargs.keys() & {"add_bos_token", "add_eos_token"}:
        tokenizer.init_kwargs[key] = getattr(tokenizer, key)


def joins(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether texts that are tokenised apart decode to their concatenation.

    Not if the tokenizer begins each text with a space, as Llama 2's and most of SentencePiece do.
    """
    ids = tokenizer.backend_tokenizer.encode("a", add_special_tokens=False).ids
    decoded = tokenizer.decode(ids * 2, clean_up_tokenization_spaces=False)
    return bool(decoded == "aa")


def decode_after(
    tokenizer: PreTrainedTokenizerFast,
    before: Sequence[int],
    tokens: Sequence[int],
    skip_special_tokens: bool = False,
) -> str:
    """The text that tokens add to those before them.

    Decoded alone, they may lose their first space, as at the start of a text.
    """
    context, whole = (
        str(
            tokenizer.decode(
                part, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
        )
        for part in ([*before], [*before, *tokens])
    )
    return whole[len(context) :]
