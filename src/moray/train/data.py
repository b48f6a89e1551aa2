"""The rows that a run trains on and those held out from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moray.config.schema import Train
from moray.provenance.manifest import read_manifest
from moray.rows.mixture import Mixture
from moray.rows.store import StoredRows
from moray.train.job import Job, Part


def mixture_of(parts: Sequence[Part], settings: Train) -> Mixture:
    """Which rows make up each step of a run.

    The rows of datasets differ in weight (their number of trained tokens, for example), so a
    dataset's share of the rows is its share divided by the mean weight of its rows.
    """
    facts = [_facts(part.store) for part in parts]
    return Mixture(
        [fact["windows"] for fact in facts],
        [
            part.share * fact["rows"] / fact["weight"]
            for part, fact in zip(parts, facts, strict=True)
        ],
        settings.global_batch_size,
        settings.seed,
    )


def _facts(store: Path) -> dict[str, Any]:
    facts: dict[str, Any] = read_manifest(store)["splits"]["train"]
    return facts


def held_out(job: Job) -> dict[str, StoredRows]:
    """The validation splits that aren't empty, by dataset."""
    splits = {part.dataset: StoredRows(part.store, "validation") for part in job.parts}
    return {dataset: split for dataset, split in splits.items() if len(split)}


def describe_mixture(job: Job, mixture: Mixture, num_steps: int) -> str | None:
    """How often the rows of each dataset are seen; None for a single dataset."""
    if len(job.parts) == 1:
        return None
    total = sum(part.share for part in job.parts)
    seen = mixture.counts(num_steps)
    texts = (
        f"{part.dataset} {part.share / total:.1%}, each row seen {count / order.num_rows:.2g} times"
        for part, count, order in zip(job.parts, seen, mixture.orders, strict=True)
    )
    return f"mixture: {'; '.join(texts)}"
