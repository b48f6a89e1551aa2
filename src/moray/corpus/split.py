"""Which documents are held out: by their hash, or at the end of the text."""

import hashlib
from collections.abc import Callable, Iterator

from moray.corpus.document import Document

Documents = Callable[[], Iterator[Document]]


def content(document: Document) -> str:
    """What makes two documents the same."""
    if "text" in document:
        return document["text"]
    return f"{document['prompt']}\0{document['completion']}"


def digest(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def by_hash(documents: Documents, validation: float, test: float) -> Iterator[tuple[str, Document]]:
    """Give each document the split that its hash, or its group's, falls into.

    A document's split doesn't depend on which other documents there are. Of exact duplicates
    that groups have put into different splits, test keeps its copy before validation, and
    validation before train; within test and within validation one copy is kept.

    Args:
        documents: gives the documents anew at each call, in the same order.
        validation: share of the hashes that falls to validation.
        test: share of the hashes that falls to test.
    """
    held_out: dict[str, set[bytes]] = {"test": set(), "validation": set()}
    for document in documents():
        split = _split_of(document, validation, test)
        if split != "train":
            held_out[split].add(digest(content(document)))
    test_only, validation_only = held_out["test"], held_out["validation"] - held_out["test"]
    unwritten = {"test": set(test_only), "validation": set(validation_only)}
    for document in documents():
        split, identity = _split_of(document, validation, test), digest(content(document))
        if split == "train":
            if identity not in test_only and identity not in validation_only:
                yield split, document
        elif identity in unwritten[split]:
            unwritten[split].remove(identity)
            yield split, document


def by_tail(documents: Documents, validation: float, test: float) -> Iterator[tuple[str, Document]]:
    """Hold out the end of the text: the last `test` share, and the `validation` share before it.

    A document that lies across a boundary is cut there. Shares are of characters.
    """
    total = sum(len(document["text"]) for document in documents())
    ends = {
        "train": round(total * (1 - validation - test)),
        "validation": round(total * (1 - test)),
        "test": total,
    }
    position = 0
    for document in documents():
        text = document["text"]
        for split, end in ends.items():
            part, text = text[: max(0, end - position)], text[max(0, end - position) :]
            position += len(part)
            if part:
                yield split, Document(text=part)


def _split_of(document: Document, validation: float, test: float) -> str:
    key = document.get("group") or content(document)
    point = int.from_bytes(digest(key)[:8], "big") / 2**64
    if point < test:
        return "test"
    return "validation" if point < test + validation else "train"
