"""A config that asks for an extra whose folder was deleted costs one line."""

from pathlib import Path
from typing import Any

import pytest
from small_config import faults

from moray.config import extras


@pytest.mark.parametrize(
    ("values", "key", "folder"),
    [
        ({"runs.tuned.gguf": {}}, "gguf", "gguf"),
        ({"runs.tuned.tracking": ["wandb"]}, "tracking", "wandb"),
    ],
)
def test_what_is_not_there_is_named(
    values: dict[str, Any], key: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "_FOLDERS", tmp_path)
    assert faults(values) == [
        f"runs.tuned.{key}: needs moray/extras/{folder}, which isn't there; put the folder back, "
        "or remove the key"
    ]
