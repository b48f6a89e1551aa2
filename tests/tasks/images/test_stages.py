"""The stages of image classification, from a folder of images to predictions."""

import json
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from jobs import execution_of, job_maker
from pictures import (
    DIGITS,
    RESNET,
    VIT,
    colours,
    image_folder,
    make_digits,
    model_section,
    write_idx,
)
from PIL import Image
from resumed import check_resumption, in_small_groups
from safetensors.torch import load_file
from transformers import pipeline

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Evaluate, Ray
from moray.config.schema.train import Train
from moray.corpus.dataset import read_documents
from moray.errors import UserError
from moray.model.classifiers import names_of
from moray.provenance.manifest import read_manifest, sha256_file
from moray.rows.store import StoredRows
from moray.stages.base_model import base_model
from moray.stages.download import download
from moray.stages.evaluate import evaluate
from moray.stages.export import export
from moray.tasks.images.classifier import load_classifier
from moray.tasks.images.decode import decode
from moray.tasks.images.evaluation import evaluation
from moray.tasks.images.image_files import as_png
from moray.tasks.images.image_processor import load_processor
from moray.tasks.images.output_layers import classifier_for
from moray.tasks.images.predict import predict
from moray.train.driver import run_training
from moray.train.spec import Part, RunSpec

FORMAT = {"format": "images"}


