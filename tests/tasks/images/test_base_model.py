"""Base models that classify images: their output layers, and folders that don't fit together."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from pictures import colours, image_folder
from safetensors.torch import load_file, save_file
from transformers import AutoImageProcessor, AutoModelForImageClassification, ViTImageProcessorPil

from moray.errors import UserError
from moray.stages.base_model import base_model
from moray.stages.download import download

SIDE = 32
_SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
VIT = {**_SIZES, "num_attention_heads": 2, "image_size": SIDE, "patch_size": 16}


def deit(**labels: Any) -> hf.PreTrainedModel:
    return hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**VIT, **labels))


def levit(**labels: Any) -> hf.PreTrainedModel:
    sizes = {"hidden_sizes": [16] * 3, "num_attention_heads": [1, 1, 2], "key_dim": [4] * 3}
    config = hf.LevitConfig(image_size=SIDE, depths=[1] * 3, **sizes, **labels)
    return hf.LevitForImageClassificationWithTeacher(config)


def swiftformer(**labels: Any) -> hf.PreTrainedModel:
    sizes = {"depths": [1] * 4, "embed_dims": [8, 8, 8, 16]}
    return hf.SwiftFormerForImageClassification(hf.SwiftFormerConfig(**sizes, **labels))


def vit(**labels: Any) -> hf.PreTrainedModel:
    return hf.ViTForImageClassification(hf.ViTConfig(**VIT, **labels))


def pvt(**labels: Any) -> hf.PreTrainedModel:
    sizes = {"hidden_sizes": [8] * 3 + [16], "depths": [1] * 4, "num_attention_heads": [1] * 4}
    # Its config doesn't count the names.
    count = len(labels.get("id2label", ())) or labels["num_labels"]
    config = hf.PvtConfig(image_size=SIDE, **sizes, **labels | {"num_labels": count})
    return hf.PvtForImageClassification(config)


def named(*names: str) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}


# The layers with an output for each class.
HEADS: dict[Callable[..., hf.PreTrainedModel], list[str]] = {
    deit: ["cls_classifier", "distillation_classifier"],
    levit: ["classifier.linear", "classifier_distill.linear"],
    swiftformer: ["head", "dist_head"],
    vit: ["classifier"],
    pvt: ["classifier"],
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of the classes a, b and c."""
    folder = tmp_path_factory.mktemp("photos")
    classes = image_folder(folder / "photos", {"a": 10, "b": 10, "c": 10}, 24, 40)
    section = {"source": "image-folder", "path": str(classes), "state": {}, "format": "images"}
    shares = {"validation_share": 0.0, "test_share": 0.2}
    download(folder / "dataset", section | shares)
    return folder / "dataset"


def given(folder: Path, model: hf.PreTrainedModel, side: int = SIDE) -> Path:
    """A folder with a model, whose weights and buffers aren't those of a new one, and processor."""
    generator = torch.Generator().manual_seed(1)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            drawn = torch.rand(value.shape, generator=generator)
            value.copy_(drawn + 0.5 if "running_var" in name else (drawn - 0.5) / 2)
    model.save_pretrained(folder)
    ViTImageProcessorPil(size={"height": side, "width": side}).save_pretrained(folder)
    return folder


def adapted(source: Path, photos: Path, output: Path) -> hf.PreTrainedModel:
    """What plain transformers loads of a base model that was made of a folder."""
    section = {"source": "path", "path": str(source), "seed": 0, "classes_of": "photos"}
    base_model(output, section, photos, modality="images")
    model: hf.PreTrainedModel = AutoModelForImageClassification.from_pretrained(output)
    return model.eval()


def logits(model: hf.PreTrainedModel, folder: Path) -> dict[str, torch.Tensor]:
    """The logits of an image by the names of the classes."""
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor(colours(24, 40), return_tensors="pt")["pixel_values"]
    found = model(pixel_values=pixels).logits[0]
    return {model.config.id2label[number]: logit for number, logit in enumerate(found)}


