"""Read a dataset from its source, split it, and write it as Parquet."""

from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from moray.config.schema import TextDataset
from moray.console import progress, say
from moray.corpus.dataset import write_dataset
from moray.corpus.sources.opened import opened
from moray.corpus.split import by_hash, by_tail
from moray.hub import refusals_explained
from moray.provenance.manifest import whole_or_nothing

_DATASET: TypeAdapter[TextDataset] = TypeAdapter(TextDataset)


def download(output: Path, cfg: dict[str, Any], files: dict[str, Any] | None = None) -> None:
    """Write `train.parquet`, `validation.parquet`, `test.parquet` and `dataset.json`.

    Args:
        output: the folder to write to.
        cfg: the dataset's section of the config; `state`, what its rows depend on besides.
        files: for `source: files`, the files of each split.
    """
    section = _DATASET.validate_python({key: cfg[key] for key in cfg if key != "state"})
    dropped: Counter[str] = Counter()
    with (
        refusals_explained(f"datasets.{output.name}", str(cfg.get("repo_id"))),
        whole_or_nothing(output),
        opened(section, files or {}, output) as source,
    ):
        given = source.given
        validation = 0.0 if "validation" in given else section.validation_share
        test = 0.0 if "test" in given else section.test_share
        if getattr(section, "split_by", "hash") == "tail":
            rows = by_tail(given, validation, test)
        else:
            rows = by_hash(given, validation, test, dropped)
        shown = progress(rows, f"download {output.name}", "row")
        description = {"source": section.source, **source.origin, "duplicates": dropped}
        described = write_dataset(output, shown, section.format, description)
    splits = described["splits"]
    counts = ", ".join(f"{split} {facts['rows']:,}" for split, facts in splits.items())
    size = sum(facts["bytes"] for facts in splits.values())
    copies = f", {dropped.total():,} duplicates dropped" if dropped else ""
    say(f"dataset {output.name}: {counts} rows, {size / 1e6:.1f} MB{copies}")