def folder_section(folder: Path, **keys: Any) -> dict[str, Any]:
    return {
        "source": "image-folder",
        "path": str(folder),
        "state": {"listing": "x"},
        **FORMAT,
        **keys,
    }


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A dataset of two classes, of images of 10 x 12."""
    folder = image_folder(tmp_path / "photos", {"cat": 20, "dog": 20}, 10, 12)
    shares = {"validation_share": 0.2, "test_share": 0.2}
    download(tmp_path / "dataset", folder_section(folder, **shares))
    return tmp_path / "dataset"


def test_splits_hold_each_image_once_with_its_label(photos: Path) -> None:
    described = json.loads((photos / "dataset.json").read_text())
    assert described["label_names"] == ["cat", "dog"]
    assert described["image_size"] == [10, 12]
    rows = {split: facts["rows"] for split, facts in described["splits"].items()}
    assert sum(rows.values()) == 40
    assert rows["train"] > rows["validation"] > 0 < rows["test"]


@pytest.mark.parametrize("kind", ["digits", "idx", "image-folder"])
def test_shares_of_train_are_held_out(kind: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (400, 4, 4), dtype=np.uint8)
    images = write_idx(tmp_path / "images", pixels)
    labels = write_idx(tmp_path / "labels", np.arange(400, dtype=np.uint8) % 3)
    sections: dict[str, dict[str, Any]] = {
        "digits": {},
        "idx": {"train": {"images": str(images), "labels": str(labels)}},
        "image-folder": {"path": str(image_folder(tmp_path / "photos", {"a": 200, "b": 200}))},
    }
    shares = {"validation_share": 0.2, "test_share": 0.3}
    download(tmp_path / "dataset", {"source": kind, **FORMAT, **sections[kind], **shares})
    splits = json.loads((tmp_path / "dataset/dataset.json").read_text())["splits"]
    rows = np.array([splits[split]["rows"] for split in ("train", "validation", "test")])
    assert rows.sum() == (1797 if kind == "digits" else 400)
    assert rows / rows.sum() == pytest.approx([0.5, 0.2, 0.3], abs=0.06)


@pytest.mark.parametrize("broken", [b"", b"no image"])
def test_of_a_folder_with_a_broken_image_nothing_is_left(broken: bytes, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", {"cat": 20, "dog": 20})
    (folder / "dog/003.png").write_bytes(broken)
    with pytest.raises(UserError, match=f"^{folder}/dog/003.png: "):
        download(tmp_path / "dataset", folder_section(folder))
    assert not (tmp_path / "dataset").exists()


def test_a_class_that_has_nothing_to_train_on_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = {f"only {number}": 1 for number in range(20)}
    folder = image_folder(tmp_path / "photos", {"cat": 20, "dog": 20, **classes})
    download(tmp_path / "dataset", folder_section(folder, validation_share=0, test_share=0.4))
    documents = {
        split: [*chain(*read_documents(tmp_path / f"dataset/{split}.parquet"))]
        for split in ("train", "test")
    }
    trained = {document["label"] for document in documents["train"]}
    names = json.loads((tmp_path / "dataset/dataset.json").read_text())["label_names"]
    missing = [name for number, name in enumerate(names) if number not in trained]
    assert len(missing) > 5
    assert (
        f"dataset dataset: {len(missing)} of 22 classes have no images to train on "
        f"({len(missing)} held out): {', '.join(missing[:5])}, …\n"
    ) in capsys.readouterr().err


def test_classes_that_look_the_same_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = image_folder(tmp_path / "photos", {"cat": 20, "Cat": 20, "dog": 20})
    download(tmp_path / "dataset", folder_section(folder))
    warning = "warning: dataset dataset: 'Cat' and 'cat' are classes of their own, and differ only"
    assert warning in capsys.readouterr().err


def make_model(dataset: Path, output: Path, **keys: Any) -> Path:
    base_model(output, model_section(**{**VIT, **keys}), dataset, modality="images")
    return output


def test_the_store_has_the_models_size_and_channels(photos: Path, tmp_path: Path) -> None:
    for channels in (3, 1):
        model = make_model(
            photos, tmp_path / f"model-{channels}", image_size=8, num_channels=channels
        )
        decode(photos, model, tmp_path / "pixels", FORMAT)
        split = StoredRows(tmp_path / "pixels", "test")
        assert split.rows["pixels"].shape == (len(split), channels, 8, 8)
        assert split.rows["filled"].all()
        assert set(split.rows["label"].tolist()) <= {0, 1}
        assert read_manifest(tmp_path / "pixels")["label_names"] == ["cat", "dog"]


@pytest.mark.parametrize("mode", ["RGBA", "P", "L", "1"])
def test_images_of_all_modes_become_the_models_channels(mode: str, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for number in range(30):
        (folder / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        image = colours(8, 8, number).convert(mode)
        image.save(folder / "ab"[number % 2] / f"{number}.png")
    download(tmp_path / "dataset", folder_section(folder, test_share=0.3))
    model = make_model(tmp_path / "dataset", tmp_path / "model")
    decode(tmp_path / "dataset", model, tmp_path / "pixels", FORMAT)
    pixels = {image.tobytes() for image in StoredRows(tmp_path / "pixels", "train").rows["pixels"]}
    originals = [Image.open(file).convert("RGB") for file in folder.glob("*/*.png")]
    expected = {np.asarray(image).transpose(2, 0, 1).tobytes() for image in originals}
    assert pixels < expected


def test_without_a_size_images_of_different_sizes_cost_one_line(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", {"cat": 20, "dog": 20})
    colours(9, 8).save(folder / "cat/000.png")
    download(tmp_path / "dataset", folder_section(folder))
    with pytest.raises(UserError, match=r"^models\.model\.image_size: is not set, .*different"):
        make_model(tmp_path / "dataset", tmp_path / "model")
    assert not (tmp_path / "model").exists()
    model = make_model(tmp_path / "dataset", tmp_path / "model", image_size=12)
    decode(tmp_path / "dataset", model, tmp_path / "pixels", FORMAT)
    assert StoredRows(tmp_path / "pixels", "train").rows["pixels"].shape[1:] == (3, 12, 12)


def test_a_size_that_patches_do_not_divide_costs_one_line(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"image_size: got 10, expected a multiple of vit\.patch"):
        make_model(photos, tmp_path / "model", image_size=10)


def test_an_image_processor_that_keeps_sizes_costs_one_line(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", {"cat": 20, "dog": 20})
    colours(9, 8).save(folder / "cat/000.png")
    download(tmp_path / "dataset", folder_section(folder))
    model = make_model(tmp_path / "dataset", tmp_path / "model", image_size=8)
    file = model / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "do_resize": False}))
    with pytest.raises(UserError, match="gives images different sizes: "):
        decode(tmp_path / "dataset", model, tmp_path / "pixels", FORMAT)
    assert not (tmp_path / "pixels").exists()


def test_the_shape_of_a_model_is_that_of_the_config(photos: Path, tmp_path: Path) -> None:
    size = {"image_size": 8}
    vit = load_classifier(make_model(photos, tmp_path / "vit", **size)).config
    assert {key: getattr(vit, key) for key in VIT["vit"]} == VIT["vit"]
    assert (vit.image_size, vit.num_channels, names_of(vit)) == (8, 3, ["cat", "dog"])
    resnet = load_classifier(make_model(photos, tmp_path / "resnet", **RESNET, **size)).config
    assert {key: getattr(resnet, key) for key in RESNET["resnet"]} == RESNET["resnet"]
    assert resnet.layer_type == "basic"
    assert read_manifest(tmp_path / "resnet")["architecture"] == "resnet"


def test_the_seed_alone_decides_the_weights(photos: Path, tmp_path: Path) -> None:
    seeds = {"a": 0, "b": 0, "c": 1}
    weights = [
        make_model(photos, tmp_path / name, image_size=8, seed=seed) / "model.safetensors"
        for name, seed in seeds.items()
    ]
    first, second, third = (file.read_bytes() for file in weights)
    assert first == second != third


def test_a_model_of_other_classes_gets_a_new_output_layer(photos: Path, tmp_path: Path) -> None:
    """And one of the same classes keeps its own."""
    download(tmp_path / "digits", DIGITS)
    old = make_model(tmp_path / "digits", tmp_path / "old", image_size=8)
    section = {"source": "path", "path": str(old), "seed": 0, "classes_of": "photos"}
    for name, dataset in (("same", tmp_path / "digits"), ("new", photos), ("again", photos)):
        base_model(tmp_path / name, section, dataset, modality="images")
    base_model(tmp_path / "seeded", {**section, "seed": 1}, photos, modality="images")
    names = ("old", "same", "new", "again", "seeded")
    models = {name: load_classifier(tmp_path / name) for name in names}
    heads = {name: model.classifier.weight for name, model in models.items()}
    assert torch.equal(heads["same"], heads["old"])
    assert heads["new"].shape == (2, 16)
    assert torch.equal(heads["new"], heads["again"])
    assert not torch.equal(heads["new"], heads["seeded"])
    assert names_of(models["new"].config) == ["cat", "dog"]
    assert models["new"].config.label2id == {"cat": 0, "dog": 1}
    body = {name: model.vit.state_dict() for name, model in models.items()}
    assert all(torch.equal(value, body["new"][name]) for name, value in body["old"].items())
    assert load_processor(tmp_path / "new").size == load_processor(old).size


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits, a ResNet, and a run of it in `run`."""
    folder = make_digits(tmp_path_factory.mktemp("digits"), image_size=16, **RESNET)
    job = job_maker(folder, folder, "pixels")()
    settings = {"max_steps": 60, "global_batch_size": 32, "learning_rate": 1e-2}
    (folder / "run").mkdir()
    spec = RunSpec(
        "name",
        folder / "model",
        (Part("digits", folder / "pixels"),),
        Train(**settings, micro_batch_size=32, launcher="torchrun"),
        ray=Ray(storage_path=str(job.work), num_workers=1),
    )
    run_training(spec, folder / "run")
    cfg = {"run": "name", "start": "model", "datasets": {"digits": 1.0}, "dtype": "auto"}
    record, history = folder / "run/train.json", folder / "run/history.jsonl"
    sources = [folder / "model/manifest.json", folder / "pixels/manifest.json"]
    export(folder / "model", record, history, sources, folder / "tuned", cfg, "images")
    return folder


