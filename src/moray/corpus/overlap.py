"""Documents that one dataset holds out and another trains on.

They are recognised as they are when a dataset is split: by their content, and by what documents
share that belong into one split.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypedDict

from moray.config.tasks import SCORED
from moray.console import progress
from moray.corpus.dataset import content, digest, group_of, read_documents

_FATES = {
    "trained": "were trained on",
    "related": "share their prompt or group with some that were trained on",
}


class Overlap(TypedDict):
    """What a held-out split has in common with the train split of another dataset.

    Attributes:
        split: `test` or `validation`.
        documents: their number in that split.
        trained: number of those whose content is in the other's train split.
        related: number of the others whose group is there, see `group_of`.
        by: name of the other dataset.
        runs: the runs that train on it.
    """

    dataset: str
    split: str
    documents: int
    trained: int
    related: int
    by: str
    runs: Sequence[str]


def overlaps(files: Sequence[Path], runs: Mapping[str, Sequence[str]]) -> list[Overlap]:
    """Compare the held-out splits of datasets with the train splits of others.

    Held-out documents are kept in memory as digests; of those of train, one row group is.
    """
    held_out = {file: [*_identities(file)] for file in files if file.stem != "train"}
    wanted = set(chain.from_iterable(chain.from_iterable(held_out.values())))
    found = []
    for train in (file for file in files if file.stem == "train"):
        by = train.parent.name
        shown = progress(_identities(train), f"compare {by}", "document")
        seen = wanted.intersection(chain.from_iterable(shown))
        for file, identities in held_out.items():
            trained = sum(whole in seen for whole, _ in identities)
            either = sum(not seen.isdisjoint(identity) for identity in identities)
            if either and file.parent != train.parent:
                found.append(
                    Overlap(
                        dataset=file.parent.name,
                        split=file.stem,
                        documents=len(identities),
                        trained=trained,
                        related=either - trained,
                        by=by,
                        runs=runs[by],
                    )
                )
    return found


def _identities(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """Of each document of a split, digests of its content and of its group."""
    for documents in read_documents(file):
        for document in documents:
            whole, group = content(document), group_of(document)
            identity = digest(whole)
            # No content begins so, and a group may be a number.
            yield identity, identity if group == whole else digest(f"\0group {group}")


def overlap_messages(scores: Mapping[str, Any]) -> list[str]:
    """What a user reads of the overlaps in the content of an `eval.json`; empty without any."""
    unit = next((unit for unit in SCORED if unit in scores), "")
    return [
        f"{found[key]:,} of {found['documents']:,} {found['split']} {unit} of {found['dataset']} "
        f"{fate}, in {found['by']} (run{'s' * (len(found['runs']) > 1)} {', '.join(found['runs'])})"
        for found in scores.get("overlaps", ())
        for key, fate in _FATES.items()
        if found[key]
    ]
