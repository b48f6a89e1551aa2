"""Each image classifier of transformers, with output layers for other classes."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

from moray.errors import UserError
from moray.tasks.images.classifier import load_classifier
from moray.tasks.images.output_layers import classifier_for

# Those of them that a config has are set in it, unless it is below.
_COMMON: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
_FOUR = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 8, 16]}
_HEADS = {"num_attention_heads": [1, 1, 1, 2]}
_WINDOWS = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2}
_TEXT = {key: _COMMON[key] for key in list(_COMMON)[:4]}
_TWO = {"vision_config": _COMMON, "text_config": _TEXT}
_PATCHES = {key: value for key, value in _COMMON.items() if key != "image_size"}
_OWN: dict[str, dict[str, Any]] = {
    "bit": {**_FOUR, "hidden_sizes": [16, 16, 16, 32], "embedding_size": 8, "num_groups": 4},
    "clip": _TWO,
    "convnext": _FOUR,
    "convnextv2": _FOUR,
    "cvt": {"embed_dim": [8, 8, 16], "num_heads": [1, 1, 2]},
    "donut-swin": {**_WINDOWS, "image_size": 32},
    "efficientnet": {"image_size": 64},
    "focalnet": {"embed_dim": 8, "depths": [1, 1, 1, 1], "image_size": 32},
    "hgnet_v2": {},
    "hiera": {"embed_dim": 8, "depths": [1] * 4, "num_heads": [1, 1, 2, 2], "image_size": [64, 64]},
    "imagegpt": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 33},
    "levit": {
        "hidden_sizes": [16] * 3,
        "num_attention_heads": [1, 1, 2],
        "depths": [1] * 3,
        "key_dim": [4] * 3,
        "image_size": 64,
    },
    "metaclip_2": _TWO,
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "mobilevit": {},
    "mobilevitv2": {},
    "perceiver": {
        "num_latents": 4,
        "d_latents": 16,
        "num_self_attends_per_block": 1,
        "num_self_attention_heads": 2,
        "num_cross_attention_heads": 1,
        "image_size": 32,
    },
    "poolformer": _FOUR,
    "pp_lcnet": {"scale": 0.25},
    "pvt": {**_FOUR, **_HEADS, "image_size": 64},
    "pvt_v2": {**_FOUR, **_HEADS, "image_size": 64},
    "regnet": {**_FOUR, "embedding_size": 8, "groups_width": 4},
    "resnet": {**_FOUR, "embedding_size": 8},
    "segformer": {**_FOUR, **_HEADS, "decoder_hidden_size": 8},
    "siglip": _TWO,
    "siglip2": {"vision_config": {**_PATCHES, "num_patches": 16}, "text_config": _TEXT},
    "swiftformer": {"depths": [1] * 4, "embed_dims": [8, 8, 8, 16]},
    "swin": {**_WINDOWS, "image_size": 32},
    "swinv2": {**_WINDOWS, "image_size": 32},
    "textnet": {},
}
# The first has no output layer; the others need libraries.
_OTHERS = {"shieldgemma2", "dinat", "timm_wrapper"}
# Sides of their images that their configs don't have.
_SIDES = {"PerceiverForImageClassificationFourier": 224}
_SIDES["PerceiverForImageClassificationConvProcessing"] = 224


def architectures() -> list[Any]:
    names = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.items()
    return [
        pytest.param(kind, name, id=name)
        for kind, named in names
        if kind not in _OTHERS
        for name in ([named] if isinstance(named, str) else named)
    ]


def config_of(kind: str) -> hf.PreTrainedConfig:
    """A small one, of 16 classes: as many as many of its layers have outputs."""
    config = CONFIG_MAPPING[kind]
    known = {field.name for field in fields(config)} | config.attribute_map.keys()
    sizes = {key: _COMMON[key] for key in _COMMON if key in known}
    names = {number: f"class {number}" for number in range(16)}
    made: hf.PreTrainedConfig = config(**_OWN.get(kind, sizes), num_labels=16)
    made.id2label = names
    return made


def inputs_of(kind: str, name: str, config: Any) -> dict[str, torch.Tensor]:
    """Two images."""
    if kind == "imagegpt":
        return {"input_ids": torch.randint(0, 32, (2, 16))}
    if kind == "siglip2":
        mask, shapes = torch.ones(2, 16, dtype=torch.long), torch.tensor([[4, 4]] * 2)
        values = torch.randn(2, 16, 192)
        return {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": shapes}
    side = getattr(getattr(config, "vision_config", config), "image_size", 64)
    side = _SIDES.get(name, side if isinstance(side, int) else side[0])
    return {"pixel_values": torch.randn(2, 3, side, side)}


@pytest.mark.release
@pytest.mark.parametrize(("kind", "name"), architectures())
def test_all_output_layers_are_for_the_new_classes(kind: str, name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = getattr(hf, name)(config_of(kind))
    model.save_pretrained(tmp_path)
    before = model.state_dict()
    made, _ = classifier_for(tmp_path, ["a", "b", "c"], 0)
    after = made.state_dict()
    changed = [key for key in after if not torch.equal(after[key], before[key])]
    assert {after[key].shape[0] for key in changed} == {3}
    output = made(**inputs_of(kind, name, model.config))
    logits = output.last_hidden_state if kind == "pp_lcnet" else output.logits
    assert logits.shape == (2, 3)
    torch.autograd.backward(logits.square().sum())
    parameters = dict(made.named_parameters())
    assert all(parameters[key].grad is not None for key in changed)
    made.save_pretrained(tmp_path / "made")
    again = load_classifier(tmp_path / "made")
    assert type(again) is type(model)
    assert again.state_dict().keys() == after.keys()


def test_what_is_not_tried_is_known() -> None:
    assert {*MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES} > _OTHERS
    assert len(architectures()) == 43


@pytest.mark.release
def test_a_model_without_an_output_layer_costs_one_line(tmp_path: Path) -> None:
    sizes = {**_TEXT, "num_key_value_heads": 1, "head_dim": 8}
    config = hf.ShieldGemma2Config(text_config=sizes, vision_config=_COMMON, mm_tokens_per_image=4)
    hf.ShieldGemma2ForImageClassification(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="can't find the output layer of this shieldgemma2 model"):
        classifier_for(tmp_path, ["a", "b", "c"], 0)
