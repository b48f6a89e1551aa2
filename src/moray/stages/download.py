"""Read a dataset from its source, split it, and write it as Parquet."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from moray.config import extras
from moray.config.schema.base import Proofs
from moray.config.schema.datasets import Dataset
from moray.console import progress, say
from moray.corpus.bad_rows import BadRows
from moray.corpus.contradictions import Contradictions
from moray.corpus.copies import Copies, Copy, ExactCopies
from moray.corpus.dataset import Document, group_of, write_dataset
from moray.corpus.remarks import count_repeated_prompts
from moray.corpus.sources import OpenSource, open_source
from moray.corpus.split import Documents, by_hash, by_tail
from moray.errors import UserError
from moray.hub import explain_refusals
from moray.proofs.comparison import collect, conclude, write_proof
from moray.proofs.dataset import compare_dataset
from moray.provenance.manifest import DATASET, atomic_folder

_DATASET: TypeAdapter[Dataset] = TypeAdapter(Dataset)


def download(
    output: Path,
    cfg: dict[str, Any],
    files: dict[str, Any] | None = None,
    proofs: Proofs = "refuse",
) -> None:
    """Write `train.parquet`, `validation.parquet`, `test.parquet` and `dataset.json`.

    Args:
        cfg: the dataset's section of the config; `state`, what its rows depend on besides.
        files: for `source: files`, the files of each split.
        proofs: what follows if plain readers find other rows.

    Raises:
        UserError: if its documents can't be read, or none are left to train or to test on.
    """
    section = _DATASET.validate_python({key: cfg[key] for key in cfg if key != "state"})
    began = time.monotonic()
    duplicates, blanks, related = Counter[str](), Counter[str](), Counter[str]()
    repeats, contradictions, near = Counter[str](), Contradictions(), Counter[Copy]()
    with (
        explain_refusals(f"datasets.{output.name}", str(cfg.get("repo_id"))),
        atomic_folder(output),
        open_source(section, files or {}, output) as source,
    ):
        places = {split: _place(split, files or {}, output.name) for split in source.splits}
        survey, bad_rows = source.survey, source.bad_rows
        key = f"datasets.{output.name}.bad_rows"
        splits = {
            split: partial(_some, source.splits[split], places[split], bad_rows, key)
            for split in places
        }
        validation = 0.0 if "validation" in splits else section.validation_share
        test = 0.0 if "test" in splits else section.test_share
        tail = getattr(section, "split_by", "hash") == "tail"
        if tail:
            rows = by_tail(splits, validation, test, blanks)
        else:
            counters = duplicates, blanks, related, contradictions
            rows = by_hash(splits, validation, test, *counters, _copies(section, output), near)
        if survey:
            survey.check(f"datasets.{output.name}")
            rows = survey.follow(rows)
        rows = count_repeated_prompts(_complete(rows, places, duplicates, blanks), repeats)
        documents = progress(rows, f"download {output.name}", survey.noun if survey else "row")
        origin = {
            "source": section.source,
            **source.origin,
            "duplicates": duplicates,
            "blanks": blanks,
        }
        description = write_dataset(
            output,
            documents,
            section.format,
            origin,
            partial(_facts, source, near),
            source.keeps_groups,
        )
        valid = sum(part["rows"] for part in description["splits"].values())
        valid += duplicates.total() + blanks.total() + near.total()
        bad_rows.check(key, valid)
        if source.columns:
            columns = getattr(section, "columns", {})
            source.columns.check(columns, f"datasets.{output.name}.columns")
        if proofs != "off":
            seconds = time.monotonic() - began
            comparisons = collect(
                "rows",
                lambda: compare_dataset(
                    output,
                    description,
                    files or {},
                    seconds,
                    by_rows=section.source == "files" and not tail,
                    apart=not tail and len(source.splits) == 1,
                ),
            )
            proof = conclude(comparisons, proofs, f"datasets.{output.name}")
            write_proof(output, proof, [output / DATASET])
    parts = description["splits"].items()
    counts = ", ".join(f"{split} {part['rows']:,}" for split, part in parts)
    size = sum(part["bytes"] for _, part in parts) / 1e6
    what = survey.summary if survey else f"rows, {size:.1f} MB"
    left_out = "".join(
        f", {counter.total():,} {kind} dropped"
        for kind, counter in (("duplicates", duplicates), ("blank documents", blanks))
        if counter
    )
    say(f"dataset {output.name}: {counts} {what}{left_out}{_near_copies(near)}")
    has_answers = section.format != "text"
    if source.columns and (note := source.columns.line_about_columns(output.name, has_answers)):
        say(note)
    for line in source.remarks.lines(output.name):
        say(line)
    num_rows = sum(part["rows"] for _, part in parts)
    # In a few rows, it may be the answer, as in corrections of texts.
    if repeats.total() > num_rows / 2:
        say(
            f"warning: dataset {output.name}: in {repeats.total():,} of {num_rows:,} rows, the "
            "answer begins with the whole prompt, which is then there twice; if the answer doesn't "
            "have to repeat it, remove it there, or read the answers as format: text"
        )
    for line in survey.lines(output.name) if survey else ():
        say(line)
    for line in contradictions.lines(output.name):
        say(line)
    for split, number in related.items():
        if number:
            say(
                f"dataset {output.name}: {number:,} of {description['splits'][split]['rows']:,} "
                f"{split} rows share their prompt or group with rows to train on"
            )
    for reason in bad_rows.facts()["bad_rows"]:
        say(
            f"dataset {output.name}: {reason['rows']:,} bad row{'s' * (reason['rows'] != 1)} "
            f"dropped, the first in {reason['first']}: {reason['problem']}"
        )


def _copies(section: Dataset, folder: Path) -> Copies | None:
    """What finds the copies within train that a section asks to leave out."""
    way = getattr(section, "deduplicate", "held-out")
    if way == "held-out":
        return None
    if way == "exact":
        return ExactCopies()
    copies: Copies = extras.part(extras.COPIES[way], "min_hash").NearCopies(folder)
    return copies


def _near_copies(near: Counter[Copy]) -> str:
    """The part of the line about a dataset about near copies."""
    if not near:
        return ""
    of_held_out = near[Copy.NEAR_HELD_OUT]
    return f", {near.total():,} near copies dropped" + (
        f", {of_held_out:,} of them of rows that are held out" if of_held_out else ""
    )


def _facts(source: OpenSource, near: Counter[Copy]) -> dict[str, Any]:
    """What the task learnt; of tables, near copies, bad rows and columns that aren't used."""
    learnt = source.survey.facts() if source.survey else {}
    if near:
        kinds = {"train": Copy.NEAR, "held_out": Copy.NEAR_HELD_OUT}
        learnt |= {"near_copies": {of: near[kind] for of, kind in kinds.items()}}
    if source.survey and not source.columns:
        return learnt
    unused = source.columns.unused() if source.columns else []
    return learnt | source.bad_rows.facts() | ({"unused_columns": unused} if unused else {})


