"""Write a run's model card with its evaluation, in the form that the Hub reads."""

import json
from collections.abc import Iterator
from typing import Any

from huggingface_hub import EvalResult, ModelCard

from moray.console import say
from moray.stages.boundary import File, Folder, Json, command_line

_EVALUATION = """
## Evaluation

On {number} of the test split; in brackets, {confidence:.0%} confidence intervals.

| | before | after |
|---|---|---|
{rows}

## Lineage

`lineage.json` has the settings, the software, the machine, and the SHA-256 of everything that the
model was made from:

| | SHA-256 |
|---|---|
{inputs}
"""
# What was scored, by the task.
_UNITS = ("documents", "pairs", "images")


def card(model: Folder, scores: File, output: File, cfg: Json) -> None:
    """Write the card.

    Args:
        model: the run's model folder.
        scores: the run's `eval.json`.
        output: file to write.
        cfg: names of the run and its datasets.
    """
    found = json.loads(scores.read_text())
    lineage = json.loads((model / "lineage.json").read_text())
    written = ModelCard.load(model / "README.md")
    written.data.model_name = cfg["run"]
    written.data.eval_results = list(_results(found, written.data.pipeline_tag, cfg["datasets"]))
    unit = next(unit for unit in _UNITS if unit in found)
    written.text = (
        written.text.rstrip()
        + "\n"
        + _EVALUATION.format(
            number=f"{found[unit]:,} {unit}",
            confidence=found["confidence"],
            rows="\n".join(_rows(found)),
            inputs="\n".join(
                f"| {name} | `{digest}` |" for name, digest in lineage["inputs"].items()
            ),
        )
    )
    written.save(output)
    say(f"card of {cfg['run']}: {output}")


def _results(found: dict[str, Any], task: str, datasets: list[str]) -> Iterator[EvalResult]:
    name = " and ".join(datasets)
    for metric, figure in found["tuned"].items():
        yield EvalResult(
            task_type=task,
            dataset_type=name,
            dataset_name=name,
            dataset_split="test",
            metric_type=metric,
            metric_value=figure["value"],
            metric_config=f"{found['confidence']:.0%} interval: {_interval(figure)}",
        )


def _rows(found: dict[str, Any]) -> Iterator[str]:
    for metric, before in found["base"].items():
        after = found["tuned"][metric]
        cells = (f"{each['value']:.4g} {_interval(each)}" for each in (before, after))
        yield f"| {metric} | {' | '.join(cells)} |"


def _interval(figure: dict[str, float]) -> str:
    return f"[{figure['low']:.4g}, {figure['high']:.4g}]"


if __name__ == "__main__":
    command_line(card)
