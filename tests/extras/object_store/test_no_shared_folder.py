"""Two nodes that share no folder: state, base and rows of a run are in an object store."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from checkpoints import are_equal, tensors_of
from clusters.nodes import ADDRESS, ADDRESSES, Nodes, two_nodes
from fleet import until
from jobs import training_command
from object_store import CREDENTIALS
from run_stage import stage_command

from moray.config.schema.base import execution_keys
from moray.config.schema.sections import Ray
from moray.config.schema.train import Train
from moray.rows.store import StoredRows
from moray.train.history import read_history

SOURCE = Path(__file__).parents[3] / "src"
ENDPOINT = f"http://{ADDRESSES['a']}:5555"
TRAIN = Train(
    max_steps=300,
    global_batch_size=8,
    learning_rate=1e-2,
    precision="fp32",
    logging_steps=1,
    eval_steps=100,
    save_steps=20,
)
# Step 40 begins to save only once the checkpoint of step 20 is committed.
SAVED = 41


@pytest.fixture(scope="module")
def hidden(small: Path) -> Path:
    """The folder with all that tests write, which node `b` doesn't see."""
    return small.parent


@contextmanager
def object_store(nodes: Nodes, folder: Path) -> Iterator[None]:
    """An S3 server on node `a`, with a bucket."""
    options = ("-H", ADDRESSES["a"], "-p", ENDPOINT.rpartition(":")[2])
    with (folder / "server.txt").open("w") as log:
        server = subprocess.Popen(
            nodes.command("a", sys.executable, "-m", "moto.server", *options),
            env=nodes.environment,
            stdout=log,
            stderr=log,
        )
    make = f"import urllib.request as r; r.urlopen(r.Request('{ENDPOINT}/bucket', method='PUT'))"
    try:
        until(
            lambda: (
                subprocess.run(
                    nodes.command("a", sys.executable, "-c", make), capture_output=True, check=False
                ).returncode
                == 0
            )
        )
        yield
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, hidden: Path) -> Iterator[Nodes]:
    """Two nodes with room for one worker each, and an object store."""
    folder = tmp_path_factory.mktemp("nodes")
    with two_nodes(folder) as made:
        made.environment |= {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": ENDPOINT,
            "AWS_DEFAULT_REGION": "us-east-1",
            "GLOO_SOCKET_IFNAME": "eth0",
            # Below what is hidden, so that nodes don't share it either.
            "TMPDIR": str(folder),
        }
        made.start("a", paths=[SOURCE])
        made.start("b", paths=[SOURCE], hidden=hidden)
        with object_store(made, folder):
            yield made


