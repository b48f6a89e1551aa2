"""Hold out documents: the source's own splits, a share chosen by hash, or the end of the text."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat

from moray.corpus.contradictions import Contradictions
from moray.corpus.copies import Copies, Copy
from moray.corpus.dataset import Document, content, digest, group_of, is_blank

Documents = Callable[[], Iterator[Document]]
Splits = Mapping[str, Documents]


def by_hash(
    splits: Splits,
    validation: float,
    test: float,
    duplicates: Counter[str],
    blanks: Counter[str],
    related: Counter[str],
    contradictions: Contradictions,
    copies: Copies | None = None,
    near: Counter[Copy] | None = None,
) -> Iterator[tuple[str, Document]]:
    """Assign each document of train to a split by the hash of its group, see `group_of`.

    A document's split doesn't depend on the other documents. If exact duplicates fall into
    different splits, test keeps its copy before validation, and validation before train. Within
    test and within validation, one copy is kept. Blank documents are dropped. Documents of train
    that are copies of another one are dropped, if copies are looked for.

    Args:
        splits: the source's splits, including `train`; each call of a split's function returns its
            documents from the start, in the same order.
        validation: share of train to move to validation, 0 if the source has a validation split.
        test: share of train to move to test, 0 if the source has a test split.
        related: at the end, updated with the number of documents in each split that the source
            holds out whose group is in train.
        contradictions: gets each document.
        copies: gets each document; None to keep copies within train.
        near: updated with the number of documents of train that are near copies, by kind.
    """
    held_out: dict[str, set[bytes]] = {"test": set(), "validation": set()}
    groups = {split: Counter[bytes]() for split in splits if split != "train"}
    for split, document, _, identity in _documents_of(splits, validation, test):
        if split != "train":
            held_out[split].add(identity)
        if copies and not is_blank(document):
            copies.note(split, document, identity)
    test_only, validation_only = held_out["test"], held_out["validation"] - held_out["test"]
    unwritten = {"test": set(test_only), "validation": set(validation_only)}
    train_groups: set[bytes] = set()
    kinds = iter(copies.find().tolist()) if copies else repeat(Copy.NONE)
    for split, document, whole, identity in _documents_of(splits, validation, test):
        if is_blank(document):
            blanks[split] += 1
            continue
        contradictions.note(document, identity)
        kind = Copy.NONE
        if split == "train":
            kind = Copy(next(kinds))
            keep = identity not in test_only and identity not in validation_only
        else:
            keep = identity in unwritten[split]
            unwritten[split].discard(identity)
        if not keep or kind is Copy.EXACT:
            duplicates[split] += 1
            continue
        if kind is not Copy.NONE:
            assert near is not None
            near[kind] += 1
            continue
        # Documents of train with the content of a held-out one are left out.
        if groups and (group := group_of(document)) != whole:
            if split == "train":
                train_groups.add(digest(group))
            elif split in groups:
                groups[split][digest(group)] += 1
        yield split, document
    for split, counts in groups.items():
        related[split] += sum(number for group, number in counts.items() if group in train_groups)


def by_tail(
    splits: Splits, validation: float, test: float, blanks: Counter[str]
) -> Iterator[tuple[str, Document]]:
    """Hold out the end of the text: the last `test` share, and the `validation` share before it.

    A document that crosses a boundary is cut there. Shares are fractions of train's characters.
    Blank documents and parts are dropped.
    """
    total = sum(len(document["text"]) for document in splits["train"]())
    ends = {
        "train": round(total * (1 - validation - test)),
        "validation": round(total * (1 - test)),
        "test": total,
    }
    own = ((name, document) for name in splits if name != "train" for document in splits[name]())
    for split, document in chain(_cut(splits["train"](), ends), own):
        if is_blank(document):
            blanks[split] += 1
        else:
            yield split, document


def _cut(documents: Iterator[Document], ends: Mapping[str, int]) -> Iterator[tuple[str, Document]]:
    """The parts of documents in each split, which ends after so many characters."""
    position = 0
    for document in documents:
        text = document["text"]
        if not text:
            yield next(split for split, end in ends.items() if position <= end), document
        for split, end in ends.items():
            part, text = text[: max(0, end - position)], text[max(0, end - position) :]
            position += len(part)
            if part:
                yield split, Document(text=part)


def _documents_of(
    splits: Splits, validation: float, test: float
) -> Iterator[tuple[str, Document, str, bytes]]:
    """The documents with their splits, their content and its digest."""
    for name, documents in splits.items():
        for document in documents():
            whole = content(document)
            identity, split = digest(whole), name
            if name == "train":
                group = group_of(document)
                split = _split_of(identity if group == whole else digest(group), validation, test)
            yield split, document, whole, identity


def _split_of(group: bytes, validation: float, test: float) -> str:
    """The split of a group by its digest."""
    point = int.from_bytes(group[:8], "big") / 2**64
    if point < test:
        return "test"
    return "validation" if point < test + validation else "train"
