"""Classify a few held-out images with a run's model and its base, and draw them."""

import json

import numpy as np
from numpy.typing import NDArray

from moray.console import say
from moray.evaluate.classification import ClassifyJob, chosen, classify_on_worker, in_order
from moray.evaluate.execution import num_batches
from moray.evaluate.picture import Shown, draw
from moray.provenance.manifest import read_manifest, write_json
from moray.rows.store import StoredRows
from moray.stages.boundary import File, Folder, Json, command_line
from moray.stages.evaluation import on_evaluation_workers


def predict(
    run: str,
    base: Folder,
    tuned: Folder,
    store: Folder,
    output: File,
    settings: File,
    png: File,
    svg: File,
    cfg: Json,
    execution: Json,
) -> None:
    """Write `samples.jsonl`: label, and prediction and its probability of both models; a figure.

    Args:
        run: the run's name.
        base: model folder that the run started from.
        tuned: the run's model.
        store: store of the run's images.
        output: file to write the predictions to.
        settings: file to write the settings to.
        png: file to write the figure to.
        svg: file to write the same figure to.
        cfg: the keys of the `generate` section that the result depends on.
        execution: the other keys of that section, and the settings for starting workers.
    """
    split = StoredRows(store, "test")
    numbers, names = chosen(split, cfg["num_samples"]), read_manifest(store)["label_names"]
    models = {"base": base.absolute(), "tuned": tuned.absolute()}
    with on_evaluation_workers("generate", run, output, cfg, execution) as workers:
        job = ClassifyJob(models, (store.absolute(),), workers.execution, cfg["num_samples"])
        batches = num_batches(models, len(numbers), workers.execution.batch_size)
        results = workers.run(classify_on_worker, job, batches)
    answers = {name: in_order([result[name] for result in results]) for name in models}
    labels = [names[label] for label in split.rows["label"][numbers].tolist()]
    said = {name: [names[one] for one in found.argmax(-1)] for name, found in answers.items()}
    with output.open("w") as file:
        for place, number in enumerate(numbers.tolist()):
            sample = {"image": number, "label": labels[place]}
            for name in models:
                sample[name] = said[name][place]
                sample[f"{name}_probability"] = _probability(answers[name][place])
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")
    shown = [
        Shown(split.rows["pixels"][number], label, prediction)
        for number, label, prediction in zip(numbers, labels, said["tuned"], strict=True)
    ]
    draw(shown, [png, svg], f"{run}: prediction (label)")
    write_json(settings, dict(sorted(cfg.items())))
    right = {name: sum(map(str.__eq__, labels, predictions)) for name, predictions in said.items()}
    say(f"{run}: of {len(labels)} images, {right['base']} right before, {right['tuned']} after")


def _probability(logs: NDArray[np.float32]) -> float:
    return round(float(np.exp(logs.max())), 4)


if __name__ == "__main__":
    command_line(predict)
