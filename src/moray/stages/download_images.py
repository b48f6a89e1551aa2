"""Read a dataset of images from its source, check and split it, and write it as Parquet."""

from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from moray.config.schema import ImageDataset
from moray.console import progress, say
from moray.corpus.dataset import write_dataset
from moray.corpus.image import ImageFacts
from moray.corpus.sources.opened import opened
from moray.corpus.split import by_hash
from moray.errors import UserError
from moray.hub import refusals_explained
from moray.provenance.manifest import whole_or_nothing

_DATASET: TypeAdapter[ImageDataset] = TypeAdapter(ImageDataset)


def download_images(output: Path, cfg: dict[str, Any], files: dict[str, Any] | None = None) -> None:
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
        given, label_names = source.given, source.label_names
        if len(label_names) < 2:
            raise UserError(
                f"datasets.{output.name}", "got only one class, expected at least two", "add one"
            )
        validation = 0.0 if "validation" in given else section.validation_share
        test = 0.0 if "test" in given else section.test_share
        facts = ImageFacts([*label_names])
        rows = facts.follow(by_hash(given, validation, test, dropped))
        shown = progress(rows, f"download {output.name}", "image")
        description = {"source": section.source, **source.origin, "duplicates": dropped}
        described = write_dataset(output, shown, section.format, description, facts.facts)
    splits = described["splits"]
    counts = ", ".join(f"{split} {facts['rows']:,}" for split, facts in splits.items())
    copies = f", {dropped.total():,} duplicates dropped" if dropped else ""
    say(f"dataset {output.name}: {counts} images of {len(label_names)} classes{copies}")
