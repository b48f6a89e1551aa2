"""Score a run's model and its base on the same held-out documents."""

from moray.console import say
from moray.evaluate.comparison import compare_scores
from moray.evaluate.execution import num_batches
from moray.evaluate.likelihood import total
from moray.evaluate.scoring import ScoreJob, score_on_worker
from moray.evaluate.selection import select_documents
from moray.provenance.manifest import write_json
from moray.stages.boundary import File, Folder, Json, command_line
from moray.stages.evaluation import on_evaluation_workers
from moray.tasks.language.store import StoredSplit


def evaluate(
    run: str, base: Folder, tuned: Folder, tokens: Folder, output: File, cfg: Json, execution: Json
) -> None:
    """Write `eval.json`.

    Args:
        run: the run's name.
        base: model folder that the run started from.
        tuned: the run's model.
        tokens: the run's token store.
        output: file to write.
        cfg: the keys of the `evaluate` section that the result depends on.
        execution: the other keys of that section, and the settings for starting workers.
    """
    selection = select_documents(StoredSplit(tokens, "test"), cfg["max_documents"])
    # Absolute, because the current directory of a Ray worker is another one.
    models = {"base": base.absolute(), "tuned": tuned.absolute()}
    with on_evaluation_workers("evaluate", run, output, cfg, execution) as workers:
        batches = num_batches(models, len(selection.rows), workers.execution.batch_size)
        job = ScoreJob(models, tokens.absolute(), cfg["max_documents"], workers.execution)
        results = workers.run(score_on_worker, job, batches)
    scores = {name: total([result[name] for result in results]) for name in models}
    held_out = scores["base"]
    result = {
        "rows": len(selection.rows),
        "documents": len(held_out.by_document().tokens),
        "tokens": int(held_out.tokens.sum()),
        "bytes": int(held_out.bytes.sum()),
        "confidence": cfg["confidence"],
        **compare_scores(
            scores["base"], scores["tuned"], cfg["bootstrap_samples"], cfg["confidence"]
        ),
    }
    write_json(output, result)
    for figure in ("bits_per_byte", "accuracy"):
        first, second = result["base"][figure], result["tuned"][figure]
        say(
            f"{run}: {figure} {first['value']:.3f} "
            f"[{first['low']:.3f}, {first['high']:.3f}] before, {second['value']:.3f} "
            f"[{second['low']:.3f}, {second['high']:.3f}] after"
        )


if __name__ == "__main__":
    command_line(evaluate)
