"""Bring a dataset in: read its source, split it, write it as Parquet."""

from functools import partial
from pathlib import Path

from moray.console import say
from moray.corpus import files as local_files
from moray.corpus import python_stdlib
from moray.corpus.dataset import write_dataset
from moray.corpus.split import Documents, by_hash, by_tail
from moray.provenance.digest import sha256_file
from moray.stages.boundary import Folder, Section, command_line


def download(output: Folder, cfg: Section, files: list[Path] | None = None) -> None:
    """Write `train.parquet`, `validation.parquet`, `test.parquet` and `dataset.json`.

    Args:
        output: the folder to write to.
        cfg: the dataset's section of the config.
        files: the files to read, for the source `files`.
    """
    origin = {"source": cfg["source"]}
    documents: Documents
    if cfg["source"] == "python-stdlib":
        make = python_stdlib.modules if cfg["format"] == "text" else python_stdlib.functions
        documents = list(make()).__iter__
        origin["revision"] = f"python {cfg['python']}"
    else:
        read = [Path(file) for file in files or []]
        documents = partial(local_files.documents, read, cfg["format"])
        origin["files"] = {str(file): sha256_file(file) for file in read}
    split = by_tail if cfg.get("split_by") == "tail" else by_hash
    rows = split(documents, cfg["validation_share"], cfg["test_share"])
    described = write_dataset(output, rows, cfg["format"], origin)["splits"]
    counts = ", ".join(f"{split} {facts['rows']:,}" for split, facts in described.items())
    size = sum(facts["bytes"] for facts in described.values())
    say(f"dataset {output.name}: {counts} rows, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    command_line(download)
