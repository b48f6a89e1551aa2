"""Score a run's model and its base on the same held-out rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moray.config.tasks import module_of
from moray.console import say
from moray.corpus.overlap import find_overlaps, overlap_messages
from moray.evaluate.driver import start_evaluation_workers, with_interval
from moray.evaluate.worker import Evaluation
from moray.proofs.comparison import collect, conclude
from moray.provenance.lineage import write_sealed
from moray.provenance.manifest import MANIFEST, read_manifest


def evaluate(
    run: str,
    base: Path,
    tuned: Path,
    stores: list[Path],
    output: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    compared: Sequence[Path] = (),
    code: str = "",
) -> None:
    """Write `eval.json`.

    The batches that a killed process has on disk aren't scored again.

    Args:
        stores: the run's stores, in the order of its datasets.
        cfg: names of the run's datasets, the keys of the `evaluate` section that the result
            depends on, and the section that only the run's task reads.
        compared: splits that documents may be held out of in one and trained on in another; `cfg`
            has the runs that train on their datasets as `trained_by`.
        code: the version of what decides on the result.
    """
    models = {"base": base.absolute(), "tuned": tuned.absolute()}
    folders = tuple(store.absolute() for store in stores)
    module = module_of(read_manifest(stores[0])["task"], "evaluation")
    evaluation: Evaluation = module.evaluation(models, folders, cfg)
    with start_evaluation_workers("evaluate", run, output, cfg, execution, code) as workers:
        results = workers.run(evaluation.entry_point, models, folders, *evaluation.rows)
        result = evaluation.scores(results)
        if execution["proofs"] != "off":
            proof = collect("scores", lambda: evaluation.proof(results, workers.seconds))
            result["proof"] = conclude(proof, execution["proofs"], f"runs.{run}")
        inputs = [folder / MANIFEST for folder in [base, tuned, *stores]]
        if overlaps := find_overlaps(compared, cfg.get("trained_by", {})):
            result["overlaps"] = overlaps
            inputs += compared
        write_sealed(output, result, inputs)
    for name in evaluation.figures:
        before, after = (with_interval(result[model][name]) for model in ("base", "tuned"))
        say(f"{run}: {name} {before} before, {after} after")
    for line in overlap_messages(result):
        say(f"{run}: {line}")
