"""Datasets: documents, and how they are read from disk.

A dataset is a folder with a Parquet file for each split, and `dataset.json`, which describes its
source. Row groups are limited in bytes, because later stages hold one in memory at a time.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

import pyarrow as pa
import pyarrow.parquet as pq

SPLITS = ("train", "validation", "test")


class Document(TypedDict, total=False):
    """A row: `text`; `prompt` and `completion`; `messages` with `tools`; a pair; or an image.

    A text can have a label, and a second text beside it. Several labels are a list, as JSON. Words
    with their tags are two lists, as JSON: `tokens` and `tags`.

    A pair is `prompt`, `chosen` and `rejected` as text. If it has no `prompt`, both answers are
    whole conversations like `messages`, in which only the answers are trained on. For a reward
    model, it can have a margin.

    An answer that is good or bad by its `label` is `prompt` and `completion` as text. If it has no
    `prompt`, its `completion` is a whole conversation likewise.

    Messages and tools are JSON strings in OpenAI's format: a column of nested values would need
    one type for all rows, but the arguments of tools have many. An image is the content of a file
    of any type that Pillow reads, and its label is a number. Rows with the same `group` are put
    into the same split, see `group_of`. `place` is where a row comes from, for errors. `height`,
    `width` and `has_several` (frames or pages) are seen of an image.
    """

    text: str
    text_pair: str | None
    prompt: str
    completion: str
    messages: str
    chosen: str
    rejected: str
    tools: str | None
    margin: float | None
    image: bytes
    label: Any
    tokens: str
    tags: str
    group: str
    place: str
    height: int
    width: int
    has_several: bool


def digest(text: str) -> bytes:
    """A 16-byte digest of a text."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def content(document: Document) -> str:
    """The content by which duplicates are recognised."""
    if "image" in document:
        # Each byte becomes the character of the same number.
        return document["image"].decode("latin-1")
    if "text" in document:
        return "\0".join(filter(None, (document["text"], document.get("text_pair"))))
    if "tokens" in document:
        return document["tokens"]
    if "chosen" in document:
        parts = (document.get("prompt"), document["chosen"], document["rejected"])
        return "\0".join(part or "" for part in (*parts, document["tools"]))
    if document.get("prompt") is not None:
        return f"{document['prompt']}\0{document['completion']}"
    spoken = document["completion"] if "completion" in document else document["messages"]
    return f"{spoken}\0{document['tools'] or ''}"


def group_of(document: Document) -> str:
    """The key that documents of one split share: a group, a prompt, or all of their content.

    The prompt of a conversation is what comes before the first answer to the user.
    """
    if "group" in document:
        return document["group"]
    if prompt := document.get("prompt"):
        return prompt
    spoken = next(
        (document[name] for name in ("messages", "chosen", "completion") if name in document), None
    )
    if spoken and document.get("prompt") is None:
        messages = json.loads(spoken)
        from_user = [message["role"] == "user" for message in messages]
        for number, message in enumerate(messages):
            if message["role"] == "assistant" and any(from_user[:number]):
                return json.dumps(messages[:number])
    return content(document)


def judgement_of(document: Document, identity: bytes) -> tuple[bytes, bytes] | tuple[None, None]:
    """The digests of what is judged in a row and of the judgement, if there is one.

    Args:
        identity: the digest of its content.
    """
    if "chosen" in document:
        judgement = str(document["chosen"] < document["rejected"])
        identity = digest(_either_way(document))
    elif "tags" in document:
        judgement = document["tags"]
    elif document.get("label") is not None:
        judgement = str(document["label"])
    else:
        return None, None
    return identity, digest(judgement)


def _either_way(document: Document) -> str:
    """The content of a pair, whichever answer is the better one."""
    first, second = sorted((document["chosen"], document["rejected"]))
    return content(Document(**{**document, "chosen": first, "rejected": second}))


def is_blank(document: Document) -> bool:
    """Whether a text has nothing to learn."""
    if "tokens" in document:
        return not words_of(document)
    return "text" in document and not document["text"].strip()