@pytest.mark.parametrize("build", HEADS)
# As many as a layer of the body has outputs, and as many as the dataset.
@pytest.mark.parametrize("own", [16, 3])
def test_each_output_layer_is_new_for_other_classes(
    build: Callable[..., hf.PreTrainedModel],
    own: int,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    original = build(num_labels=own)
    source = given(tmp_path / "given", original)
    model = adapted(source, photos, tmp_path / "tiny")
    assert type(model) is type(original)
    torch.autograd.backward(list(logits(model, tmp_path / "tiny").values()))
    assert [*model.config.id2label.values()] == ["a", "b", "c"]
    before = original.state_dict()
    weights = {f"{head}.{kind}" for head in HEADS[build] for kind in ("weight", "bias")}
    for name, value in model.state_dict().items():
        if name in weights:
            assert value.shape[0] == 3
            assert own != 3 or not torch.equal(value, before[name])
        else:
            assert torch.equal(value, before[name]), name
    parameters = dict(model.named_parameters())
    assert all(parameters[name].grad is not None for name in weights)
    line = f"model tiny: new output layer for 3 classes; the base's own {own} are others\n"
    assert line in capsys.readouterr().err


def test_output_layers_of_a_model_are_drawn_one_by_one(photos: Path, tmp_path: Path) -> None:
    model = adapted(given(tmp_path / "given", deit(num_labels=7)), photos, tmp_path / "tiny")
    assert not torch.equal(model.cls_classifier.weight, model.distillation_classifier.weight)


@pytest.mark.parametrize("build", HEADS)
def test_classes_in_another_order_keep_their_scores(
    build: Callable[..., hf.PreTrainedModel],
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = given(tmp_path / "given", build(**named("c", "a", "b")))
    own = AutoModelForImageClassification.from_pretrained(source).eval()
    expected = logits(own, source)
    model = adapted(source, photos, tmp_path / "tiny")
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert model.config.label2id == {"a": 0, "b": 1, "c": 2}
    found = logits(model, tmp_path / "tiny")
    for name in ("a", "b", "c"):
        torch.testing.assert_close(found[name], expected[name])
    line = "model tiny: the classes of its output layer are in the order of the dataset's now\n"
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("a", "b", "c"), None),
        (("a", "b", "c", "d"), "; 3 of them are among the base's own 4, which aren't kept"),
        (("a", "b"), "; 2 of them are among the base's own 2, which aren't kept"),
    ],
)
def test_what_becomes_of_the_base_s_own_classes_is_told(
    names: tuple[str, ...],
    line: str | None,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    adapted(given(tmp_path / "given", vit(**named(*names))), photos, tmp_path / "tiny")
    lines = [one for one in capsys.readouterr().err.splitlines() if "output layer" in one]
    assert lines == ([f"model tiny: new output layer for 3 classes{line}"] if line else [])


def test_a_folder_without_an_output_layer_gets_one(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = given(tmp_path / "given", vit(**named("a", "b", "c")))
    weights = load_file(source / "model.safetensors")
    del weights["classifier.weight"], weights["classifier.bias"]
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    adapted(source, photos, tmp_path / "tiny")
    line = "model tiny: new output layer for 3 classes; the base has none\n"
    assert line in capsys.readouterr().err


def test_weights_that_the_model_has_no_place_for_are_told(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = given(tmp_path / "given", vit(**named("a", "b", "c")))
    change(source / "config.json", num_hidden_layers=1)
    adapted(source, photos, tmp_path / "tiny")
    assert (
        "model tiny: vit leaves out weights that it doesn't compute with (16, e.g. "
        "vit.layers.1.attention.k_proj.bias); they aren't exported either\n"
    ) in capsys.readouterr().err


def change(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def refused(spoil: Callable[[Path], object], photos: Path, tmp_path: Path) -> str:
    """What a user reads of a base that is spoilt; `SOURCE` stands for its folder."""
    source = given(tmp_path / "given", vit(**named("a", "b", "c")))
    spoil(source)
    with pytest.raises(UserError) as caught:
        adapted(source, photos, tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()
    return str(caught.value).replace(str(source), "SOURCE")


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (
            lambda source: change(
                source / "preprocessor_config.json", size={"height": 48, "width": 16}
            ),
            "models.tiny: a vit model can't compute with the 16 x 48 pixels that its image "
            "processor makes of an image (Input image size (48*16) doesn't match model (32*32).); "
            "make size in its preprocessor_config.json fit image_size in its config.json, or "
            "choose another model",
        ),
        (
            lambda source: change(source / "config.json", hidden_size=32),
            "models.tiny: SOURCE: its config.json isn't that of its weights: classifier.weight has "
            "shape (3, 16), and (3, 32) by config.json (and 36 others differ); restore the "
            "config.json that was saved with them",
        ),
        (
            lambda source: change(source / "config.json", image_size=64),
            "models.tiny: SOURCE: its config.json isn't that of its weights: "
            "vit.embeddings.position_embeddings has shape (1, 5, 16), and (1, 17, 16) by "
            "config.json; restore the config.json that was saved with them",
        ),
        (
            lambda source: (source / "preprocessor_config.json").unlink(),
            "models.tiny: SOURCE has no preprocessor_config.json, so nothing says how images "
            "become its input; add that of the model that it was tuned from (to a copy, as "
            "source: path, if it is from the hub), or choose another model",
        ),
        (
            lambda source: (source / "preprocessor_config.json").write_text("{"),
            "models.tiny: SOURCE: can't load the image processor (It looks like the config file at "
            "'SOURCE/preprocessor_config.json' is not a valid JSON file.); check its "
            "preprocessor_config.json",
        ),
        (
            lambda source: change(source / "preprocessor_config.json", image_mean=[0.5]),
            "models.tiny: its image processor has 1 values of image_mean, expected 3, one for each "
            "channel; correct its preprocessor_config.json",
        ),
        (
            lambda source: change(source / "config.json", num_hidden_layers=3),
            "models.tiny: SOURCE: the weights are missing for vit.layers.2.attention.k_proj.bias; "
            "use a complete model",
        ),
        (
            lambda source: change(source / "config.json", hidden_size="wide"),
            "models.tiny: SOURCE: can't load a model that classifies images (Field 'hidden_size' "
            "expected int, got str (value: 'wide')); check the folder",
        ),
        (
            lambda source: (source / "config.json").write_text("{"),
            "models.tiny: SOURCE: can't load a model that classifies images (It looks like the "
            "config file at 'SOURCE/config.json' is not a valid JSON file.); check the folder",
        ),
    ],
    ids=[
        "size of images",
        "width",
        "image size",
        "no processor",
        "broken processor",
        "channels of a mean",
        "layers",
        "type of a value",
        "broken config",
    ],
)
def test_a_folder_that_does_not_fit_together_costs_one_line(
    spoil: Callable[[Path], object], line: str, photos: Path, tmp_path: Path
) -> None:
    assert refused(spoil, photos, tmp_path) == line


def test_a_model_without_logits_costs_one_line(photos: Path, tmp_path: Path) -> None:
    model = hf.PPLCNetForImageClassification(hf.PPLCNetConfig(scale=0.125, **named("a", "b", "c")))
    source = given(tmp_path / "given", model)
    with pytest.raises(UserError) as caught:
        adapted(source, photos, tmp_path / "tiny")
    assert str(caught.value) == (
        "models.tiny: a pp_lcnet model gives no logits; choose another model"
    )
