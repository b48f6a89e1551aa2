"""Compute the log-probabilities of answers under the model that preference runs start from."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moray.config.tasks import TASKS
from moray.console import say
from moray.evaluate.driver import start_evaluation_workers
from moray.provenance.manifest import atomic_folder, read_manifest, write_manifest
from moray.provenance.space import check_space
from moray.rows.store import Record, Rows, RowsWriter, describe, record_of
from moray.tasks.language.likelihood import Scores, total
from moray.tasks.language.rows import StoredSplit
from moray.tasks.preference.evaluation import Policy, score_pairs_on_worker
from moray.tasks.preference.rows import in_pairs, num_pairs, with_reference

# A run trains on one and computes validation losses on the other; test is scored by itself.
_SPLITS = ("train", "validation")


def reference(
    run: str,
    start: Path,
    tokens: Path,
    output: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    code: str = "",
) -> None:
    """Write a store: the rows of a token store with the field `reference`; its manifest last.

    The batches that a killed process has on disk aren't scored again.

    Args:
        run: the first run that uses it.
        cfg: the attributes of a `Policy`.
        code: the version of what decides on the result.
    """
    manifest = read_manifest(tokens)
    splits = {name: StoredSplit(tokens, name) for name in _SPLITS}
    # The loss is averaged over pairs, not over their tokens.
    facts = {
        name: {**counts, "weight": counts["pairs"]}
        for name, counts in manifest["splits"].items()
        if name in _SPLITS
    }
    policy = Policy(**cfg)
    most = max(counts["most_pairs_in_row"] for counts in facts.values())
    record = with_reference(record_of(manifest), most)
    with (
        atomic_folder(output),
        start_evaluation_workers(
            "evaluate", run, output, cfg, execution, code, label=f"reference {output.name}"
        ) as workers,
    ):
        check_space(output, sum(map(len, splits.values())) * record.itemsize)
        models = {"reference": start.absolute()}
        score = partial(score_pairs_on_worker, splits=_SPLITS, policy=policy)
        rows = map(len, splits.values())
        results = workers.run(score, models, (tokens.absolute(),), *rows)
        for name, split in splits.items():
            scores = total([result["reference"][name] for result in results])
            _write(output, name, split, scores, record)
        write_manifest(
            output,
            task=manifest["task"],
            record=describe(record),
            block_size=manifest["block_size"],
            recipe={**manifest["recipe"], **cfg},
            splits=facts,
        )
    pairs = sum(counts["pairs"] for counts in facts.values())
    say(f"reference {output.name}: {pairs:,} {TASKS[manifest['task']].scored}")


def _write(folder: Path, name: str, split: StoredSplit, scores: Scores, record: Record) -> None:
    answers = -scores.nll[in_pairs(scores.document)]
    row = end = 0
    with RowsWriter(folder, name) as writer:
        for size in split.windows:
            rows = split.rows[row : row + size]
            pairs = int(num_pairs(rows).sum())
            start, end = end, end + pairs
            writer.add(_with_answers(rows, answers[start:end], record), weight=pairs)
            row += size


def _with_answers(rows: Rows, answers: NDArray[Any], record: Record) -> Rows:
    """Rows of a token store with the log-probabilities of their answers, shape (pairs, 2)."""
    assert rows.dtype.names
    new_rows = np.zeros(len(rows), record)
    for field in rows.dtype.names:
        new_rows[field] = rows[field]
    most = new_rows["reference"].shape[1]
    new_rows["reference"][np.arange(most) < num_pairs(rows)[:, None]] = answers
    return new_rows
