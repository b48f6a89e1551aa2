"""Rows on their way from a source into a dataset.

Each part of a source becomes two streams of Arrow in files of its split: the columns of the
dataset, and one for each `Fact`. By the latter, rows are divided among splits without reading their
text again.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from moray.config.tasks import FormatName
from moray.corpus.bad_rows import BadRows
from moray.corpus.dataset import (
    SPLITS,
    Document,
    content,
    digest,
    group_of,
    is_blank,
    judgement_of,
)
from moray.corpus.findings import Findings
from moray.corpus.parts import Part
from moray.corpus.remarks import repeats_prompt
from moray.corpus.writer import schema_of

Sketches = Callable[[Sequence[Document]], NDArray[np.uint32]]
"""Makes of each document a few numbers, which those of a near copy mostly equal."""

_DIGEST = pa.binary(16)


@dataclass(frozen=True)
class Look:
    """What a survey needs of each document that isn't in the dataset, and takes long to see.

    Attributes:
        see: adds it to a document; raises a `UserError` if the task can't use it.
        columns: its columns.
    """

    see: Callable[[Document], Document]
    columns: pa.Schema


class Fact(StrEnum):
    """A column of what is known of a row."""

    SPLIT = "_split"
    """The number in `SPLITS` of the split to which its group belongs."""
    IDENTITY = "_identity"
    """The digest of its content."""
    GROUP = "_group"
    """The digest of its group; its identity if nothing else stands for the group."""
    BLANK = "_blank"
    BYTES = "_bytes"
    REPEATS_PROMPT = "_repeats_prompt"
    JUDGED = "_judged"
    """The digest of what is judged; null if nothing is, as in the next column."""
    JUDGEMENT = "_judgement"
    SKETCH = "_sketch"
    """Of those that are looked for among near copies."""


_FACTS = frozenset(Fact)
_COLUMNS, _KNOWN = "columns", "facts"


@dataclass(frozen=True)
class Staged:
    """A part of a source, as it is written.

    Attributes:
        streams: its columns, by the names of their files' ends.
        findings: as JSON.
        num_bytes: how much of the source it is.
    """

    streams: dict[str, pa.Buffer]
    rows: int
    findings: dict[str, Any]
    num_bytes: int


@dataclass(frozen=True)
class Staging:
    """Makes rows of the parts of a source; can be pickled.

    Attributes:
        keep_groups: whether the dataset has the groups.
        validation: share of train to move to validation.
        test: share of train to move to test.
        sketches: None to make none.
        look: None if nothing has to be seen.
    """

    format: FormatName
    keep_groups: bool
    validation: float
    test: float
    sketches: Sketches | None = None
    look: Look | None = None

    def __call__(self, item: tuple[str, Part]) -> Staged:
        """Read a part of a split."""
        split, part = item
        # Those that are refused are counted too, by who reads all parts.
        findings = Findings(BadRows("drop"))
        documents = [*part.documents(findings)]
        if self.look:
            documents = [*map(self.look.see, documents)]
        table = self.table(split, documents)
        facts = [name for name in table.column_names if name in _FACTS]
        streams = {
            _COLUMNS: _as_stream(table.drop_columns(facts)),
            _KNOWN: _as_stream(table.select(facts)),
        }
        return Staged(streams, len(documents), findings.as_json(), part.num_bytes)

    def table(self, split: str, documents: Sequence[Document]) -> pa.Table:
        """The rows of documents that the source has in a split."""
        schema, own = self._columns(), schema_of(self.format, False).names
        columns: dict[str, Any] = {
            name: pa.array([document.get(name) for document in documents], kind)
            for name, kind in zip(schema.names, schema.types, strict=True)
        }
        contents = [*map(content, documents)]
        identities = [*map(digest, contents)]
        groups = [
            identity if (group := group_of(document)) == whole else digest(group)
            for document, whole, identity in zip(documents, contents, identities, strict=True)
        ]
        judgements = [*map(judgement_of, documents, identities)]
        columns |= {
            Fact.SPLIT: pa.array(self._splits(split, groups), pa.uint8()),
            Fact.IDENTITY: pa.array(identities, _DIGEST),
            Fact.GROUP: pa.array(groups, _DIGEST),
            Fact.BLANK: pa.array([*map(is_blank, documents)], pa.bool_()),
            Fact.BYTES: pa.array(_sizes({name: columns[name] for name in own})),
            Fact.REPEATS_PROMPT: pa.array([*map(repeats_prompt, documents)], pa.bool_()),
            Fact.JUDGED: pa.array([judged for judged, _ in judgements], _DIGEST),
            Fact.JUDGEMENT: pa.array([judgement for _, judgement in judgements], _DIGEST),
        }
        if self.sketches:
            sketches = self.sketches(documents)
            kind = pa.binary(sketches.itemsize * sketches.shape[1])
            columns[Fact.SKETCH] = pa.array([row.tobytes() for row in sketches], kind)
        return pa.table(columns)

    def _columns(self) -> pa.Schema:
        schema = schema_of(self.format, self.keep_groups)
        if "image" in schema.names:
            # By which lines about a dataset name an image.
            schema = schema.append(pa.field("place", pa.string()))
        return pa.schema([*schema, *self.look.columns]) if self.look else schema

    def _splits(self, split: str, groups: Sequence[bytes]) -> NDArray[np.uint8]:
        if split != "train":
            return np.full(len(groups), SPLITS.index(split), np.uint8)
        # The first eight bytes of a digest are a number.
        points = np.frombuffer(b"".join(groups), ">u8")[::2] / 2.0**64
        splits = np.full(len(groups), SPLITS.index("train"), np.uint8)
        splits[points < self.test + self.validation] = SPLITS.index("validation")
        splits[points < self.test] = SPLITS.index("test")
        return splits


def _sizes(columns: Mapping[str, pa.Array]) -> NDArray[np.int64]:
    """The bytes of each row without its group, shape (rows,); numbers as text."""
    total: Any = np.int64(0)
    for values in columns.values():
        if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
            sizes = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        else:
            sizes = [len(str(value or "")) for value in values.to_pylist()]
        total = total + np.asarray(sizes, np.int64)
    return np.asarray(total, np.int64)


def _as_stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    return sink.getvalue()


@dataclass(frozen=True)
class StagedRows:
    """The rows of a source's splits in files, one part after another."""

    folder: Path
    splits: Collection[str]

    def files(self, split: str) -> dict[str, Path]:
        """The files of a split, by the names of their ends."""
        return {end: self.folder / f"{split}.{end}.arrow" for end in (_COLUMNS, _KNOWN)}

    def remove(self) -> None:
        """Remove the files."""
        for split in self.splits:
            for file in self.files(split).values():
                file.unlink()

    def facts(self, split: str) -> Iterator[pa.Table]:
        """The parts of a split with what is known of their rows alone."""
        return _streams(self.files(split)[_KNOWN])

    def tables(self, split: str) -> Iterator[pa.Table]:
        """The parts of a split with all columns."""
        columns, known = map(_streams, self.files(split).values())
        for table, facts in zip(columns, known, strict=True):
            for name in facts.column_names:
                table = table.append_column(name, facts[name])
            yield table


def _streams(file: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(file)) as content:
        while content.tell() < content.size():
            yield pa.ipc.open_stream(content).read_all()


def without_facts(rows: pa.Table) -> pa.Table:
    """The columns of documents."""
    return rows.select([name for name in rows.column_names if name not in _FACTS])


def numbers(rows: pa.Table, fact: Fact) -> NDArray[Any]:
    """A column of numbers, shape (rows,)."""
    return np.asarray(rows[fact].to_numpy())


def digests(rows: pa.Table, fact: Fact) -> NDArray[np.bytes_]:
    """A column of values of one size without nulls, shape (rows,)."""
    values = rows[fact].combine_chunks()
    size = values.type.byte_width
    content = values.buffers()[1] or b""
    return np.frombuffer(content, f"S{size}", len(values), size * values.offset)
