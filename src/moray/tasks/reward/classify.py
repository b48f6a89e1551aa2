"""Give rewards to a few held-out pairs with a run's model and its base."""

from pathlib import Path
from typing import Any

from moray.console import say
from moray.corpus.dataset import Document, halves, messages_of
from moray.evaluate.classification import (
    answers_for_samples,
    documents_at,
    rows_to_classify,
    seal_samples,
    write_samples,
)
from moray.rows.store import StoredRows
from moray.tasks.classification.evaluation import says_nothing
from moray.tasks.reward.evaluation import judge

_KEYS = ("chosen", "rejected")


def classify(
    run: str,
    base: Path,
    tuned: Path,
    store: Path,
    documents: Path,
    output: Path,
    settings: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    code: str = "",
) -> None:
    """Write `samples.jsonl`: pairs, and the rewards that both models give.

    Args:
        documents: the Parquet file of the test split.
    """
    rows = StoredRows(store, "test")
    rows_shown = rows.rows[rows_to_classify(rows, cfg["num_samples"])]
    asked = {"tuned": tuned} if says_nothing(base) else {"base": base, "tuned": tuned}
    answers = answers_for_samples(judge(), run, asked, store, output, cfg, execution, code)
    samples, right = [], 0
    for place, document in enumerate(documents_at(documents, rows_shown["document"])):
        sample: dict[str, Any] = _shown(document)
        if margin := float(rows_shown["margin"][place]):
            sample["margin"] = margin
        for name in ("base", "tuned"):
            given = answers[name][place].tolist() if name in answers else None
            sample[name] = given and dict(zip(_KEYS, (round(one, 4) for one in given), strict=True))
        right += sample["tuned"]["chosen"] > sample["tuned"]["rejected"]
        samples.append(sample)
    write_samples(output, samples)
    seal_samples(settings, cfg, (base, tuned, store))
    say(f"{run}: the chosen text gets more in {right} of {len(rows_shown)} pairs")


def _shown(document: Document) -> dict[str, str]:
    """The texts of a pair; of conversations, what they share is the prompt."""
    if (prompt := document.get("prompt")) is not None:
        return {"prompt": prompt, **{key: document[key] for key in _KEYS}}  # type: ignore[literal-required]
    talks = [messages_of(half) for half in halves(document)]
    same = [one == other for one, other in zip(*talks, strict=False)]
    shared = (*same, False).index(False)
    answers = {key: _spelled(talk[shared:]) for key, talk in zip(_KEYS, talks, strict=True)}
    return {"prompt": _spelled(talks[0][:shared]), **answers}


def _spelled(messages: list[dict[str, Any]]) -> str:
    return "\n\n".join(f"{one['role']}: {one.get('content') or ''}" for one in messages)
