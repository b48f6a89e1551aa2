"""A mixture and a chain in which documents of a test split are trained on."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from project import Project

pytestmark = pytest.mark.release

QUICK = {"launcher": "torchrun", "max_steps": 2}


def rows(project: Project, dataset: str, split: str) -> set[str]:
    table = pd.read_parquet(project.folder / f"results/datasets/{dataset}/{split}.parquet")
    return set(table["text"])


def expected(project: Project, own: list[str], trained: list[str]) -> dict[tuple[str, ...], int]:
    """By plain sets of texts."""
    found = {
        (name, split, by): len(rows(project, name, split) & rows(project, by, "train"))
        for name in own
        for split in ("test", "validation")
        for by in trained
        if by != name
    }
    return {key: count for key, count in found.items() if count}


def test_what_is_tested_and_trained_on_is_counted_and_named(fresh: Project) -> None:
    lines = (fresh.folder / "data/modules.jsonl").read_text().splitlines()
    (fresh.folder / "data/own.jsonl").write_text("\n".join(lines[:10]))
    texts = "".join(f'{{"text": "def f{n}(): return {n}"}}\n' for n in range(40))
    (fresh.folder / "data/others.jsonl").write_text(texts)
    sections: dict[str, dict[str, Any]] = {
        "more": {"path": "data/modules.jsonl", "test_share": 0.5},
        "exam": {"path": {"train": "data/others.jsonl", "test": "data/own.jsonl"}},
        "others": {"path": "data/others.jsonl", "test_share": 0.2},
    }
    for name, section in sections.items():
        common = {"source": "files", "validation_share": 0.1}
        fresh.configure(["datasets", name], common | section)
    fresh.configure(["defaults", "ray", "num_workers"], 1)
    runs: dict[str, Any] = {
        "base": {"model": "tiny", "dataset": "modules"},
        "mixed": {"model": "tiny", "dataset": {"modules": 1, "more": 1}},
        "chained": {"model": {"run": "base"}, "dataset": "exam"},
        "apart": {"model": {"run": "base"}, "dataset": "others"},
    }
    fresh.configure(["runs"], {name: run | {"train": QUICK} for name, run in runs.items()})
    done = fresh.snakemake("--cores", "8", "cards")
    assert done.returncode == 0, done.stderr
    own = {"mixed": ["modules", "more"], "chained": ["exam"], "apart": ["others"], "base": []}
    trained = {"mixed": own["mixed"], "chained": ["exam", "modules"], "apart": ["modules"]}
    told = {"mixed": 0, "chained": 0, "apart": 0, "base": 0}
    for run in runs:
        folder = Path(fresh.folder, "results/runs", run)
        scores = json.loads((folder / "eval.json").read_text())
        found = {
            (each["dataset"], each["split"], each["by"]): each["trained"]
            for each in scores.get("overlaps", ())
        }
        assert found == expected(fresh, own[run], trained.get(run, []))
        for each in scores.get("overlaps", ()):
            who = "base" if run == "chained" else run
            line = (
                f"{each['trained']} of {each['documents']} {each['split']} documents of "
                f"{each['dataset']} were trained on, in {each['by']} (run {who})"
            )
            assert f"{run}: {line}\n" in done.stderr
            assert line in (folder / "README.md").read_text()
            told[run] += 1
    assert told["mixed"] > 1
    assert (told["chained"], told["apart"], told["base"]) == (1, 0, 0)
    assert done.stderr.count("trained on, in") == sum(told.values())
    assert fresh.planned("cards") == set()
