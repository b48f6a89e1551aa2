"""The tokenizer of a model, as training takes it: fast, whole documents, with a stop token."""

from pathlib import Path

from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from moray.errors import UserError, first_line


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
        raise UserError(
            str(folder),
            f"got no tokenizer that can be read ({first_line(error)})",
            "check its tokenizer.json",
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


def stop_token_ids(tokenizer: PreTrainedTokenizerFast, folder: Path) -> list[int]:
    """The tokens at which generation stops: the tokenizer's, and those of the model's folder.

    Chat models often have several: one at the end of a turn, one at the end of the text.
    """
    stops = [tokenizer.eos_token_id]
    if (folder / "generation_config.json").is_file():
        configured = GenerationConfig.from_pretrained(folder).eos_token_id
        stops += configured if isinstance(configured, list) else [configured]
    return sorted({stop for stop in stops if stop is not None})


def opening(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The token that a document begins with, if the tokenizer has one."""
    return [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
