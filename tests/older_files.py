"""What older versions of transformers wrote beside a tokenizer, which say the same thing again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = ["<|im_start|>", "<|im_end|>"]
OLD, END = "<|endoftext|>", "<|im_end|>"


def change(file: Path, **keys: Any) -> None:
    """Set keys of a JSON file, which may be missing."""
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | keys))


def special_tokens(folder: Path) -> None:
    token = {"content": OLD, "lstrip": False, "normalized": False, "rstrip": False}
    change(folder / "special_tokens_map.json", bos_token=token, eos_token=token, pad_token=OLD)


def added_tokens(folder: Path) -> None:
    """With another number than in `tokenizer.json`."""
    change(folder / "added_tokens.json", **{OLD: 7})
    special_tokens(folder)


def decoder(folder: Path) -> None:
    """transformers 4 read the special tokens of `tokenizer_config.json` alone beside this key."""
    special_tokens(folder)
    token = {"content": OLD, "lstrip": False, "normalized": False, "rstrip": False}
    of_each = {"0": token | {"single_word": False, "special": True}}
    change(folder / "tokenizer_config.json", added_tokens_decoder=of_each)


def versions(folder: Path) -> None:
    """A tokenizer of its own for later versions of transformers."""
    shutil.copy(folder / "tokenizer.json", folder / "tokenizer.4.0.0.json")
    names = ["tokenizer.json", "tokenizer.4.0.0.json"]
    change(folder / "tokenizer_config.json", fast_tokenizer_files=names)


def generation(folder: Path) -> None:
    change(folder / "generation_config.json", eos_token_id=0, pad_token_id=0)
    change(folder / "config.json", eos_token_id=0)


def no_generation(folder: Path) -> None:
    (folder / "generation_config.json").unlink()


def sentencepiece(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(b"")
    special_tokens(folder)


OLDER: list[Callable[[Path], None]] = [
    special_tokens,
    added_tokens,
    decoder,
    versions,
    generation,
    no_generation,
    sentencepiece,
]
