"""A store is the same wherever its windows are made."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import classified
import pytest
import rewarded
import tagged
from conversations import CHATML, TALKS
from fleet import until
from pictures import image_folder, model_section
from resumed import in_small_groups, interrupt
from small_model import recipe

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data, Ray
from moray.corpus.dataset import SPLITS, Document
from moray.corpus.documents import write_dataset
from moray.provenance.manifest import JOURNAL, damaged_files, read_manifest
from moray.stages import store as stores
from moray.stages.base_model import base_model
from moray.stages.download import download
from moray.tasks.classification import tokenize_labelled as classes
from moray.tasks.images.decode import decode
from moray.tasks.language.tokenize import tokenize
from moray.tasks.reward import tokenize_labelled as rewards
from moray.tasks.token_classification import tokenize_labelled as tags
from moray.workers.cluster import connect_for_tasks
from moray.workers.pool import RayTasks, Work

pytestmark = pytest.mark.long

Stage = Callable[..., None]


@pytest.fixture(scope="module")
def tasks() -> Iterator[RayTasks]:
    with connect_for_tasks(Ray(), "runs.x.ray", 2) as num_cpus:
        yield RayTasks(num_cpus, 0)


@pytest.fixture
def on_ray(tasks: RayTasks, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def give(execution: Any, work: Work, num_bytes: int) -> Iterator[RayTasks]:
        assert num_bytes > 0
        yield tasks

    monkeypatch.setattr(stores, "open_pool", give)


def of_classes(folder: Path) -> Stage:
    config = classified.ENCODERS["BERT"]()
    classified.prepare(folder, classified.opinions(60), config, size=8)
    cfg = {"block_size": 8, "format": "classification"}
    return partial(classes.tokenize_labelled, cfg=cfg)


def of_pairs(folder: Path) -> Stage:
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    config = classified.DECODERS["Llama"]()
    rewarded.prepare_pairs(folder, rewarded.talks(60), config, chat_template=template)
    cfg = {"block_size": 12, "long_documents": "drop", "chat_template": template}
    return partial(rewards.tokenize_labelled, cfg=cfg)


def of_words(folder: Path) -> Stage:
    tagged.prepare(folder, tagged.sentences(60), classified.ENCODERS["BERT"](), size=8)
    cfg = {"block_size": 8, "format": "token-classification"}
    return partial(tags.tokenize_labelled, cfg=cfg)


def of_images(folder: Path) -> Stage:
    photos = image_folder(folder / "photos", {"cat": 30, "dog": 30}, 10, 12)
    section = {"source": "image-folder", "path": str(photos), "state": {"listing": "x"}}
    shares = {"validation_share": 0.2, "test_share": 0.2}
    download(folder / "dataset", {**section, "format": "images", **shares})
    dataset = folder / "dataset"
    base_model(folder / "model", model_section(image_size=8), dataset, modality="images")
    return partial(decode, cfg={"format": "images"})


def of_talks(folder: Path, model: Path) -> Stage:
    rows = ((split, row) for split in SPLITS for row in TALKS * 10)
    write_dataset(folder / "dataset", rows, "messages", {})
    (folder / "model").symlink_to(model)
    keys = result_keys(Data(block_size=64, chat_template=CHATML))
    return partial(tokenize, cfg={"format": "messages", **keys})


MAKERS: dict[str, Callable[..., Stage]] = {
    "classes": of_classes,
    "pairs": of_pairs,
    "words": of_words,
    "images": of_images,
    "talks": of_talks,
}


# Those whose windows have the most to carry; the others before a release.
OFTEN = ("talks", "words")


@pytest.mark.parametrize(
    "name",
    [name if name in OFTEN else pytest.param(name, marks=pytest.mark.release) for name in MAKERS],
)
def test_tasks_of_ray_make_the_same_store(
    name: str,
    tmp_path: Path,
    chat_folder: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that was interrupted, too, however it was begun."""
    stage = MAKERS[name](tmp_path, *([chat_folder] if name == "talks" else []))
    dataset = in_small_groups(tmp_path / "dataset", tmp_path / "groups", 8)
    write = partial(stage, dataset, tmp_path / "model")
    write(tmp_path / "threads/store")
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "begun/store")
    said = capsys.readouterr().err
    request.getfixturevalue("on_ray")
    write(tmp_path / "tasks/store")
    assert capsys.readouterr().err.splitlines()[-1] in said.splitlines()
    write(tmp_path / "begun/store")
    whole = read_manifest(tmp_path / "threads/store")
    assert len(whole["splits"]["train"]["windows"]) > 2
    for made in ("tasks", "begun"):
        assert read_manifest(tmp_path / made / "store") == whole
        assert not damaged_files(tmp_path / made / "store")
        assert not (tmp_path / made / "store" / JOURNAL).exists()


ON_RAY = """
import json, sys
from pathlib import Path
from moray.stages import store
from moray.tasks.language.tokenize import tokenize
from moray.workers.pool import Work

store.TOKENIZE = Work(threads=1, useful_threads=0, bytes_worth_ray=0)
dataset, model, output, execution, cfg = map(json.loads, sys.argv[1:])
if __name__ == "__main__":
    tokenize(Path(dataset), Path(model), Path(output), cfg, execution=execution)
"""


def test_a_process_that_is_asked_to_end_keeps_what_it_has_written(
    tmp_path: Path, model_folder: Path
) -> None:
    """Ray raises an error of its own on SIGTERM."""
    rows = ((split, Document(text=f"{n} + 1")) for split in SPLITS for n in range(3000))
    write_dataset(tmp_path / "rows", rows, "text", {})
    dataset = in_small_groups(tmp_path / "rows", tmp_path / "dataset", 6)
    execution = {"run": "x", "cores": None, "launcher": "ray", "ray": {"address": "local"}}
    paths = map(str, (dataset, model_folder, tmp_path / "ended"))
    words = [json.dumps(word) for word in (*paths, execution, recipe())]
    command = [sys.executable, "-c", ON_RAY, *words]
    journal = tmp_path / "ended" / JOURNAL
    with subprocess.Popen(command, env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}) as process:
        until(lambda: journal.is_file() and journal.read_bytes().count(b"\n") > 1)
        process.terminate()
    assert process.returncode != 0
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ended: continues after " in done.stderr
    tokenize(dataset, model_folder, tmp_path / "undisturbed", recipe())
    assert read_manifest(tmp_path / "ended") == read_manifest(tmp_path / "undisturbed")
    assert not damaged_files(tmp_path / "ended")
