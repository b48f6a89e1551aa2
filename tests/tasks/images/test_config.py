"""What a config says about images: stores, what stages depend on, and what is refused."""

import os
from pathlib import Path
from typing import Any

import pytest
from pictures import image_folder
from small_config import check_faults, experiment_with, faults

from moray.config import plan, user_files
from moray.config.inputs import missing_file_error
from moray.config.references import check_references
from moray.config.schema.experiment import Experiment
from moray.errors import UserError

MODEL = {"source": "scratch-vision", "classes_of": "digits"}
IMAGES: dict[str, Any] = {
    "datasets.digits": {"source": "digits"},
    "models.resnet": MODEL,
    "runs.seen": {"model": "resnet", "dataset": "digits"},
}


def test_a_run_on_images_has_a_store_of_pixels_which_no_key_of_its_data_changes() -> None:
    before = experiment_with(IMAGES)
    assert plan.task(before, "seen") == "images"
    folder = plan.store_folders(before, "seen")[0]
    assert folder.startswith("results/pixels/digits-resnet-")
    data = {"augmentation": {"shift": 2}, "block_size": 512}
    after = experiment_with(IMAGES | {"runs.seen.data": data})
    assert plan.store_folders(after, "seen")[0] == folder
    assert plan.store_folders(before, "base")[0].startswith("results/tokens/")


@pytest.mark.parametrize(("key", "value"), [("shift", 1), ("crop", 0.1), ("flip", True)])
def test_training_depends_on_the_augmentation(key: str, value: object) -> None:
    before = experiment_with(IMAGES)
    after = experiment_with(IMAGES | {f"runs.seen.data.augmentation.{key}": value})
    assert plan.train_config(before, "seen") != plan.train_config(after, "seen")
    assert "augmentation" not in plan.train_config(before, "tuned")
    assert "augmentation" not in plan.store_config(before, "tuned", "functions")


def test_a_model_of_images_depends_on_the_dataset_of_its_classes(tmp_path: Path) -> None:
    experiment = experiment_with(IMAGES)
    assert user_files.model_files(experiment, "resnet") == ["results/datasets/digits/dataset.json"]
    (tmp_path / "config.json").write_text("{}")
    path = {"source": "path", "path": str(tmp_path)}
    experiment = experiment_with(
        {**IMAGES, "models.own": {**path, "classes_of": "digits", "seed": 3}, "models.text": path}
    )
    files = user_files.model_files(experiment, "own")
    assert files == ["results/datasets/digits/dataset.json", str(tmp_path / "config.json")]
    assert plan.model_config(experiment, "own")["seed"] == 3
    assert plan.modality_of_model(experiment, "own") == "images"
    assert plan.modality_of_model(experiment, "text") == "text"
    # A model of text depends on neither.
    assert plan.model_config(experiment, "text") == path


