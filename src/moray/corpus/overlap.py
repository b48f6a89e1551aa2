"""Documents that one dataset holds out and another trains on.

They are recognised by their content and by their group, as when a dataset is split.
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
    """Documents that a held-out split has in common with the train split of another dataset.

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


def find_overlaps(files: Sequence[Path], runs: Mapping[str, Sequence[str]]) -> list[Overlap]:
    """Compare the held-out splits of datasets with the train splits of others.

    Digests of all held-out documents are in memory, and one row group of a train split.
    """
    held_out = {file: [*_identities(file)] for file in files if file.stem != "train"}
    digests = set(chain.from_iterable(chain.from_iterable(held_out.values())))
    overlaps = []
    for train in (file for file in files if file.stem == "train"):
        by = train.parent.name
        train_identities = progress(_identities(train), f"compare {by}", "document")
        in_train = digests.intersection(chain.from_iterable(train_identities))
        for file, identities in held_out.items():
            trained = sum(whole in in_train for whole, _ in identities)
            either = sum(not in_train.isdisjoint(identity) for identity in identities)
            if either and file.parent != train.parent:
                overlaps.append(
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
    return overlaps


def _identities(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """Digests of the content and of the group of each document of a split."""
    for documents in read_documents(file):
        for document in documents:
            whole, group = content(document), group_of(document)
            identity = digest(whole)
            # No content begins so, and a group may be a number.
            yield identity, identity if group == whole else digest(f"\0group {group}")


def overlap_messages(scores: Mapping[str, Any]) -> list[str]:
    """Lines about the overlaps in the content of an `eval.json`; empty if there are none."""
    unit = next((unit for unit in SCORED if unit in scores), "")
    return [
        f"{one[key]:,} of {one['documents']:,} {one['split']} {unit} of {one['dataset']} "
        f"{fate}, in {one['by']} (run{'s' * (len(one['runs']) > 1)} {', '.join(one['runs'])})"
        for one in scores.get("overlaps", ())
        for key, fate in _FATES.items()
        if one[key]
    ]
