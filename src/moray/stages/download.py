"""Read a dataset from its source, split it, and write it as Parquet."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from moray.config import extras
from moray.config.schema.base import Proofs
from moray.config.schema.datasets import Dataset
from moray.console import progress, say
from moray.corpus.contradictions import Contradictions
from moray.corpus.copies import Copies, Copy, ExactCopies
from moray.corpus.dataset import SPLITS, documents_of
from moray.corpus.findings import Findings
from moray.corpus.sources import OpenSource, Survey, open_source
from moray.corpus.split import Counts, Divided, by_hash, by_tail
from moray.corpus.staging import (
    Fact,
    Sketches,
    Staging,
    digests,
    numbers,
    without_facts,
)
from moray.corpus.writer import DatasetWriter, SplitFacts, describe
from moray.errors import UserError
from moray.hub import explain_refusals
from moray.proofs.comparison import collect, conclude, write_proof
from moray.proofs.dataset import compare_dataset
from moray.provenance.manifest import DATASET, fingerprint
from moray.rows.journal import resumable_folder
from moray.stages.read_source import read_source

# Keys that say how tables are written, and how much of them is read.
_WRITTEN = ("delimiter", "encoding", "max_rows")
# Of more rows, copies are only looked for if they are dropped: they take memory.
_MOST_COUNTED = 1_000_000
# Of fewer rows, an accuracy says little.
_FEW = 30
_DATASET: TypeAdapter[Dataset] = TypeAdapter(Dataset)


def download(
    output: Path,
    cfg: dict[str, Any],
    files: dict[str, Any] | None = None,
    proofs: Proofs = "refuse",
    code: str = "",
    execution: Mapping[str, Any] | None = None,
) -> None:
    """Write `train.parquet`, `validation.parquet`, `test.parquet` and `dataset.json`.

    A dataset of the same settings, files and code that a killed process was reading is continued.

    Args:
        cfg: the dataset's section of the config; `state`, what its rows depend on besides.
        files: for `source: files`, the files of each split.
        proofs: what follows if plain readers find other rows.
        code: the version of what decides on the rows.
        execution: see `layout.dataset_execution`; None to use this process alone.

    Raises:
        UserError: if its documents can't be read, or none are left to train or to test on.
    """
    section = _DATASET.validate_python({key: cfg[key] for key in cfg if key != "state"})
    name, files = output.name, files or {}
    began = time.monotonic()
    with (
        explain_refusals(f"datasets.{name}", str(cfg.get("repo_id"))),
        resumable_folder(output, _key(cfg, files, code), "part") as journal,
        open_source(section, files, output) as source,
    ):
        places = {split: _place(split, files, name) for split in source.splits}
        if source.survey:
            source.survey.check(f"datasets.{name}")
        validation = 0.0 if "validation" in places else section.validation_share
        test = 0.0 if "test" in places else section.test_share
        tail = getattr(section, "split_by", "hash") == "tail"
        shares = (0.0, 0.0) if tail else (validation, test)
        keeps_groups, sketches = source.keeps_groups, _sketches(section)
        staging = Staging(section.format, keeps_groups, *shares, sketches, source.look)
        rows, num_rows, findings = read_source(source, staging, output, journal, places, execution)
        counts, contradictions = Counts(), Contradictions(rows)
        if tail:
            divided = by_tail(rows, counts, staging, validation, test)
        else:
            copies = _copies(section, output)
            # Only to count them.
            counted = ExactCopies() if copies is None and num_rows <= _MOST_COUNTED else None
            divided = by_hash(rows, counts, copies or counted, keeps_copies=copies is None)
        writer = DatasetWriter(output, section.format, keeps_groups)
        shown = progress(
            divided, f"divide {name}", "row", num_rows, units_of=lambda one: len(one[0])
        )
        num_repeats = _write(
            shown, writer, source.survey, places, counts, _can_cut(section, source)
        )
        splits = writer.close()
        num_rows = sum(split["rows"] for split in splits.values())
        dropped = counts.duplicates.total() + counts.blanks.total() + counts.near.total()
        facts = {
            "source": section.source,
            **source.origin,
            "duplicates": counts.duplicates,
            "blanks": counts.blanks,
            **_facts(source, findings, counts.near),
        }
        description = describe(output, section.format, splits, facts)
        findings.bad_rows.check(f"datasets.{name}", num_rows + dropped, source.max_bad_rows)
        if source.has_columns:
            columns = getattr(section, "columns", {})
            findings.columns.check(columns, f"datasets.{name}.columns")
        if proofs != "off":
            compared = partial(
                compare_dataset,
                output,
                description,
                files,
                seconds=time.monotonic() - began,
                by_rows=section.source == "files" and not tail,
                written={key: cfg[key] for key in _WRITTEN if key in cfg},
                apart=not tail and len(source.splits) == 1,
            )
            proof = conclude(collect("rows", compared), proofs, f"datasets.{name}")
            write_proof(output, proof, [output / DATASET])
        rows.remove()
    for line in chain(
        _lines(name, section, source, splits, findings, counts, num_repeats),
        contradictions.lines(name),
        _lines_about_rows(name, splits, findings, counts),
    ):
        say(line)


def _key(cfg: Mapping[str, Any], files: Mapping[str, Any], code: str) -> str:
    """The key of the rows of a source; files that a rule makes count by their times."""
    stats = [(str(path), Path(path).stat()) for some in files.values() for path in some]
    times = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    return fingerprint([cfg, times, code], [])


def _place(split: str, files: Mapping[str, Any], name: str) -> str:
    """The place of a split's documents for errors: their file, or the dataset."""
    own = files.get(split, ())
    return str(own[0]) if len(own) == 1 else f"datasets.{name}"