def test_the_pipeline_of_transformers_loads_what_was_exported(
    trained: Path, tmp_path: Path
) -> None:
    classify = pipeline("image-classification", str(trained / "tuned"), device="cpu")
    split, right = StoredRows(trained / "pixels", "test"), 0
    for row in split.rows[:40]:
        Image.fromarray(row["pixels"].transpose(1, 2, 0)).save(tmp_path / "x.png")
        right += classify(str(tmp_path / "x.png"))[0]["label"] == str(row["label"])
    assert right > 30
    card = (trained / "tuned/README.md").read_text()
    assert "pipeline_tag: image-classification" in card
    assert "10\nclasses apart: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9." in card
    assert read_manifest(trained / "tuned")["run"] == "name"


def test_a_base_with_several_classes_an_image_becomes_a_model_of_one(
    trained: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(trained / "tuned", tmp_path / "base"))
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(
        json.dumps(config | {"problem_type": "multi_label_classification"})
    )
    for names in (list("0123456789"), ["a", "b"]):
        classifier_for(base, names, seed=0).model.save_pretrained(tmp_path / "model")
        shutil.copy(base / "preprocessor_config.json", tmp_path / "model")
        classify = pipeline("image-classification", str(tmp_path / "model"), device="cpu")
        scores = [one["score"] for one in classify(Image.new("L", (8, 8)), top_k=10)]
        assert sum(scores) == pytest.approx(1)


