"""Stores whose windows are made on two nodes."""

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
from moray.provenance.manifest import damaged_files, read_manifest
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
    execution = {"run": "x", "launcher": "ray", "ray": {"address": ADDRESS}}
    (tmp_path / "there").mkdir()
    arguments = (dataset, model_folder, tmp_path / "there/store", record)
    words = [json.dumps(one) for one in (*map(str, arguments), execution, cfg)]

    def lines() -> list[str]:
        return record.read_text().splitlines() if record.exists() else []

    paths = {"PYTHONPATH": os.pathsep.join(map(str, PATHS))}
    with subprocess.Popen(
        nodes.command("a", sys.executable, "-c", DRIVER, *words),
        env=nodes.environment | paths,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        if lost:
            until(lambda: len({line.split()[1] for line in lines()}) == 2 and len(lines()) > 8)
            nodes.kill("b")
        _, printed = started.communicate()
    assert started.returncode == 0, printed
    assert read_manifest(tmp_path / "there/store") == read_manifest(tmp_path / "here/store")
    assert not damaged_files(tmp_path / "there/store")
    times = Counter(line.split()[0] for line in lines())
    assert len(times) == WINDOWS + 2
    assert times.total() - len(times) <= (IN_PROGRESS if lost else 0)
    assert len({line.split()[1] for line in lines()}) == 2
