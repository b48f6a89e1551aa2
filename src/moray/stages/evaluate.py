"""Score a run's model and its base on the same held-out documents."""

from typing import Any

from moray.console import say
from moray.evaluate.comparison import compare_scores
from moray.evaluate.execution import num_batches
from moray.evaluate.likelihood import Scores, joined, total
from moray.evaluate.scoring import ScoreJob, score_on_worker
from moray.evaluate.selection import select_documents
from moray.provenance.lineage import write_sealed
from moray.provenance.manifest import MANIFEST
from moray.stages.boundary import File, Folder, Folders, Json, command_line
from moray.stages.evaluation import on_evaluation_workers
from moray.tasks.language.store import StoredSplit


def evaluate(
    run: str,
    base: Folder,
    tuned: Folder,
    tokens: Folders,
    output: File,
    cfg: Json,
    execution: Json,
) -> None:
    """Write `eval.json`.

    Args:
        run: the run's name.
        base: model folder that the run started from.
        tuned: the run's model.
        tokens: the run's token stores, in the order of its datasets.
        output: file to write.
        cfg: names of the run's datasets, and the keys of the `evaluate` section that the result
            depends on.
        execution: the other keys of that section, and the settings for starting workers.
    """
    splits = [StoredSplit(store, "test") for store in tokens]
    rows = [len(select_documents(split, cfg["max_documents"]).rows) for split in splits]
    models = {"base": base.absolute(), "tuned": tuned.absolute()}
    stores = tuple(store.absolute() for store in tokens)
    with on_evaluation_workers("evaluate", run, output, cfg, execution) as workers:
        size = workers.execution.batch_size
        batches = sum(num_batches(models, count, size) for count in rows)
        job = ScoreJob(models, stores, workers.execution, cfg["max_documents"])
        results = workers.run(score_on_worker, job, batches)
    scores = {
        name: [total(parts) for parts in zip(*(result[name] for result in results), strict=True)]
        for name in models
    }
    result = _compared(joined(scores["base"]), joined(scores["tuned"]), sum(rows), cfg)
    if len(stores) > 1:
        each = zip(cfg["datasets"], scores["base"], scores["tuned"], rows, strict=True)
        result["datasets"] = {
            dataset: _compared(first, second, count, cfg) for dataset, first, second, count in each
        }
    write_sealed(output, result, [folder / MANIFEST for folder in [base, tuned, *tokens]])
    for figure in ("bits_per_byte", "accuracy"):
        first, second = result["base"][figure], result["tuned"][figure]
        say(
            f"{run}: {figure} {first['value']:.3f} "
            f"[{first['low']:.3f}, {first['high']:.3f}] before, {second['value']:.3f} "
            f"[{second['low']:.3f}, {second['high']:.3f}] after"
        )


def _compared(base: Scores, tuned: Scores, rows: int, cfg: dict[str, Any]) -> dict[str, Any]:
    return {
        "rows": rows,
        "documents": len(base.by_document().tokens),
        "tokens": int(base.tokens.sum()),
        "bytes": int(base.bytes.sum()),
        "confidence": cfg["confidence"],
        **compare_scores(base, tuned, cfg["bootstrap_samples"], cfg["confidence"]),
    }


if __name__ == "__main__":
    command_line(evaluate)
