"""An evaluation on two nodes, of which one is lost."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import cycle, islice
from pathlib import Path

import pytest
from clusters.driver import PATHS
from clusters.nodes import ADDRESS, two_nodes
from fleet import until
from jobs import execution_of

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import SPLITS, Document
from moray.corpus.documents import write_dataset
from moray.stages.evaluate import evaluate
from moray.tasks.language.tokenize import tokenize

pytestmark = pytest.mark.release

CFG = {"max_documents": None, "bootstrap_samples": 30, "confidence": 0.9, "precision": "auto"}

# Python imports it at its start: each batch becomes a line of a file that both nodes see.
RECORDER = """
import os
from moray.evaluate import batches

batches._SECONDS_BETWEEN_FLUSHES = 0.0
add = batches.BatchWriter.add

def recorded(self, batch, arrays):
    add(self, batch, arrays)
    with open(os.environ["RECORD"], "a") as file:
        file.write(f"{'-'.join(map(str, batch))} {os.environ['NODE']}\\n")

batches.BatchWriter.add = recorded
"""
DRIVER = """
import json, sys
from pathlib import Path
from moray.stages.evaluate import evaluate

folders, cfg, execution = map(json.loads, sys.argv[1:])
base, tuned, store, output = map(Path, folders)
evaluate("tuned", base, tuned, [store], output, cfg, execution)
"""


def test_a_lost_node_costs_the_batches_in_progress(
    tmp_path: Path, model_folder: Path, tuned_folder: Path, texts: list[str]
) -> None:
    """Scores are those of one machine, to the byte."""
    rows = [("test", Document(text=text)) for text in islice(cycle(texts), 1500)]
    rows += [(split, Document(text=text)) for split in SPLITS[:2] for text in texts]
    write_dataset(tmp_path / "rows", rows, "text", {})
    tokenize(
        tmp_path / "rows",
        model_folder,
        tmp_path / "store",
        {"format": "text", **result_keys(Data(block_size=64))},
    )
    models = model_folder, tuned_folder
    here, there = tmp_path / "here/eval.json", tmp_path / "there/eval.json"
    for output in (here, there):
        output.parent.mkdir()
    local = execution_of("evaluate", batch_size=1)
    evaluate("tuned", *models, [tmp_path / "store"], here, CFG, local)
    (tmp_path / "recorder").mkdir()
    (tmp_path / "recorder/sitecustomize.py").write_text(RECORDER)
    record = tmp_path / "record"
    paths = [tmp_path / "recorder", *PATHS]
    execution = execution_of("evaluate", 2, 1, "ray") | {"ray": {"address": ADDRESS}}
    folders = [str(path) for path in (*models, tmp_path / "store", there)]

    def lines() -> list[str]:
        return record.read_text().splitlines() if record.exists() else []

    with two_nodes(tmp_path) as nodes:
        for name in ("a", "b"):
            nodes.start(name, paths=paths, RECORD=str(record), NODE=name)
        words = map(json.dumps, (folders, CFG, execution))
        with subprocess.Popen(
            nodes.command("a", sys.executable, "-c", DRIVER, *words),
            env=nodes.environment | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))},
            stderr=subprocess.PIPE,
            text=True,
        ) as started:
            until(lambda: len({line.split()[1] for line in lines()}) == 2 and len(lines()) > 200)
            nodes.kill("b")
            before = len(lines())
            nodes.start("b", paths=paths, RECORD=str(record), NODE="b")
            _, printed = started.communicate()
    assert started.returncode == 0, printed
    assert there.read_bytes() == here.read_bytes()
    times = Counter(line.split()[0] for line in lines())
    assert before < len(times)
    # One of each worker.
    assert times.total() - len(times) <= 2
