"""Write a run's model card with its evaluation, in the form that the Hub reads."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard

from moray.config.tasks import MODALITIES, TASKS
from moray.console import say
from moray.corpus.overlap import overlap_messages
from moray.proofs.comparison import read_proof, short, summary

_EVALUATION = """
## Usage

```python
from transformers import pipeline

model = pipeline("{pipeline}", model="{place}")
print(model({example}))
```

## Evaluation

On {number} of the test split; in brackets, {confidence:.0%} confidence intervals.{overlaps}

| | before | after |
|---|---|---|
{rows}
{benchmarks}{checks}
## Lineage

`lineage.json` has the settings, the software, the machine, and the SHA-256 of everything that the
model was made from:

| | SHA-256 |
|---|---|
{inputs}
"""
_BENCHMARKS = """
### Benchmarks

By lm-evaluation-harness {version}; in brackets, {confidence:.0%} confidence intervals.

| | before | after |
|---|---|---|
{rows}
"""
_CHECKS = """
## Checks

Each stage compared a sample of its result with plain libraries; {summary}.

| | | here | plain library |
|---|---|---|---|
{rows}
"""


_PROMPT = '"Once upon a time", max_new_tokens=64'
_MESSAGES = '[{"role": "user", "content": "Who are you?"}], max_new_tokens=64'


def card(
    model: Path, scores: Path, benchmarks: list[Path], output: Path, cfg: dict[str, Any]
) -> None:
    """Write the card."""
    evaluation = json.loads(scores.read_text())
    lineage = json.loads((model / "lineage.json").read_text())
    model_card = ModelCard.load(model / "README.md")
    model_card.data.model_name = cfg["run"]
    kind, name = model_card.data.pipeline_tag, " and ".join(cfg["datasets"])
    model_card.data.eval_results = list(
        _results(evaluation["tuned"], kind, name, evaluation["confidence"])
    )
    of_benchmarks = ""
    for file in benchmarks:
        record = json.loads(file.read_text())
        tasks, confidence = record["tasks"], record["confidence"]
        for task, figures in tasks.items():
            model_card.data.eval_results += _results(figures["tuned"], kind, task, confidence)
        of_benchmarks += _BENCHMARKS.format(
            version=record["harness"],
            confidence=confidence,
            rows="\n".join(
                row for task, figures in tasks.items() for row in _rows(figures, f"{task}: ")
            ),
        )
    scored = [task for task in TASKS.values() if task.scored in evaluation]
    own = (task for task in scored if task.section_name in lineage["training"])
    task = next(own, scored[0])
    prompt = _MESSAGES if (model / "chat_template.jinja").is_file() else _PROMPT
    model_card.text = (
        model_card.text.rstrip()
        + "\n"
        + _EVALUATION.format(
            pipeline=kind,
            place=cfg["place"],
            example=task.example or MODALITIES[task.modality].example or prompt,
            number=f"{evaluation[task.scored]:,} {task.scored}",
            confidence=evaluation["confidence"],
            overlaps="".join(f"\n{line}." for line in overlap_messages(evaluation)),
            rows="\n".join(_rows(evaluation)),
            benchmarks=of_benchmarks,
            checks=_checks([*read_proof(model), *evaluation.get("proof", ())]),
            inputs="\n".join(
                f"| {name} | `{digest}` |" for name, digest in lineage["inputs"].items()
            ),
        )
    )
    model_card.save(output)
    say(f"card of {cfg['run']}: {output}")


def _checks(records: list[dict[str, Any]]) -> str:
    """The comparisons with plain libraries; nothing without any."""
    line = summary(records)
    if line is None:
        return ""
    rows = (
        [one["of"], one["what"], *(_cell(one[side]) for side in ("here", "plain"))]
        for one in records
        if one["skipped"] is None
    )
    return _CHECKS.format(summary=line, rows="\n".join(f"| {' | '.join(row)} |" for row in rows))


def _cell(value: Any) -> str:
    """A value in a table: of one line, and without what ends a cell."""
    return " ".join(short(value).split()).replace("|", "\\|")


def _results(
    figures: dict[str, Any], task: str, dataset: str, confidence: float
) -> Iterator[EvalResult]:
    for metric, figure in figures.items():
        yield EvalResult(
            task_type=task,
            dataset_type=dataset,
            dataset_name=dataset,
            dataset_split="test",
            metric_type=metric,
            metric_value=figure["value"],
            metric_config=f"{confidence:.0%} interval: {_interval(figure)}",
        )


def _rows(figures: dict[str, Any], label: str = "") -> Iterator[str]:
    for metric, before in figures["base"].items():
        after = figures["tuned"][metric]
        cells = (f"{each['value']:.4g} {_interval(each)}" for each in (before, after))
        yield f"| {label}{metric} | {' | '.join(cells)} |"


def _interval(figure: dict[str, float]) -> str:
    return f"[{figure['low']:.4g}, {figure['high']:.4g}]"