def test_a_folder_of_images_is_read_again_when_its_content_changes(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", {"a": 2, "b": 1})
    section = {"source": "image-folder", "path": str(folder)}
    experiment = experiment_with({"datasets.photos": section})
    before = plan.dataset_config(experiment, "photos")
    assert plan.dataset_config(experiment, "photos") == before
    assert user_files.dataset_files(experiment, "photos") == {}
    image = next((folder / "b").iterdir())
    content = image.read_bytes()
    os.utime(image, (0, 0))
    (folder / "b/.DS_Store").write_bytes(b"x")
    assert plan.dataset_config(experiment, "photos") == before
    image.write_bytes(content[:-1] + b"?")
    os.utime(image, (0, 0))
    assert plan.dataset_config(experiment, "photos") != before
    image.write_bytes(content)
    assert plan.dataset_config(experiment, "photos") == before
    (tmp_path / "more").mkdir()
    (folder / "b/linked").symlink_to(tmp_path / "more")
    (tmp_path / "more/new.png").write_bytes(b"x")
    assert plan.dataset_config(experiment, "photos") != before


def test_a_folder_that_is_not_there_costs_one_line() -> None:
    section = {"source": "image-folder", "path": "nowhere"}
    experiment = experiment_with({"datasets.photos": section})
    with pytest.raises(UserError, match=r"^datasets\.photos\.path: got nowhere, expected a folder"):
        plan.dataset_config(experiment, "photos")


def test_idx_files_are_inputs(tmp_path: Path) -> None:
    files = {key: str(tmp_path / key) for key in ("images", "labels")}
    section = {"source": "idx", "train": files, "test": files}
    experiment = experiment_with({"datasets.mnist": section})
    both = list(files.values())
    assert user_files.dataset_files(experiment, "mnist") == {"train": both, "test": both}
    assert str(missing_file_error(experiment, "mnist", files["labels"])).startswith(
        f"datasets.mnist.train.labels: there is no file {files['labels']}, and no rule makes it"
    )


def test_what_does_not_fit_images_costs_one_line() -> None:
    wrong: list[tuple[str, object, str]] = [
        ("runs.seen.adapter", {}, ": adapters are for language models only"),
        ("runs.seen.train.attention", "flex", ": flex is for rows of documents"),
        ("runs.seen.train.attention", "varlen", ": varlen is for rows of documents"),
        (
            "runs.seen.data",
            {"tokenize": "on-the-fly", "loader": "stream"},
            ".tokenize: images have no tokens",
        ),
        (
            "runs.seen.train.router_aux_loss",
            0.01,
            ": is for language models, not for images; set it to false",
        ),
        ("runs.seen.gguf", {}, ": is for language models only"),
        ("runs.seen.benchmarks.tasks", ["words"], ": benchmarks are for language models only"),
        ("runs.base.data.augmentation", {"flip": True}, ": is for images only"),
        ("runs.seen.model", "tiny", ": got a model of text, but dataset digits has images"),
        (
            "runs.new",
            {"model": "resnet", "dataset": "modules"},
            ".model: got a model of images, but dataset modules has text",
        ),
        (
            "models.resnet.classes_of",
            "modules",
            ": got modules, which has text, expected images",
        ),
        (
            "models.resnet.classes_of",
            "digit",
            ": got digit, expected a name under datasets; did you mean digits?",
        ),
        (
            "models.tiny.tokenizer.train_on",
            "digits",
            ": got digits, which has images, expected text",
        ),
        (
            "models.resnet.resnet.depths",
            [1],
            ": got 1 stages, expected as many as hidden_sizes has (4)",
        ),
        (
            "models.resnet.vit.hidden_size",
            10,
            ": got 10, expected a multiple of num_attention_heads (3)",
        ),
        (
            "datasets.x",
            {"source": "url", "url": "https://host/a.parquet", "format": "images"},
            ".format: images can't be read from a URL",
        ),
        ("models.resnet.num_channels", 4, ": got 4, expected "),
    ]
    for path, value, rest in wrong:
        check_faults(IMAGES | {path: value}, path + rest)


def test_a_search_is_refused_what_its_run_would_be() -> None:
    search = {"trials": 2, "space": {"adapter.rank": [4, 8]}}
    path, rest = "runs.seen.search.space.adapter.rank", ": adapters are for language models only"
    check_faults(IMAGES | {"runs.seen.search": search}, f"{path}.0{rest}", f"{path}.1{rest}")


def test_splits_that_a_source_has_need_no_share(tmp_path: Path) -> None:
    files = {"images": "a", "labels": "b"}
    image_folder(tmp_path / "photos/train", {"a": 1})
    image_folder(tmp_path / "photos/test", {"a": 1})
    for section in (
        {"source": "idx", "train": files, "test": files, "test_share": 0},
        {"source": "image-folder", "path": str(tmp_path / "photos"), "test_share": 0},
    ):
        experiment: Experiment = experiment_with({**IMAGES, "datasets.digits": section})
        assert check_references(experiment) == []
    (line,) = faults({**IMAGES, "datasets.digits": {"source": "digits", "test_share": 0}})
    assert line.startswith("datasets.digits.test_share: got 0")
