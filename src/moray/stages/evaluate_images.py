"""Classify the same held-out images with a run's model and its base."""

import numpy as np

from moray.console import say
from moray.evaluate.accuracy import by_class, compare_answers
from moray.evaluate.classification import ClassifyJob, chosen, classify_on_worker, in_order
from moray.evaluate.execution import num_batches
from moray.provenance.lineage import write_sealed
from moray.provenance.manifest import MANIFEST, read_manifest
from moray.rows.store import StoredRows
from moray.stages.boundary import File, Folder, Json, command_line
from moray.stages.evaluation import on_evaluation_workers


def evaluate_images(
    run: str, base: Folder, tuned: Folder, store: Folder, output: File, cfg: Json, execution: Json
) -> None:
    """Write `eval.json`: accuracy and loss of both models, and a table of the classes of each.

    Args:
        run: the run's name.
        base: model folder that the run started from.
        tuned: the run's model.
        store: store of the run's images.
        output: file to write.
        cfg: the keys of the `evaluate` section that the result depends on.
        execution: the other keys of that section, and the settings for starting workers.
    """
    split = StoredRows(store, "test")
    numbers = chosen(split, cfg["max_documents"])
    labels = split.rows["label"][numbers].astype(np.int64)
    models = {"base": base.absolute(), "tuned": tuned.absolute()}
    with on_evaluation_workers("evaluate", run, output, cfg, execution) as workers:
        job = ClassifyJob(models, (store.absolute(),), workers.execution, cfg["max_documents"])
        batches = num_batches(models, len(numbers), workers.execution.batch_size)
        results = workers.run(classify_on_worker, job, batches)
    answers = {name: in_order([result[name] for result in results]) for name in models}
    names = read_manifest(store)["label_names"]
    compared = compare_answers(
        answers["base"], answers["tuned"], labels, cfg["bootstrap_samples"], cfg["confidence"]
    )
    result = {
        "images": len(numbers),
        "label_names": names,
        "confidence": cfg["confidence"],
        **compared,
        "by_class": {name: by_class(answers[name], labels, names) for name in models},
    }
    write_sealed(output, result, [folder / MANIFEST for folder in [base, tuned, store]])
    first, second = (compared[name]["accuracy"] for name in ("base", "tuned"))
    say(
        f"{run}: accuracy {first['value']:.3f} [{first['low']:.3f}, {first['high']:.3f}] before, "
        f"{second['value']:.3f} [{second['low']:.3f}, {second['high']:.3f}] after"
    )


if __name__ == "__main__":
    command_line(evaluate_images)
