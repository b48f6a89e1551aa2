"""Faults planted into base models that classify images, and what transformers reads back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from pictures import RESNET, image_folder, model_section
from safetensors.torch import load_file, save_file

from moray.config.schema.base import Proofs
from moray.errors import UserError
from moray.proofs.comparison import read_proof
from moray.stages.base_model import base_model
from moray.stages.download import download
from moray.tasks.images import base_model as base_model_images
from moray.tasks.images import output_layers
from moray.tasks.images.proofs import compare_predictions

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
READ_BACK = "weights that are read back as they were"
KEPT = "weights of its source, but for output layers"
LOGIT = "logit of an image that differs most"
BY_NAME = "logit of a class that differs most from its source's"

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of the classes a, b and c."""
    folder = tmp_path_factory.mktemp("photos")
    classes = image_folder(folder / "photos", dict.fromkeys("abc", 10))
    section = {"source": "image-folder", "path": str(classes), "state": {}, "format": "images"}
    download(folder / "dataset", section | {"validation_share": 0.0, "test_share": 0.2})
    return folder / "dataset"


@pytest.fixture
def make(photos: Path, tmp_path: Path) -> Make:
    """Adapts a model of these classes, with two output layers, to the dataset."""

    def made(*names: str, proofs: Proofs = "refuse") -> Path:
        config = hf.DeiTConfig(
            **SIZES, num_attention_heads=2, image_size=32, patch_size=16, num_labels=len(names)
        )
        config.id2label = dict(enumerate(names))
        torch.manual_seed(0)
        model = hf.DeiTForImageClassificationWithTeacher(config)
        model.save_pretrained(tmp_path / "source")
        size = {"height": 32, "width": 32}
        hf.ViTImageProcessorPil(size=size).save_pretrained(tmp_path / "source")
        section = {"source": "path", "path": str(tmp_path / "source"), "seed": 0}
        base_model(tmp_path / "tiny", {**section, "classes_of": "photos"}, photos, proofs, "images")
        return tmp_path / "tiny"

    return made


def compared(folder: Path) -> dict[str, dict[str, Any]]:
    found = {one["what"]: one for one in read_proof(folder)}
    assert all(one["of"] == "models.tiny" and one["holds"] for one in found.values())
    return found


def test_what_is_read_back_from_a_copied_model_is_recorded(make: Make) -> None:
    found = compared(make("c", "a", "b"))
    assert [*found] == [READ_BACK, LOGIT, KEPT, BY_NAME]
    number = len(load_file(make("c", "a", "b") / "model.safetensors"))
    assert found[READ_BACK]["here"] == found[READ_BACK]["plain"] == number
    # Two layers of a weight and a bias.
    assert found[KEPT]["here"] == found[KEPT]["plain"] == number - 4
    for what in (LOGIT, BY_NAME):
        assert found[what]["here"] == pytest.approx(found[what]["plain"], rel=1e-4)


def test_of_other_classes_there_are_no_logits_to_compare(make: Make) -> None:
    assert [*compared(make("x", "y", "z"))] == [READ_BACK, LOGIT, KEPT]


def test_a_model_from_scratch_is_read_back(photos: Path, tmp_path: Path) -> None:
    base_model(tmp_path / "tiny", model_section(**RESNET), photos, modality="images")
    assert [*compared(tmp_path / "tiny")] == [READ_BACK, LOGIT]


def test_nothing_is_compared_with_proofs_off(make: Make) -> None:
    assert read_proof(make("c", "a", "b", proofs="off")) == []


def test_rows_in_a_wrong_order_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_layers, "_reorder", lambda *_: None)
    with pytest.raises(UserError, match=rf"^models.tiny: differs from .* in {BY_NAME}: "):
        make("c", "a", "b")


def test_weights_of_the_body_that_change_are_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = output_layers._draw

    def draws_more(model: hf.PreTrainedModel, *others: Any) -> None:
        draw(model, *others)
        torch.nn.init.normal_(model.deit.layernorm.weight)

    monkeypatch.setattr(output_layers, "_draw", draws_more)
    with pytest.raises(UserError, match=rf"^models.tiny: differs from .* in {KEPT}: "):
        make("x", "y", "z")


def test_weights_that_are_not_those_in_memory_are_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halved(folder: Path, *_: Any) -> None:
        weights = load_file(folder / "model.safetensors")
        weights["cls_classifier.weight"] *= 0.5
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    monkeypatch.setattr(base_model_images, "check_processor", halved)
    with pytest.raises(UserError, match=rf"^models.tiny: differs from .* in {READ_BACK}: "):
        make("c", "a", "b")


def test_other_classes_than_those_that_are_likely_differ(make: Make) -> None:
    folder = make("a", "b", "c")
    rows = np.zeros(4, [("pixels", "u1", (3, 32, 32)), ("label", "<u4"), ("filled", "u1")])
    rows["pixels"] = np.random.default_rng(0).integers(0, 256, rows["pixels"].shape)
    model = hf.AutoModelForImageClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        pixels = torch.from_numpy(rows["pixels"] / np.float32(127.5) - 1)
        values = model(pixels).logits.softmax(-1).numpy()

    def holds(classes: str, probabilities: np.ndarray[Any, Any]) -> bool:
        models = {"x": folder}
        (found,) = compare_predictions(models, rows, {"x": classes}, {"x": probabilities}, 0, False)
        assert found.rows == 4
        return found.holds

    likeliest = ["abc"[number] for number in values.argmax(-1)]
    assert holds("".join(likeliest), values.max(-1))
    others = ["abc"[number - 1] for number in values.argmax(-1)]
    assert not holds("".join(others), values.max(-1))
    assert not holds("".join(likeliest), values.max(-1) * 1.001)