def _place(split: str, files: Mapping[str, Any], name: str) -> str:
    """The place of a split's documents for errors: their file, or the dataset."""
    own = files.get(split, ())
    return str(own[0]) if len(own) == 1 else f"datasets.{name}"


def _some(documents: Documents, place: str, bad_rows: BadRows, key: str) -> Iterator[Document]:
    """The documents of a split that the source has, of which there must be one."""
    empty = True
    for document in documents():
        empty = False
        yield document
    if empty:
        bad_rows.check(key, 0)
        raise UserError(place, "got no rows", "add some")


def _complete(
    rows: Iterator[tuple[str, Document]],
    places: Mapping[str, str],
    duplicates: Counter[str],
    blanks: Counter[str],
) -> Iterator[tuple[str, Document]]:
    """The rows, of which some must be left to train and to test on."""
    counts, groups = Counter[str](), set[str]()
    for split, document in rows:
        counts[split] += 1
        if len(groups) < 2:
            groups.add(group_of(document))
        yield split, document
    if len(counts) == len(groups) == 1 and counts.total() > 1:
        raise UserError(
            places["train"],
            f"all {counts.total():,} rows share their prompt or group, so all are in one split",
            "name a column whose values differ under columns.group, or give a file for test",
        )
    for split in ("train", "test"):
        if split not in counts:
            raise UserError(
                places.get(split, places["train"]),
                f"no row is left for {split} ({duplicates[split]} duplicates and {blanks[split]} "
                "blank rows were dropped)",
                "add rows that are in no other split, or change the shares; rows of the same "
                "prompt or group are all in one",
            )
