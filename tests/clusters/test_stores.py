"""Datasets and stores that are made on two nodes."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters.driver import PATHS
from clusters.nodes import ADDRESS, Nodes, two_nodes
from fleet import until
from resumed import in_small_groups
from small_model import recipe

from moray.corpus.dataset import SPLITS, Document
from moray.corpus.documents import write_dataset
from moray.provenance.manifest import DATASET, damaged_files, read_manifest, sha256_file
from moray.stages.download import download
from moray.tasks.language.tokenize import tokenize

pytestmark = pytest.mark.release

WINDOWS = 40
# Two for each of two CPUs.
IN_PROGRESS = 4

# Each window is a line of a file that both nodes see: its first document and the node.
DRIVER = """
import json, sys, time
from pathlib import Path

from moray.tasks.language import tokens
from moray.tasks.language.tokenize import tokenize
from moray.stages import store
from moray.workers.pool import Work

store.TOKENIZE = Work(threads=1, useful_threads=0, bytes_worth_ray=0)
dataset, model, output, record, execution, cfg = map(json.loads, sys.argv[1:])
made = tokens.encode_window

def encode_window(documents, first_document, **settings):
    import ray
    window = made(documents, first_document, **settings)
    with open(record, "a") as file:
        file.write(f"{documents[0]['text'][:12]} {ray.util.get_node_ip_address()}\\n")
    return window

tokens.encode_window = encode_window
tokenize(Path(dataset), Path(model), Path(output), cfg, execution=execution)
"""


# Each part is one, too: its first row and the node. It is read several times, to take as long.
READING = """
import json, sys
from pathlib import Path

from moray.corpus.staging import Staging
from moray.stages import download, read_source
from moray.workers.pool import Work

class Recorded(Staging):
    def __call__(self, item):
        import ray
        for _ in range(30):
            staged = super().__call__(item)
        place, _ = next(iter(item[1].parts[0].unparsed.rows(None)))
        with open(record, "a") as file:
            file.write(f"{place.replace(' ', '-')} {ray.util.get_node_ip_address()}\\n")
        return staged

read_source.PARSE = Work(threads=1, useful_threads=0, bytes_worth_ray=0)
download.Staging = Recorded
output, cfg, files, record, execution = map(json.loads, sys.argv[1:])
download.download(Path(output), cfg, files, "off", execution=execution)
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with two_nodes(tmp_path) as made:
        for name in ("a", "b"):
            made.start(name, paths=PATHS)
        yield made


@pytest.fixture
def dataset(tmp_path: Path, texts: list[str]) -> Path:
    """A dataset with forty windows to train on, of a fifth of a second each."""
    whole = " ".join(texts) * 12
    rows = [("train", Document(text=f"{number:012} {whole}")) for number in range(WINDOWS)]
    rows += [(split, Document(text=f"{split:>12} {whole}")) for split in SPLITS[1:]]
    write_dataset(tmp_path / "rows", iter(rows), "text", {})
    return in_small_groups(tmp_path / "rows", tmp_path / "dataset", 1)


@pytest.mark.parametrize("lost", [False, True], ids=["both nodes", "one is lost"])
def test_a_store_is_the_same_on_two_nodes(
    lost: bool, nodes: Nodes, dataset: Path, model_folder: Path, tmp_path: Path
) -> None:
    """If a node is lost, the windows in progress are made again on the other one."""
    cfg, record = recipe(), tmp_path / "record"
    tokenize(dataset, model_folder, tmp_path / "here/store", cfg)
    execution = {"run": "x", "cores": None, "launcher": "ray", "ray": {"address": ADDRESS}}
    (tmp_path / "there").mkdir()
    arguments = (dataset, model_folder, tmp_path / "there/store", record)
    words = [json.dumps(one) for one in (*map(str, arguments), execution, cfg)]

    times = run(DRIVER, words, record, lost, nodes)
    assert read_manifest(tmp_path / "there/store") == read_manifest(tmp_path / "here/store")
    assert not damaged_files(tmp_path / "there/store")
    assert len(times) == WINDOWS + 2
    assert times.total() - len(times) <= (IN_PROGRESS if lost else 0)


@pytest.mark.parametrize("lost", [False, True], ids=["both nodes", "one is lost"])
def test_a_dataset_is_the_same_on_two_nodes(lost: bool, tmp_path: Path, texts: list[str]) -> None:
    """The second one doesn't see its files."""
    whole, corpus = " ".join(texts) * 3, tmp_path / "corpus"
    corpus.mkdir()
    rows = ({"text": f"{number} {whole}"} for number in range(40 * 2 * 2**20 // len(whole)))
    (corpus / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"train": [str(corpus / "rows.jsonl")]}
    cfg = {"source": "files", "path": files["train"], "validation_share": 0.1, "test_share": 0.1}
    download(tmp_path / "here/rows", cfg, files, "off")
    record = tmp_path / "record"
    execution = {"run": "x", "cores": None, "launcher": "ray", "ray": {"address": ADDRESS}}
    given = (str(tmp_path / "there/rows"), cfg, files, str(record), execution)
    with two_nodes(tmp_path) as nodes:
        nodes.start("a", paths=PATHS)
        nodes.start("b", paths=PATHS, hidden=corpus)
        times = run(READING, [json.dumps(one) for one in given], record, lost, nodes)
    for name in (DATASET, *(f"{split}.parquet" for split in SPLITS)):
        digests = {sha256_file(tmp_path / place / "rows" / name) for place in ("here", "there")}
        assert len(digests) == 1, name
    assert len(times) >= 40
    assert times.total() - len(times) <= (IN_PROGRESS if lost else 0)


def run(driver: str, words: list[str], record: Path, lost: bool, nodes: Nodes) -> Counter[str]:
    """Run a driver on the first node; returns how often each window was made, on both nodes.

    Args:
        record: file in which each window is noted with its node.
        lost: whether the second node is killed when it has made some.
    """

    def lines() -> list[str]:
        return record.read_text().splitlines() if record.exists() else []

    paths = {"PYTHONPATH": os.pathsep.join(map(str, PATHS))}
    with subprocess.Popen(
        nodes.command("a", sys.executable, "-c", driver, *words),
        env=nodes.environment | paths,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        if lost:
            until(lambda: len({line.split()[1] for line in lines()}) == 2 and len(lines()) > 8)
            nodes.kill("b")
        _, printed = started.communicate()
    assert started.returncode == 0, printed
    assert len({line.split()[1] for line in lines()}) == 2
    return Counter(line.split()[0] for line in lines())
