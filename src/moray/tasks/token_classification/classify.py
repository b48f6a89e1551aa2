"""Tag the words of a few held-out texts with a run's model and its base."""

from pathlib import Path
from typing import Any

import numpy as np

from moray.console import say
from moray.corpus.dataset import words_of
from moray.evaluate.classification import (
    answers_for_samples,
    documents_at,
    rows_to_classify,
    seal_samples,
    write_samples,
)
from moray.provenance.manifest import read_manifest
from moray.rows.store import StoredRows
from moray.tasks.classification.evaluation import says_nothing
from moray.tasks.token_classification.evaluation import (
    CLASSIFIER,
    prior_answers,
    tags_said,
    true_tags,
)
from moray.tasks.token_classification.tokenize_labelled import read_tags


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
    """Write `samples.jsonl`: texts, their words, the tags of these, and what both models say.

    Args:
        documents: the Parquet file of the test split.
    """
    manifest, split, every = read_manifest(store), StoredRows(store, "test"), read_tags(store)
    names, numbers = manifest["label_names"], rows_to_classify(split, cfg["num_samples"])
    rows, tags = split.rows[numbers], [every[number] for number in numbers]
    asked = {"tuned": tuned} if says_nothing(base) else {"base": base, "tuned": tuned}
    answers = answers_for_samples(CLASSIFIER, run, asked, store, output, cfg, execution, code)
    answers = {"base": prior_answers(manifest, rows), **answers}
    truth = true_tags(tags)
    said = {of: tags_said(answers[of], rows, tags, names) for of in ("base", "tuned")}
    columns = {"label": truth, **said}
    samples = []
    for place, document in enumerate(documents_at(documents, numbers)):
        words = words_of(document)
        sample = {"text": " ".join(words), "tokens": words} | {
            # Nothing is said of a word without tokens if there is no O.
            name: [names[tag] if tag >= 0 else None for tag in column[place]]
            for name, column in columns.items()
        }
        samples.append(sample)
    write_samples(output, samples)
    seal_samples(settings, cfg, (base, tuned, store))
    flat = np.concatenate(truth)
    before, after = (
        (flat == np.concatenate(said[of])).mean() if len(flat) else 0 for of in ("base", "tuned")
    )
    say(
        f"{run}: {len(samples)} texts, {before:.1%} of the words right before training, "
        f"{after:.1%} after"
    )