def started(
    nodes: Nodes, small: Path, output: Path, settings: Train, **ray: Any
) -> subprocess.Popen[str]:
    """The stage on node `a`."""
    output.mkdir(exist_ok=True)
    section = Ray(num_workers=2, **ray)
    command = training_command(small / "model", small / "tokens", output, settings, section)
    return subprocess.Popen(
        nodes.command("a", *command),
        env=nodes.environment | {"PYTHONPATH": str(SOURCE)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def follow(process: subprocess.Popen[str], step: int) -> None:
    """Wait until a run says that it has done a step."""
    assert process.stderr is not None
    said = list[str]()
    for line in process.stderr:
        said.append(line)
        found = re.search(r"  step (\d+)/", line)
        if found and int(found[1]) >= step:
            return
    pytest.fail(f"the run ended before step {step}: {''.join(said)}")


def end(process: subprocess.Popen[str]) -> str:
    """Wait for a run to succeed; returns what it said."""
    _, reported = process.communicate()
    assert process.returncode == 0, reported
    return reported


def losses(output: Path) -> dict[int, float]:
    lines = read_history(output / "history.jsonl")
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.fixture(scope="module")
def on_one_machine(nodes: Nodes, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run in a folder gives, with two workers on one machine."""
    folder = tmp_path_factory.mktemp("here")
    settings = TRAIN.model_copy(update={"launcher": "torchrun"})
    ray = {"storage_path": str(folder / "state"), "resources_per_worker": {"CPU": 0.5}}
    end(started(nodes, small, folder / "output", settings, **ray))
    return folder / "output"


def check_equal(ours: Path, theirs: Path) -> None:
    """Two runs have the same losses and weights, to the bit."""
    assert losses(ours) == losses(theirs)
    found, expected = (
        tensors_of(Path(json.loads((output / "train.json").read_text())["checkpoint"]))
        for output in (ours, theirs)
    )
    assert are_equal(found, expected)


@pytest.mark.release
def test_a_fault_on_the_other_node_is_one_line(nodes: Nodes, small: Path, tmp_path: Path) -> None:
    """A damaged copy of the base, which only the node that doesn't have it yet reads."""
    url = "s3://bucket/damaged"
    script = (
        "from moray.storage.objects import open_objects\n"
        f"objects = open_objects('{url}/.inputs')\n"
        "for key in objects.list_objects(''):\n"
        "    if key.endswith('.safetensors'):\n"
        "        objects.put(key, b'damaged')\n"
    )
    deliver = (
        "import sys; from pathlib import Path; from moray.storage.transfer import deliver\n"
        f"deliver([Path('{small}/model')], '{url}')\n"
    )
    for code in (deliver, script):
        subprocess.run(
            nodes.command("a", sys.executable, "-c", code),
            env=nodes.environment | {"PYTHONPATH": str(SOURCE)},
            check=True,
        )
    with started(nodes, small, tmp_path, TRAIN, storage_path=url, address=ADDRESS) as process:
        _, reported = process.communicate()
    assert process.returncode == 1
    assert "missing or damaged files: model.safetensors" in reported.splitlines()[-1]


@pytest.mark.release
def test_a_run_is_trained_and_its_results_come_back(
    nodes: Nodes, small: Path, on_one_machine: Path, tmp_path: Path
) -> None:
    ray = {"storage_path": "s3://bucket/whole", "address": ADDRESS}
    reported = end(started(nodes, small, tmp_path, TRAIN, **ray))
    # Also of the worker on the other node.
    assert "[worker 0]" in reported
    assert "[worker 1]" in reported
    check_equal(tmp_path, on_one_machine)


@pytest.mark.release
@pytest.mark.parametrize("dataset", ["text"], indirect=True)
def test_models_are_evaluated_on_both_nodes_with_the_figures_of_this_machine(
    nodes: Nodes, model_folder: Path, tuned_folder: Path, store: Path, tmp_path: Path
) -> None:
    cfg = {"max_documents": None, "bootstrap_samples": 30, "confidence": 0.9, "precision": "fp32"}
    there = Ray(address=ADDRESS, storage_path="s3://bucket/evaluated", max_failures=0)
    figures = {}
    for name, ray, workers in (("one", Ray(), 1), ("both", there, 2)):
        output = tmp_path / name / "eval.json"
        output.parent.mkdir()
        execution = {
            "evaluate": {"num_workers": workers, "batch_size": 4},
            "launcher": "ray",
            "ray": execution_keys(ray),
            "proofs": "refuse",
            "stall_timeout": 600.0,
        }
        command = stage_command(
            "evaluate",
            run=name,
            base=model_folder,
            tuned=tuned_folder,
            stores=[store],
            output=output,
            cfg=cfg,
            execution=execution,
        )
        done = subprocess.run(
            nodes.command("a", *command),
            env=nodes.environment | {"PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        result = json.loads(output.read_text())
        figures[name] = [result[key]["bits_per_byte"]["value"] for key in ("base", "tuned")]
        # Counted on both nodes.
        assert "100%" in done.stderr
    assert figures["both"] == pytest.approx(figures["one"], rel=1e-6)


@pytest.mark.release
def test_what_a_teacher_predicts_comes_back_from_both_nodes(
    nodes: Nodes, small: Path, tmp_path: Path
) -> None:
    there = Ray(address=ADDRESS, storage_path="s3://bucket/taught", max_failures=0)
    for name, ray, workers in (("one", Ray(), 1), ("both", there, 2)):
        execution = {
            "evaluate": {"num_workers": workers, "batch_size": 4},
            "launcher": "ray",
            "ray": execution_keys(ray),
            "stall_timeout": 600.0,
        }
        command = stage_command(
            "teacher",
            run=name,
            model=small / "model",
            base=small / "model",
            tokens=small / "tokens",
            output=tmp_path / name,
            cfg={"precision": "fp32", "temperature": 2.0, "top_k": 8},
            execution=execution,
        )
        done = subprocess.run(
            nodes.command("a", *command),
            env=nodes.environment | {"PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    for split in ("train", "validation"):
        one, both = (StoredRows(tmp_path / name, split).rows for name in ("one", "both"))
        np.testing.assert_array_equal(one["teacher_tokens"], both["teacher_tokens"])
        np.testing.assert_allclose(one["teacher_logs"], both["teacher_logs"], rtol=2e-3)


@pytest.mark.release
def test_a_node_that_is_lost_and_comes_back_costs_no_bit(
    nodes: Nodes, small: Path, hidden: Path, on_one_machine: Path, tmp_path: Path
) -> None:
    ray = {"storage_path": "s3://bucket/lost", "address": ADDRESS}
    with started(nodes, small, tmp_path, TRAIN, **ray) as process:
        follow(process, SAVED)
        nodes.kill("b")
        nodes.start("b", paths=[SOURCE], hidden=hidden)
        end(process)
    assert json.loads((tmp_path / "train.json").read_text())["resumed_from"] > 0
    check_equal(tmp_path, on_one_machine)


@pytest.mark.release
@pytest.mark.parametrize("strategy", ["fsdp2", "deepspeed"])
def test_shards_of_a_checkpoint_that_two_nodes_have_written_are_resumed_from(
    strategy: Literal["fsdp2", "deepspeed"],
    nodes: Nodes,
    small: Path,
    hidden: Path,
    tmp_path: Path,
) -> None:
    settings = TRAIN.model_copy(update={"strategy": strategy})
    here, there = tmp_path / "here", tmp_path / "there"
    alone = settings.model_copy(update={"launcher": "torchrun"})
    ray = {"storage_path": str(tmp_path / "state"), "resources_per_worker": {"CPU": 0.5}}
    end(started(nodes, small, here, alone, **ray))
    ray = {"storage_path": f"s3://bucket/{strategy}", "address": ADDRESS}
    with started(nodes, small, there, settings, **ray) as process:
        follow(process, SAVED)
        nodes.kill("b")
        nodes.start("b", paths=[SOURCE], hidden=hidden)
        end(process)
    assert json.loads((there / "train.json").read_text())["resumed_from"] > 0
    assert losses(there) == losses(here)


@pytest.mark.release
def test_a_driver_that_is_lost_is_replaced_once_its_lease_has_run_out(
    nodes: Nodes, small: Path, on_one_machine: Path, tmp_path: Path
) -> None:
    ray = {"storage_path": "s3://bucket/driver", "address": ADDRESS}
    with started(nodes, small, tmp_path, TRAIN, **ray) as process:
        follow(process, SAVED)
        nodes.kill("a", "run_stage.py finetune")
        process.communicate()
    reported = end(started(nodes, small, tmp_path, TRAIN, **ray))
    assert "waiting 30 s for a sign of life" in reported
    assert json.loads((tmp_path / "train.json").read_text())["resumed_from"] > 0
    check_equal(tmp_path, on_one_machine)
