"""Tokenise a dataset of texts with labels once: a row is one text, cut to `data.block_size`.

A row has the field `label`: the number of the class, a one for each class that a text has, or a
number to predict; and `types` if the tokenizer tells two texts of a row apart. Zeros are padding.
"""

import threading
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer

from moray.console import say
from moray.corpus.dataset import (
    SPLITS,
    Document,
    group_of,
    read_documents,
)
from moray.errors import UserError
from moray.model.folder import LOCAL
from moray.provenance.manifest import write_manifest
from moray.rows.store import Counts, Record, Rows, RowsWriter, describe, map_file, write_groups
from moray.stages.store import MakeWindow, OpenStore, open_store
from moray.tasks.classification.classifier import config_of, names_of
from moray.tasks.classification.survey import MULTI, REGRESSION, SINGLE, names_in

TRUNCATION = threading.Lock()
"""For each use of a tokenizer that may cut texts, as that is a state of it which threads share."""


def tokenize_labelled(
    dataset: Path,
    model: Path,
    output: Path,
    cfg: dict[str, Any],
    code: str = "",
    execution: dict[str, Any] | None = None,
) -> None:
    """Write the store of a dataset's three splits, and its manifest.

    A store of the same rows, model, settings and code that a killed process has begun is continued.

    Args:
        code, execution: as of `open_store`.

    Raises:
        UserError: if a text has a label that the model doesn't have, or rows are too long for it.
    """
    tokenizer, config = AutoTokenizer.from_pretrained(model, **LOCAL), config_of(model)
    problem, size = config.problem_type, cfg["block_size"]
    names = [] if problem == REGRESSION else names_of(config)
    check_size(size, tokenizer, config)
    shapes = {SINGLE: ("<u4", ()), MULTI: ("<f4", (len(names),)), REGRESSION: ("<f4", ())}
    fields: list[Any] = [("tokens", "<u4", (size,)), ("length", "<u4"), ("label", *shapes[problem])]
    if "token_type_ids" in tokenizer.model_input_names:
        fields.insert(1, ("types", "u1", (size,)))
    record, path = np.dtype(fields), f"datasets.{dataset.name}"
    make = partial(_make_window, tokenizer=tokenizer, names=names, record=record, path=path)
    with open_store(dataset, model, output, cfg, code, execution) as store:
        facts = {split: _write(dataset / f"{split}.parquet", store, make) for split in SPLITS}
        trained = map_file(output / "train.rows", record, (facts["train"]["rows"],))
        held_out = chain.from_iterable(read_documents(dataset / "test.parquet"))
        write_groups(output, "test", map(group_of, held_out))
        write_manifest(
            output,
            task="classification",
            record=describe(record),
            problem_type=problem,
            label_names=names,
            # What a model knows that sees no text: how many texts have each label, or their mean.
            prior=_prior(trained["label"], problem, len(names)),
            block_size=size,
            recipe={**cfg, "format": "classification"},
            splits=facts,
        )
    rows, cut = (sum(one[key] for one in facts.values()) for key in ("rows", "cut_documents"))
    of = f"{len(names)} classes" if names else "a number each"
    say(f"tokens {output.name}: {rows:,} texts of {of}, {cut:,} of them cut to {size} tokens")


def check_size(size: int, tokenizer: Any, config: Any) -> None:
    """Refuse more tokens of a text than the tokenizer and the model's positions have.

    Raises:
        UserError: if they have fewer.
    """
    most = getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length
    if config.model_type in ("camembert", "roberta", "xlm-roberta"):
        # Their positions begin behind that of padding.
        most -= config.pad_token_id + 1
    most = int(min(most, tokenizer.model_max_length))
    if size > most:
        what = f"makes sequences of {size} tokens, expected at most {most}, the model's maximum"
        raise UserError("data.block_size", what, "lower it or choose another model")


def _write(file: Path, store: OpenStore, make: MakeWindow[tuple[Rows, int]]) -> dict[str, Any]:
    with RowsWriter(store.folder, file.stem, journal=store.journal) as writer:
        for _, (rows, cut) in store.windows(file, make, writer, f"tokenize {store.folder.name}"):
            writer.add(rows, len(rows), Counts({("cut_documents",): cut}))
        return {**writer.facts(), "cut_documents": writer.counts["cut_documents",]}


def _make_window(
    documents: list[Document],
    first_document: int,
    tokenizer: Any,
    names: list[str],
    record: Record,
    path: str,
) -> tuple[Rows, int]:
    """The rows of documents, and how many of them were cut."""
    rows = np.zeros(len(documents), record)
    rows["tokens"] = tokenizer.pad_token_id
    rows["label"] = [_label(one, names, record, path) for one in documents]
    with TRUNCATION:
        return rows, sum(map(partial(_fill, tokenizer=tokenizer), rows, documents))


def _label(document: Document, names: list[str], record: Record, path: str) -> Any:
    """The label of a text, as a row has it."""
    label = document["label"]
    if not names:
        return float(label)
    several = (names_in(label) or []) if record["label"].shape else [label]
    if others := [name for name in several if name not in names]:
        what = f"got label {others[0]}, which isn't a class of the model"
        raise UserError(path, what, "set classes_of of the model to it")
    if not record["label"].shape:
        return names.index(label)
    return [float(name in several) for name in names]


def _fill(row: NDArray[np.void], document: Document, tokenizer: Any) -> bool:
    """Write the tokens of a text into a row; returns whether it was cut."""
    texts, size = (document["text"], document["text_pair"]), len(row["tokens"])
    found = tokenizer(*texts, truncation=True, max_length=size)
    tokens = found["input_ids"]
    row["tokens"][: len(tokens)], row["length"] = tokens, len(tokens)
    if "types" in (row.dtype.names or ()):
        row["types"][: len(tokens)] = found["token_type_ids"]
    return len(tokens) == size < len(tokenizer(*texts, verbose=False)["input_ids"])


def _prior(labels: NDArray[Any], problem: str, classes: int) -> Any:
    if problem == REGRESSION:
        return float(labels.astype(np.float64).mean())
    if problem == MULTI:
        return labels.astype(np.int64).sum(0).tolist()
    return np.bincount(labels.astype(np.int64), minlength=classes).tolist()