def test_an_export_has_the_statistics_of_the_training(trained: Path) -> None:
    before = dict(load_classifier(trained / "model").named_buffers())
    after = dict(load_classifier(trained / "tuned").named_buffers())
    for name, value in after.items():
        assert not torch.equal(value, before[name]), name


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("auto", torch.float32), ("fp32", torch.float32), ("bf16", torch.bfloat16)],
)
def test_weights_have_the_type_that_the_config_names(
    dtype: str, expected: torch.dtype, trained: Path, tmp_path: Path
) -> None:
    cfg = {"run": "name", "start": "model", "datasets": {"digits": 1.0}, "dtype": dtype}
    record, history = trained / "run/train.json", trained / "run/history.jsonl"
    export(trained / "model", record, history, [], tmp_path / "out", cfg, "images")
    weights = load_file(tmp_path / "out/model.safetensors")
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {expected}


Judge = Callable[..., dict[str, Any]]


@pytest.fixture
def judge(trained: Path, tmp_path: Path) -> Judge:
    def judged(workers: int = 1, **keys: Any) -> dict[str, Any]:
        cfg = result_keys(Evaluate(bootstrap_samples=50)) | keys
        evaluate(
            "name",
            trained / "model",
            trained / "tuned",
            [trained / "pixels"],
            tmp_path / "eval.json",
            cfg,
            execution_of("evaluate", workers),
        )
        result: dict[str, Any] = json.loads((tmp_path / "eval.json").read_text())
        return result

    return judged


def test_both_models_are_scored_on_every_test_image(judge: Judge, trained: Path) -> None:
    result = judge()
    split = StoredRows(trained / "pixels", "test")
    assert result["images"] == len(split)
    base, tuned = (result[name]["accuracy"] for name in ("base", "tuned"))
    assert base["value"] < 0.4 < 0.75 < tuned["low"] < tuned["value"] <= tuned["high"]
    difference = result["difference"]["accuracy"]["value"]
    assert difference == pytest.approx(tuned["value"] - base["value"])
    for name in ("base", "tuned"):
        table = result["by_class"][name]
        confusion = np.array(table["confusion"])
        assert confusion.sum() == len(split)
        assert np.trace(confusion) / len(split) == result[name]["accuracy"]["value"]
        counts = np.bincount(split.rows["label"], minlength=10).tolist()
        assert [entry["images"] for entry in table["classes"].values()] == counts
        assert list(table["classes"]) == result["label_names"]
    model = load_classifier(trained / "tuned")
    pixels = torch.from_numpy(split.rows["pixels"].astype(np.float32) / 255 * 2 - 1)
    labels = torch.from_numpy(split.rows["label"].astype("i8"))
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(pixels).logits, labels).item()
    assert result["tuned"]["loss"]["value"] == pytest.approx(loss, rel=1e-5)


