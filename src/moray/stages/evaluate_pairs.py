"""Score a preference run's model and its base on the same held-out pairs."""

from moray.config.schema import Preference
from moray.console import say
from moray.evaluate.execution import num_batches
from moray.evaluate.likelihood import total
from moray.evaluate.pairs import ScorePairsJob, score_pairs_on_worker
from moray.evaluate.preferences import compare_preferences
from moray.evaluate.selection import select_documents
from moray.provenance.lineage import write_sealed
from moray.provenance.manifest import MANIFEST
from moray.stages.boundary import File, Folder, Json, command_line
from moray.stages.evaluation import on_evaluation_workers
from moray.tasks.language.store import StoredSplit


def evaluate_pairs(
    run: str, base: Folder, tuned: Folder, tokens: Folder, output: File, cfg: Json, execution: Json
) -> None:
    """Write `eval.json`.

    Args:
        run: the run's name.
        base: model folder that the run started from.
        tuned: the run's model.
        tokens: the run's token store of pairs.
        output: file to write.
        cfg: the keys of the `evaluate` section that the result depends on, and the `preference`
            section.
        execution: the other keys of `evaluate`, and the settings for starting workers.
    """
    selection = select_documents(StoredSplit(tokens, "test"), cfg["max_documents"])
    models = {"base": base.absolute(), "tuned": tuned.absolute()}
    with on_evaluation_workers("evaluate", run, output, cfg, execution) as workers:
        batches = num_batches(models, len(selection.rows), workers.execution.batch_size)
        job = ScorePairsJob(
            models, (tokens.absolute(),), workers.execution, ("test",), cfg["max_documents"]
        )
        results = workers.run(score_pairs_on_worker, job, batches)
    scores = {name: total([result[name]["test"] for result in results]) for name in models}
    held_out = scores["base"]
    result = {
        "rows": len(selection.rows),
        "pairs": len(held_out.tokens) // 2,
        "tokens": int(held_out.tokens.sum()),
        "confidence": cfg["confidence"],
        "resampled": "pairs",
        **compare_preferences(
            scores["base"],
            scores["tuned"],
            Preference(**cfg["preference"]),
            cfg["bootstrap_samples"],
            cfg["confidence"],
        ),
    }
    write_sealed(output, result, [folder / MANIFEST for folder in [base, tuned, tokens]])
    for figure in ("reward_margin", "reward_accuracy", "chosen_bits_per_byte"):
        first, second = result["base"][figure], result["tuned"][figure]
        say(
            f"{run}: {figure} {first['value']:.3f} before, {second['value']:.3f} "
            f"[{second['low']:.3f}, {second['high']:.3f}] after"
        )


if __name__ == "__main__":
    command_line(evaluate_pairs)
