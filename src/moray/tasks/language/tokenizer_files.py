"""Write a tokenizer into a folder, which may have files of older versions of transformers."""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerFast

# Of transformers before version 5. Later ones read them, over `tokenizer_config.json`, but don't
# write them.
_OLDER_FILES = ("special_tokens_map.json", "added_tokens.json")


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a tokenizer to a folder, so that transformers reads it back whatever was there."""
    for name in _OLDER_FILES:
        (folder / name).unlink(missing_ok=True)
    # The name of a file for this version of transformers, instead of the one that is written.
    tokenizer.init_kwargs.pop("fast_tokenizer_files", None)
    tokenizer.save_pretrained(folder)
    if (folder / "tokenizer.model").is_file():
        # It lacks the tokens that were added, and llama.cpp reads nothing else but this key.
        config = folder / "tokenizer_config.json"
        added = {
            str(id): token.__getstate__() for id, token in tokenizer.added_tokens_decoder.items()
        }
        settings = json.loads(config.read_text()) | {"added_tokens_decoder": added}
        config.write_text(json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
