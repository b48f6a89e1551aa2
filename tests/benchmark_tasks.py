"""A folder of benchmark tasks as a user writes them, with their data."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

_NAMES = ["def", "return", "self", "value", "for", "in", "if", "not", "None", "import", "class"]
_COMMON = {
    "dataset_path": "json",
    "test_split": "test",
    "metadata": {"version": 1.0},
}


def write_tasks(folder: Path, documents: int = 30) -> Path:
    """Write `words`, `order`, their group `puzzles`, and `text`; returns the folder.

    `words` and `order` are of multiple choice, with a train split for examples. `text` has figures
    that are no mean over documents.
    """
    folder.mkdir(parents=True)
    draw = random.Random(0)
    for task in ("words", "order"):
        for split in ("test", "train"):
            lines = []
            for _ in range(documents if split == "test" else 8):
                choices = [" ".join(draw.choices(_NAMES, k=draw.randint(1, 4))) for _ in range(3)]
                question = " ".join(draw.choices(_NAMES, k=5))
                lines.append(
                    {"question": question, "choices": choices, "answer": draw.randrange(3)}
                )
            _write_lines(folder / f"{task}-{split}.jsonl", lines)
        definition = {
            "task": task,
            **_COMMON,
            "dataset_kwargs": {"data_files": _files(folder, task, "test", "train")},
            "fewshot_split": "train",
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        }
        (folder / f"{task}.yaml").write_text(yaml.safe_dump(definition))
    texts = [
        {"text": " ".join(draw.choices(_NAMES, k=draw.randint(2, 30)))} for _ in range(documents)
    ]
    _write_lines(folder / "text-test.jsonl", texts)
    definition = {
        "task": "text",
        **_COMMON,
        "dataset_kwargs": {"data_files": _files(folder, "text", "test")},
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    }
    (folder / "text.yaml").write_text(yaml.safe_dump(definition))
    group = {
        "group": "puzzles",
        "task": ["words", "order"],
        "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}],
    }
    (folder / "puzzles.yaml").write_text(yaml.safe_dump(group))
    return folder


def add_generated(folder: Path) -> list[str]:
    """Write `greedy` and `sampled`, whose answers to the questions of `words` are generated."""
    names = {"greedy": 1, "sampled": 3}
    for task, repeats in names.items():
        definition = {
            "task": task,
            **_COMMON,
            "dataset_kwargs": {"data_files": _files(folder, "words", "test")},
            "output_type": "generate_until",
            "repeats": repeats,
            "doc_to_text": "{{question}}",
            "doc_to_target": "{{choices[0]}}",
            "generation_kwargs": {
                "until": ["\n"],
                "max_gen_toks": 6,
                "do_sample": task == "sampled",
                "temperature": float(task == "sampled"),
            },
            "metric_list": [{"metric": "chrf"}],
        }
        (folder / f"{task}.yaml").write_text(yaml.safe_dump(definition))
    return [*names]


def _files(folder: Path, task: str, *splits: str) -> dict[str, str]:
    return {split: str(folder / f"{task}-{split}.jsonl") for split in splits}


def _write_lines(file: Path, lines: Sequence[Mapping[str, object]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
