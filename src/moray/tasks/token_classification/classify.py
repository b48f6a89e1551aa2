"""Tag the words of a few held-out texts with a run's model and its base."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from moray.console import say
from moray.corpus.dataset import read_documents, words_of
from moray.evaluate.classification import answers_for_samples, rows_to_classify
from moray.provenance.lineage import write_sealed
from moray.provenance.manifest import MANIFEST, read_manifest
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
) -> None:
    """Write `samples.jsonl`: texts, their words, the tags of these, and what both models say.

    Args:
        documents: the Parquet file of the test split.
    """
    manifest, split, every = read_manifest(store), StoredRows(store, "test"), read_tags(store)
    names, numbers = manifest["label_names"], rows_to_classify(split, cfg["num_samples"])
    rows, tags = split.rows[numbers], [every[number] for number in numbers]
    asked = {"tuned": tuned} if says_nothing(base) else {"base": base, "tuned": tuned}
    answers = answers_for_samples(CLASSIFIER, run, asked, store, output, cfg, execution)
    answers = {"base": prior_answers(manifest, rows), **answers}
    truth = true_tags(tags)
    said = {of: tags_said(answers[of], rows, tags, names) for of in ("base", "tuned")}
    chosen = set(numbers.tolist())
    texts = [
        words_of(one)
        for number, one in enumerate(chain.from_iterable(read_documents(documents)))
        if number in chosen
    ]
    with output.open("w") as file:
        for place, words in enumerate(texts):
            columns = {"label": truth, **said}
            sample = {"text": " ".join(words), "tokens": words} | {
                # Nothing is said of a word without tokens if there is no O.
                name: [names[tag] if tag >= 0 else None for tag in column[place]]
                for name, column in columns.items()
            }
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")
    inputs = [folder / MANIFEST for folder in (base, tuned, store)]
    write_sealed(settings, dict(sorted(cfg.items())), inputs)
    flat = np.concatenate(truth)
    before, after = (
        (flat == np.concatenate(said[of])).mean() if len(flat) else 0 for of in ("base", "tuned")
    )
    say(
        f"{run}: {len(texts)} texts, {before:.1%} of the words right before training, "
        f"{after:.1%} after"
    )
