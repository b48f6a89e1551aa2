"""Give rewards to a few held-out pairs with a run's model and its base."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

from moray.console import say
from moray.corpus.dataset import Document, halves, messages_of, read_documents
from moray.evaluate.classification import answers_for_samples, rows_to_classify
from moray.provenance.lineage import write_sealed
from moray.provenance.manifest import MANIFEST
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
) -> None:
    """Write `samples.jsonl`: pairs, and the rewards that both models give.

    Args:
        documents: the Parquet file of the test split.
    """
    rows = StoredRows(store, "test")
    rows_shown = rows.rows[rows_to_classify(rows, cfg["num_samples"])]
    asked = {"tuned": tuned} if says_nothing(base) else {"base": base, "tuned": tuned}
    answers = answers_for_samples(judge(), run, asked, store, output, cfg, execution)
    places = {int(number): place for place, number in enumerate(rows_shown["document"])}
    right = 0
    with output.open("w") as file:
        for number, document in enumerate(chain.from_iterable(read_documents(documents))):
            if (place := places.get(number)) is None:
                continue
            sample: dict[str, Any] = _shown(document)
            if margin := float(rows_shown["margin"][place]):
                sample["margin"] = margin
            for name in ("base", "tuned"):
                given = answers[name][place].tolist() if name in answers else None
                sample[name] = given and dict(
                    zip(_KEYS, (round(one, 4) for one in given), strict=True)
                )
            right += sample["tuned"]["chosen"] > sample["tuned"]["rejected"]
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")
    inputs = [folder / MANIFEST for folder in (base, tuned, store)]
    write_sealed(settings, dict(sorted(cfg.items())), inputs)
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
