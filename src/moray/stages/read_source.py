"""Read a source into rows on disk, one part after another, on several cores."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from moray.console import progress
from moray.corpus.bad_rows import BadRows
from moray.corpus.findings import Findings
from moray.corpus.sources import OpenSource
from moray.corpus.staging import StagedRows, Staging
from moray.errors import UserError
from moray.rows.journal import INTERRUPTIONS, Journal
from moray.workers.pool import PARSE, Pool, open_pool

# To count bad rows, a source is read on to so many rows, which takes seconds.
_MOST_COUNTED = 100_000

Line = dict[str, Any]
"""The line of a part in the journal: its numbers of `rows` and `bytes`, and its `findings`."""


def read_source(
    source: OpenSource,
    staging: Staging,
    folder: Path,
    journal: Journal,
    places: Mapping[str, str],
    execution: Mapping[str, Any] | None,
) -> tuple[StagedRows, int, Findings]:
    """Write the rows of each split to a file; those of parts in the journal are there already.

    Returns:
        The rows, their number, and what was found out about them.

    Args:
        folder: that of the dataset.
        places: what errors call each split.
        execution: see `layout.dataset_execution`; None to use this process alone.

    Raises:
        UserError: if rows can't be read, a split has none, or Ray can't be used.
    """
    rows = StagedRows(folder, source.splits)
    findings, num_rows = Findings(BadRows("drop")), Counter[str]()
    refuses = source.bad_rows == "refuse"
    known = [*chain.from_iterable(map(journal.lines, source.splits))]
    unit, key, scale = "MB", "bytes", 1e-6
    if not source.num_bytes:
        unit, key, scale = source.survey.noun if source.survey else "row", "rows", 1
    with open_pool(execution, PARSE, source.num_bytes) as pool:
        new = progress(
            _read(source, staging, rows, journal, pool),
            f"download {folder.name}",
            unit,
            source.num_bytes * scale,
            scale * sum(line[key] for line in known),
            lambda line: scale * line[key],
        )
        for line in chain(known, new):
            findings.update(line["findings"])
            num_rows[line["split"]] += line["rows"]
            if refuses and num_rows.total() + len(findings.bad_rows) >= _MOST_COUNTED:
                findings.bad_rows.refuse(num_rows.total(), are_all=False)
    if refuses:
        findings.bad_rows.refuse(num_rows.total(), are_all=True)
    for split, place in places.items():
        if not num_rows[split]:
            findings.bad_rows.check(f"datasets.{folder.name}", 0, source.max_bad_rows)
            raise UserError(place, "got no rows", "add some")
    return rows, num_rows.total(), findings


def _read(
    source: OpenSource, staging: Staging, rows: StagedRows, journal: Journal, pool: Pool
) -> Iterator[Line]:
    """Yield the line of each part that the journal doesn't have, after it was written."""
    for split in source.splits:
        lines = journal.lines(split)
        sizes = lines[-1]["sizes"] if lines else {}
        parts = islice(source.splits[split](), len(lines), None)
        with ExitStack() as stack:
            files = dict[str, BinaryIO]()
            for end, path in rows.files(split).items():
                files[end] = stack.enter_context(path.open("ab"))
                files[end].truncate(sizes.get(path.name, 0))
            try:
                for staged in pool.map(staging, ((split, part) for part in parts)):
                    for end, stream in staged.streams.items():
                        files[end].write(stream)
                    line = {
                        "rows": staged.rows,
                        "bytes": staged.num_bytes,
                        "findings": staged.findings,
                        "sizes": {Path(file.name).name: file.tell() for file in files.values()},
                    }
                    journal.add(split, line, files.values())
                    yield {"split": split, **line}
            except INTERRUPTIONS:
                journal.flush(files.values())
                raise
            journal.flush(files.values())
