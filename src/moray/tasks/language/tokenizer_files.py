"""The files of a tokenizer in a folder, which may be those of older versions of transformers."""

import json
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from moray.tasks.language.tokenizer import adds_bos, load_tokenizer

# Of transformers before version 5. Later ones read them, over `tokenizer_config.json`, but don't
# write them.
_OLDER_FILES = ("special_tokens_map.json", "added_tokens.json")


# Digits, contractions, white space, code, accents, other scripts, and a character of several bytes.
_PROBE = (
    " Price:  12345.67 €, don't STOP!\n\n\tdef f(a_b):\r\n    return x2 == 10 or 0xFF\n"
    "日本語 naïve ÀÉ e\u0301 🐍 http://a.b/c?d=1 "
)


def use_tokenizer_json(folder: Path, tokenizer: PreTrainedTokenizerFast) -> str | None:
    """Make transformers use `tokenizer.json` as it is, whatever class its config names.

    From version 5, some classes use their own splitting and normalising instead of the file's, and
    so make other tokens than the model was trained on.

    Args:
        tokenizer: as transformers loads it from the folder.

    Returns:
        The name of the class if it did, and is replaced now; otherwise None.
    """
    file, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not (file.is_file() and config.is_file()):
        return None
    before = config.read_text()
    settings = json.loads(before)
    plain = Tokenizer.from_file(str(file))
    plain.no_truncation()
    plain.no_padding()
    expected = plain.encode(_PROBE, add_special_tokens=False).ids
    # A space that this asks for is in the class alone.
    if settings.get("add_prefix_space") or _tokens(tokenizer) == expected:
        return None
    settings["tokenizer_class"] = PreTrainedTokenizerFast.__name__
    config.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    read = load_tokenizer(folder)
    if _tokens(read) == expected and adds_bos(read) == adds_bos(tokenizer):
        return type(tokenizer).__name__
    config.write_text(before)
    return None


def _tokens(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    ids: list[int] = tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
    return ids


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a tokenizer to a folder, so that transformers reads it back whatever was there."""
    for name in _OLDER_FILES:
        (folder / name).unlink(missing_ok=True)
    # The name of a file for this version of transformers, instead of the one that is written.
    tokenizer.init_kwargs.pop("fast_tokenizer_files", None)
    tokenizer.save_pretrained(folder)
    if (folder / "tokenizer.model").is_file():
        # That file lacks the tokens that were added, and llama.cpp only reads them by this key.
        config = folder / "tokenizer_config.json"
        added_tokens = {
            str(id): token.__getstate__() for id, token in tokenizer.added_tokens_decoder.items()
        }
        settings = json.loads(config.read_text()) | {"added_tokens_decoder": added_tokens}
        config.write_text(json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
