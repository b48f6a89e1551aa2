"""The lineage of a model as a tree, from the model's bytes back to those of the sources."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moray.config.tasks import MODALITIES
from moray.provenance.lineage import LINEAGE
from moray.provenance.manifest import DATASET, MANIFEST
from moray.results import Run

# Keys that describe the content of a dataset, not its source.
_NOT_A_SOURCE = {"duplicates", "files", "format", "label_names", "near_copies", "splits"}


@dataclass
class Node:
    """Something that a model was made from, by its SHA-256 or that of its manifest, if recorded."""

    kind: str
    name: str
    digest: str | None
    facts: str = ""
    sources: list["Node"] = field(default_factory=list)


def lineage_of(run: Run, files: int) -> Node | None:
    """The tree of a run's model, with so many files of each dataset; None if it wasn't exported."""
    record = run.read(f"model/{LINEAGE}")
    if record is None:
        return None
    own = f"runs/{run.name}/model/{MANIFEST}"
    digests = {_below_results(path): digest for path, digest in record["inputs"].items()}
    training = record["training"]
    made_by = Node(
        "training",
        f"{training['steps']:,} steps",
        digests.get(f"runs/{run.name}/train.json"),
        f"fingerprint {training['fingerprint']}, {training['code']}",
    )
    start = _below_results(f"{training['inputs']['start']}/{MANIFEST}")
    rows = [
        _rows(run, dataset, digests, _below_results(f"{store}/{MANIFEST}"), files)
        for dataset, store in training["inputs"]["stores"].items()
    ]
    weights = _weights(run.read_recorded(own, digests.get(own)))
    sources = [*weights, made_by, _start(run, start, digests, files), *rows]
    return Node("model", run.name, digests.get(own), sources=sources)


def _below_results(path: str) -> str:
    return path.removeprefix("results/")


def _weights(manifest: dict[str, Any]) -> list[Node]:
    return [
        Node("weights", name, entry["sha256"], f"{entry['bytes']:,} bytes")
        for name, entry in manifest.get("files", {}).items()
        if name.endswith(".safetensors")
    ]


def _start(run: Run, manifest: str, digests: dict[str, str], files: int) -> Node:
    folder = Path(manifest).parent
    if folder.parts[0] == "best":
        return _best(run, folder, digests.get(manifest), files)
    if folder.name == "model":
        return _node_of_run(run, folder.parent.name, digests.get(manifest), files)
    record = run.read_recorded(manifest, digests.get(manifest))
    return Node(
        "base model",
        folder.name,
        digests.get(manifest),
        _facts(record.get("model", {})),
        _weights(record),
    )


def _node_of_run(run: Run, name: str, digest: str | None, files: int) -> Node:
    other = Run(name, run.folder.with_name(name), None, run.log)
    tree = lineage_of(other, files)
    # If it was trained again since, its tree is not that of this model.
    return tree if tree and tree.digest == digest else Node("model", name, digest)


def _best(run: Run, folder: Path, digest: str | None, files: int) -> Node:
    """The copy of a sweep's best model, which needn't have the manifest of the original."""
    results, sweep = run.folder.parent.parent, folder.parent
    copy = run.read_result(results / folder / LINEAGE, ("inputs",)) or {"inputs": {}}
    choice = run.read_result(results / sweep / "choice.json", ("best", "inputs"))
    node = Node("best of", sweep.name, digest)
    # If it was chosen again since, it's another copy.
    if choice and copy["inputs"].get(f"results/{folder}/{MANIFEST}") == digest:
        name = choice["best"]
        original = choice["inputs"].get(f"results/runs/{name}/model/{MANIFEST}")
        node.sources.append(_node_of_run(run, name, original, files))
    return node


def _rows(run: Run, dataset: str, digests: dict[str, str], store: str, files: int) -> Node:
    description = f"datasets/{dataset}/{DATASET}"
    node = _dataset(run, dataset, digests.get(description), files)
    kinds = {Path(modality.prepared).name for modality in MODALITIES.values()}
    stores = [path for path in digests if Path(path).parts[0] in kinds and path != store]
    # Stores of a mixture are made side by side, but a reference is made from tokens.
    through = [store] if not store.startswith("reference/") else [*stores, store]
    for path in through:
        kind, name = Path(path).parts[:2]
        node = Node(kind, name, digests.get(path), sources=[node])
    return node


def _dataset(run: Run, name: str, digest: str | None, files: int) -> Node:
    description = run.read_recorded(f"datasets/{name}/{DATASET}", digest)
    digests = description.get("files", {})
    sources = [Node("file", file, digests[file]) for file in list(digests)[:files]]
    if len(digests) > files:
        sources.append(Node("files", f"{len(digests) - files:,} more", None))
    splits = [
        Node("split", split, facts["sha256"], f"{facts['rows']:,} rows")
        for split, facts in description.get("splits", {}).items()
    ]
    origin = {key: value for key, value in description.items() if key not in _NOT_A_SOURCE}
    return Node("dataset", name, digest, _facts(origin), [*splits, *sources])


def _facts(section: dict[str, Any]) -> str:
    scalars = {key: value for key, value in section.items() if isinstance(value, str | int | float)}
    return ", ".join(f"{key} {value}" for key, value in scalars.items())