def plain_text(document: Document) -> str:
    """All text of a document as one string; for a conversation, the content of its messages."""
    if "chosen" in document or ("label" in document and "completion" in document):
        return "\n".join(map(plain_text, answers_of(document)))
    if "messages" in document:
        return "\n".join(message["content"] or "" for message in messages_of(document))
    if "text" in document:
        return "\n".join(filter(None, (document["text"], document.get("text_pair"))))
    if "tokens" in document:
        return " ".join(words_of(document))
    return document.get("prompt", "") + document.get("completion", "")


def words_of(document: Document) -> list[str]:
    """The words of a text, parsed."""
    words: list[str] = json.loads(document["tokens"])
    return words


def tags_of(document: Document) -> list[str]:
    """The tag of each word, parsed."""
    tags: list[str] = json.loads(document["tags"])
    return tags


def messages_of(document: Document) -> list[dict[str, Any]]:
    """The messages of a conversation, parsed."""
    messages: list[dict[str, Any]] = json.loads(document["messages"])
    return messages


def answers_of(document: Document) -> tuple[Document, ...]:
    """Each answer of a document as a document of a language model; others are one themselves."""
    if "chosen" in document:
        return halves(document)
    if "label" not in document or "completion" not in document:
        return (document,)
    if document.get("prompt") is None:
        answer = Document(messages=document["completion"], tools=document["tools"])
    else:
        answer = Document(prompt=document["prompt"], completion=document["completion"])
    if "group" in document:
        answer["group"] = document["group"]
    return (answer,)


def halves(document: Document) -> tuple[Document, Document]:
    """The chosen and the rejected half of a pair, each as a document of a language model."""
    prompt, answers = document.get("prompt"), (document["chosen"], document["rejected"])
    if prompt is None:
        tools = document["tools"]
        chosen, rejected = (Document(messages=answer, tools=tools) for answer in answers)
    else:
        chosen, rejected = (Document(prompt=prompt, completion=answer) for answer in answers)
    if "group" in document:
        chosen["group"] = rejected["group"] = document["group"]
    return chosen, rejected


def tools_of(document: Document) -> list[dict[str, Any]] | None:
    """The tools of a conversation, parsed; None if it has none."""
    tools = document.get("tools")
    return json.loads(tools) if tools else None


class RowError(Exception):
    """A row that isn't a valid document. The caller knows its location and adds it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy


def num_groups(file: Path) -> int:
    """Number of row groups in a split."""
    with pq.ParquetFile(file) as table:
        return int(table.num_row_groups)


def num_bytes(file: Path) -> int:
    """Number of bytes of a split, without compression."""
    return sum(_sizes_of_groups(file))


def share_of_group(file: Path, group: int) -> float:
    """Fraction of a split's bytes that are in a row group."""
    sizes = _sizes_of_groups(file)
    return sizes[group] / sum(sizes)


def _sizes_of_groups(file: Path) -> list[int]:
    metadata = pq.read_metadata(file)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return [int(content.total_byte_size) for content in groups]


def read_group(file: Path, group: int) -> list[Document]:
    """The documents of a row group."""
    with pq.ParquetFile(file) as table:
        return documents_of(table.read_row_group(group))


@dataclass(frozen=True)
class RowGroup:
    """A row group of a split, as it is in the file.

    Attributes:
        first_document: number of its first document in the split.
    """

    table: pa.Table
    first_document: int

    def documents(self) -> list[Document]:
        return documents_of(self.table)


def read_groups(file: Path, start: int = 0) -> Iterator[RowGroup]:
    """The row groups of a split, from one of them on."""
    with pq.ParquetFile(file) as table:
        before = (table.metadata.row_group(group).num_rows for group in range(start))
        first_document = sum(before)
        for group in range(start, table.num_row_groups):
            content = table.read_row_group(group)
            yield RowGroup(content, first_document)
            first_document += content.num_rows


def read_documents(file: Path) -> Iterator[list[Document]]:
    """The documents of a split, a row group at a time."""
    return (group.documents() for group in read_groups(file))


def documents_of(table: pa.Table) -> list[Document]:
    """The documents that are the rows of a table."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        if row.get("group") is None:
            row.pop("group", None)
    return cast(list[Document], rows)