def test_images_of_a_group_are_resampled_together(tmp_path: Path) -> None:
    # Eight patients, of each ten images that look alike and have one label.
    rows: list[dict[str, Any]] = [
        {"image": as_png(colours(4, 4, n)), "label": n // 10 % 2, "patient": float(n // 10)}
        for n in range(160)
    ]
    held_out = [row for row in rows if row["patient"] < 8]
    files = {}
    for split, some in (("train", rows[80:]), ("test", held_out)):
        files[split] = [str(tmp_path / f"{split}.parquet")]
        pq.write_table(pa.Table.from_pylist(some), files[split][0])
    cfg = {"source": "files", "path": {split: paths[0] for split, paths in files.items()}, **FORMAT}
    download(tmp_path / "dataset", cfg | {"columns": {"group": "patient"}}, files)
    make_model(tmp_path / "dataset", tmp_path / "model")
    decode(tmp_path / "dataset", tmp_path / "model", tmp_path / "pixels", FORMAT)
    answers = np.log(np.random.default_rng(0).dirichlet([1, 1], 8).repeat(10, 0))
    labels = StoredRows(tmp_path / "pixels", "test").rows["label"]
    cfg = result_keys(Evaluate(bootstrap_samples=2000))
    store = (tmp_path / "pixels",)
    compared = evaluation({}, store, cfg).scores(
        [{"base": dict(enumerate(answers)), "tuned": dict(enumerate(answers))}]
    )
    assert compared["resampled"] == "groups"
    losses = -answers[::10][np.arange(8), labels[::10]]
    draws = losses[np.random.default_rng(1).integers(8, size=(20_000, 8))].mean(1)
    found = compared["tuned"]["loss"]
    assert found["value"] == pytest.approx(losses.mean())
    low, high = np.quantile(draws, [0.025, 0.975])
    assert (found["low"], found["high"]) == pytest.approx((low, high), rel=0.1)


@pytest.mark.long
def test_scores_do_not_depend_on_the_number_of_workers(judge: Judge) -> None:
    assert judge(workers=2) == judge(workers=1)


def test_no_more_images_are_scored_than_asked_for(judge: Judge) -> None:
    assert judge(max_documents=20)["images"] == 20


def test_predictions_are_written_and_drawn(trained: Path, tmp_path: Path) -> None:
    def run(name: str, samples: int) -> list[dict[str, Any]]:
        folder = tmp_path / name
        folder.mkdir()
        predict(
            "name",
            trained / "model",
            trained / "tuned",
            trained / "pixels",
            folder / "samples.jsonl",
            folder / "generation.json",
            folder / "predictions.png",
            folder / "predictions.svg",
            {"num_samples": samples, "precision": "auto"},
            execution_of("generate"),
        )
        return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]

    lines = run("a", 12)
    assert len(lines) == 12
    assert sum(line["tuned"] == line["label"] for line in lines) >= 9
    assert all(0 < line["tuned_probability"] <= 1 for line in lines)
    split = StoredRows(trained / "pixels", "test")
    for line in lines:
        assert line["label"] == str(split.rows["label"][line["image"]])
    width, height = Image.open(tmp_path / "a/predictions.png").size
    assert width > 400 < height
    assert run("b", 12) == lines
    for file in ("predictions.png", "predictions.svg", "generation.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    tuned = trained / "tuned/manifest.json"
    record = json.loads((tmp_path / "a/generation.json").read_text())
    assert record["inputs"][str(tuned)] == sha256_file(tuned)
    assert [one["what"] for one in record["proof"]] == [
        "probability of base's predictions",
        "probability of tuned's predictions",
    ]
    for name, one in zip(("base", "tuned"), record["proof"], strict=True):
        mean = np.mean([line[f"{name}_probability"] for line in lines])
        assert one["here"] == pytest.approx(mean, rel=1e-3)
        assert one["holds"]
    # Fewer images than the figure has places.
    assert len(run("c", 4)) == 4


def test_pixels_are_the_same_if_the_stage_is_interrupted(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(photos, tmp_path / "model", image_size=8)
    dataset = in_small_groups(photos, tmp_path / "groups", 10)
    check_resumption(lambda store: decode(dataset, model, store, FORMAT), tmp_path, capsys)
