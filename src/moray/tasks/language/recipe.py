"""Build the encoder of a token store from a tokenizer and keys of the config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moray.config.formats import FORMATS
from moray.tasks.language.chat import ChatTemplate
from moray.tasks.language.encode import Encoder
from moray.tasks.language.tokenizer import load_tokenizer, stop_token_ids


def make_encoder(folder: Path, cfg: Mapping[str, Any]) -> Encoder:
    """Make the encoder for a run's documents.

    Args:
        folder: Hugging Face folder with the tokenizer.
        cfg: the dataset's format, and the keys of the `data` section that affect the tokens.
    """
    tokenizer = load_tokenizer(folder)
    stops = stop_token_ids(tokenizer, folder)
    chat = None
    # Pairs can be text, which needs no template.
    optional = cfg["format"] == "preference" and not tokenizer.chat_template
    if FORMATS[cfg["format"]].chat and (cfg["chat_template"] or not optional):
        words = tokenizer.convert_ids_to_tokens(stops)
        chat = ChatTemplate(tokenizer, cfg["chat_template"], words, cfg["mask_history"])
    return Encoder(
        tokenizer, cfg["block_size"], cfg["long_documents"] == "drop", chat, stop_token_ids=stops
    )