def _sketches(section: Dataset) -> Sketches | None:
    """What makes the sketches of rows by which a section's way finds copies, if it does so."""
    way = getattr(section, "deduplicate", "held-out")
    if way not in extras.COPIES:
        return None
    sketches: Sketches = extras.part(extras.COPIES[way], "min_hash").sketches
    return sketches


def _can_cut(section: Dataset, source: OpenSource) -> bool:
    """Whether `split_by: tail` can take the place of what a section says."""
    return (
        getattr(section, "split_by", "") == "hash"
        and section.format == "text"
        and "group" not in getattr(section, "columns", {})
        and getattr(section, "deduplicate", "") == "held-out"
        and [*source.splits] == ["train"]
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


def _write(
    divided: Divided,
    writer: DatasetWriter,
    survey: Survey | None,
    places: Mapping[str, str],
    counts: Counts,
    can_cut: bool,
) -> int:
    """Write rows to their splits; returns the number of those whose answers repeat their prompt.

    Args:
        survey: notes them.
        can_cut: whether the text of a document can be in several splits, if the user likes.

    Raises:
        UserError: if none are left to train or to test on.
    """
    num_rows, groups, num_repeats = Counter[str](), set[bytes](), 0
    for table, numbers_of_splits in divided:
        if survey:
            documents = documents_of(without_facts(table))
            for number, document in zip(numbers_of_splits.tolist(), documents, strict=True):
                survey.note(SPLITS[number], document)
        num_repeats += int(numbers(table, Fact.REPEATS_PROMPT).sum())
        if len(groups) < 2:
            groups.update(digests(table, Fact.GROUP).tolist())
        sizes = numbers(table, Fact.BYTES)
        for number, times in Counter(numbers_of_splits.tolist()).items():
            own = numbers_of_splits == number
            writer.add(SPLITS[number], table.filter(pa.array(own)), sizes[own])
            num_rows[SPLITS[number]] += times
    _check_splits(num_rows, len(groups), places, counts, can_cut)
    return num_repeats


def _check_splits(
    num_rows: Counter[str],
    num_groups: int,
    places: Mapping[str, str],
    counts: Counts,
    can_cut: bool,
) -> None:
    """Check that rows are left to train and to test on.

    Args:
        num_groups: number of different groups; if there are several, 2 or more.
    """
    if len(num_rows) == num_groups == 1 and num_rows.total() > 1:
        raise UserError(
            places["train"],
            f"all {num_rows.total():,} rows share their prompt or group, so all are in one split",
            "name a column whose values differ under columns.group, or give a file for test",
        )
    verb = "is" if num_rows.total() == 1 else "are"
    there = f", as hashes divide whole documents, of which there {verb} {num_rows.total():,}"
    whole = there if can_cut else ""
    for split in ("train", "test"):
        if split not in num_rows:
            raise UserError(
                places.get(split, places["train"]),
                f"no row is left for {split}{_dropped(split, counts)}{whole}",
                "set split_by: tail to hold out the end of the text, or add documents"
                if can_cut
                else "add rows that are in no other split, or change the shares; rows of the same "
                "prompt or group are all in one",
            )


def _dropped(split: str, counts: Counts) -> str:
    """What was dropped of a split, in brackets."""
    numbers = {"duplicate": counts.duplicates[split], "blank row": counts.blanks[split]}
    parts = [_number(number, noun) for noun, number in numbers.items() if number]
    verb = "was" if sum(numbers.values()) == 1 else "were"
    return f" ({' and '.join(parts)} {verb} dropped)" if parts else ""


def _facts(source: OpenSource, findings: Findings, near: Counter[Copy]) -> dict[str, Any]:
    """What the task learnt; of tables, near copies, bad rows and columns that aren't used."""
    learnt = source.survey.facts() if source.survey else {}
    if near:
        kinds = {"train": Copy.NEAR, "held_out": Copy.NEAR_HELD_OUT}
        learnt |= {"near_copies": {of: near[kind] for of, kind in kinds.items()}}
    if source.survey and not source.has_columns:
        return learnt
    unused = findings.columns.unused() if source.has_columns else []
    return learnt | findings.bad_rows.facts() | ({"unused_columns": unused} if unused else {})


def _lines(
    name: str,
    section: Dataset,
    source: OpenSource,
    splits: Mapping[str, SplitFacts],
    findings: Findings,
    counts: Counts,
    num_repeats: int,
) -> Iterator[str]:
    """What a user should read about a dataset."""
    sizes = ", ".join(f"{split} {part['rows']:,}" for split, part in splits.items())
    megabytes = sum(part["bytes"] for part in splits.values()) / 1e6
    what = source.survey.summary if source.survey else f"rows, {megabytes:.1f} MB"
    drops_all = getattr(section, "deduplicate", "held-out") != "held-out"
    left_out = "".join(
        f", {_number(counter.total(), *words)} dropped"
        for words, counter in (
            (
                ("duplicate",)
                if drops_all
                else ("copy of held-out rows", "copies of held-out rows"),
                counts.duplicates,
            ),
            (("blank document",), counts.blanks),
        )
        if counter
    )
    yield f"dataset {name}: {sizes} {what}{left_out}{_near_copies(counts.near)}"
    if counts.kept and hasattr(section, "deduplicate"):
        copies = _number(counts.kept.total(), "row", "rows")
        verb = "is a copy of another" if counts.kept.total() == 1 else "are copies of others"
        yield f"dataset {name}: {copies} of train {verb} there; deduplicate: exact drops such rows"
    if delimiters := source.origin.get("delimiters"):
        first, delimiter = next(iter(delimiters.items()))
        more = f" and {len(delimiters) - 1:,} more files" if len(delimiters) > 1 else ""
        yield (
            f"dataset {name}: values are separated by {json.dumps(delimiter)} in {first}{more}, by "
            "the header"
        )
    if source.has_columns:
        has_answers = section.format != "text"
        if line := findings.columns.line_about_columns(name, has_answers):
            yield line
    yield from findings.remarks.lines(name)
    num_rows = sum(part["rows"] for part in splits.values())
    # In a few rows, it may be the answer, as in corrections of texts.
    if num_repeats > num_rows / 2:
        yield (
            f"warning: dataset {name}: in {num_repeats:,} of {num_rows:,} rows, the answer begins "
            "with the whole prompt, which is then there twice; if the answer doesn't have to "
            "repeat it, remove it there, or read the answers as format: text"
        )
    yield from source.survey.lines(name) if source.survey else ()
    yield from _lines_about_few(name, section, source, splits)


def _lines_about_few(
    name: str, section: Dataset, source: OpenSource, splits: Mapping[str, SplitFacts]
) -> Iterator[str]:
    """A line about a test split by which classifiers can hardly be told apart."""
    rows = splits["test"]["rows"]
    if section.format not in ("classification", "images") or not source.survey or rows >= _FEW:
        return
    if not source.survey.facts()["label_names"]:
        return
    # The bound of the exact interval (Clopper and Pearson, 1934) if all answers are right.
    lowest = 0.025 ** (1 / rows)
    advice = "add some" if "test" in source.splits else "raise test_share, or add rows"
    verb = "tells" if rows == 1 else "tell"
    yield (
        f"warning: dataset {name}: {_number(rows, f'test {source.survey.noun}')} {verb} little: "
        f"even of a model without a fault there, the accuracy's 95% interval is {lowest:.2f} to 1; "
        f"{advice}"
    )


def _lines_about_rows(
    name: str, splits: Mapping[str, SplitFacts], findings: Findings, counts: Counts
) -> Iterator[str]:
    for split, number in counts.related.items():
        if number:
            yield (
                f"dataset {name}: {number:,} of {splits[split]['rows']:,} {split} rows share "
                "their prompt or group with rows to train on"
            )
    for reason in findings.bad_rows.facts()["bad_rows"]:
        yield (
            f"dataset {name}: {_number(reason['rows'], 'bad row')} dropped, the first in "
            f"{reason['first']}: {reason['problem']}"
        )


def _number(number: int, one: str, several: str = "") -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def _near_copies(near: Counter[Copy]) -> str:
    """The part of the line about a dataset about near copies."""
    if not near:
        return ""
    of_held_out = near[Copy.NEAR_HELD_OUT]
    return f", {_number(near.total(), 'near copy', 'near copies')} dropped" + (
        f", {of_held_out:,} of them of rows that are held out" if of_held_out else ""
    )
