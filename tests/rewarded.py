"""Pairs of answers, one with a kind word, and small models that give them rewards."""

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from classified import OPINIONS, OTHERS, ROWS, prepare_model, write_classifier, write_rows

from moray.stages.download import download
from moray.tasks.reward.tokenize_labelled import tokenize_labelled

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }} [SEP]{% endfor %}"
)
CFG = {"block_size": 16, "format": "reward", "long_documents": "split", "chat_template": None}


def text_pairs(count: int = 240, margins: bool = True) -> list[dict[str, Any]]:
    """Pairs whose chosen answer has a kind word, and the rejected one another; some margins."""
    draw = random.Random(0)

    def words(*more: str) -> str:
        some = [*draw.choices(OTHERS, k=draw.randint(1, 5)), *more]
        draw.shuffle(some)
        return " ".join(some)

    rows = []
    for number in range(count):
        bad, good = (draw.choice(of) for of in OPINIONS)
        row: dict[str, Any] = {"prompt": words() + " ", "chosen": words(good)}
        row["rejected"] = words(bad)
        if margins:
            row["margin"] = [None, 0.5, 2][number % 3]
        rows.append(row)
    return rows


def talks(count: int = 240) -> list[dict[str, Any]]:
    """The same pairs as messages."""
    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    return [
        row | {key: [{"role": roles[key], "content": row[key].strip()}] for key in roles}
        for row in text_pairs(count)
    ]


def prepare_pairs(
    folder: Path,
    rows: Iterable[Mapping[str, Any]],
    config: Any,
    pad: str | None = "[PAD]",
    **keys: Any,
) -> Path:
    """Make `dataset`, `model` and `labelled` of rows and a config in a folder.

    Args:
        pad: the padding token of the model that it begins with.
        keys: of the `cfg` of the store.
    """
    write_rows(folder / "rows.jsonl", rows)
    section = {**ROWS, "format": "reward", "path": str(folder / "rows.jsonl")}
    download(folder / "dataset", section, {"train": [str(folder / "rows.jsonl")]})
    write_judge(folder / "given", config, pad)
    prepare_model(folder)
    tokenize_labelled(folder / "dataset", folder / "model", folder / "labelled", CFG | keys)
    return folder


def write_judge(folder: Path, config: Any, pad: str | None = "[PAD]") -> None:
    """Write a classifier, which gets another output layer, whose tokenizer has an EOS token."""
    write_classifier(folder, config)
    file = folder / "tokenizer_config.json"
    tokens = {"eos_token": "[SEP]", "pad_token": pad}
    file.write_text(json.dumps(json.loads(file.read_text()) | tokens))


def samples_of(run: Path) -> list[dict[str, Any]]:
    """The samples of a run."""
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
