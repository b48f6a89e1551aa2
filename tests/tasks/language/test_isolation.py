"""Whether packed documents attend to each other."""

import copy
from collections.abc import Iterator

import pytest
import torch
from architectures import HYBRID, PACKED, UNPACKED, Config, build
from transformers import PreTrainedModel

from moray.errors import UserError
from moray.tasks.language.isolation import check_isolation, compute_in_fp32, isolates_documents


def small_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Of a model as it is before training, whose documents hardly influence each other."""
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() >= 2:
                weights.mul_(0.02 / 0.3)
    return model


def variants(config: Config) -> Iterator[PreTrainedModel]:
    """With large and small weights, in both types."""
    for dtype in (torch.float32, torch.bfloat16):
        yield build(config()).to(dtype)
        yield small_weights(build(config())).to(dtype)


@pytest.mark.long
@pytest.mark.parametrize("architecture", PACKED)
def test_architectures_that_keep_documents_apart_pass(architecture: str) -> None:
    for model in variants(PACKED[architecture]):
        assert isolates_documents(model), model.dtype
        check_isolation(model)


@pytest.mark.parametrize("architecture", UNPACKED)
def test_architectures_that_leak_are_refused_by_name(architecture: str) -> None:
    for model in variants(UNPACKED[architecture]):
        assert not isolates_documents(model), model.dtype
        with pytest.raises(UserError) as caught:
            check_isolation(model)
        kind = model.config.model_type
        assert str(caught.value) == (
            f"data.packing: packed documents would attend to each other in {kind}; "
            "set it to auto or false"
        )


@pytest.mark.parametrize("architecture", HYBRID)
def test_what_leaks_through_small_weights_is_found(architecture: str) -> None:
    """It may be a thousandth of what attention lets through, and grows in training."""
    assert not isolates_documents(build(HYBRID[architecture]()))
    assert not isolates_documents(small_weights(build(HYBRID[architecture]())))
    in_bf16 = small_weights(build(HYBRID[architecture]()))
    for weights in in_bf16.parameters():
        weights.data = weights.data.bfloat16()
    with compute_in_fp32(in_bf16):
        assert not isolates_documents(in_bf16)


@pytest.mark.parametrize("architecture", ["Gemma 3 with images", "Mixtral", "GPT-2", "OPT"])
def test_a_model_in_bf16_is_computed_in_fp32_and_stays_as_it_was(architecture: str) -> None:
    model = build((PACKED | UNPACKED)[architecture]())
    for weights in model.parameters():
        # Some architectures keep vectors in fp32.
        if weights.dim() > 1:
            weights.data = weights.data.bfloat16()
    tokens = torch.arange(20).unsqueeze(0)
    whole = copy.deepcopy(model).float()(input_ids=tokens).logits
    before = {name: (value.clone(), value.dtype) for name, value in model.named_parameters()}
    with compute_in_fp32(model):
        assert torch.equal(model(input_ids=tokens).logits, whole)
    for name, value in model.named_parameters():
        assert value.dtype == before[name][1], name
        assert torch.equal(value, before[name][0]), name


def test_positions_that_do_not_restart_are_found_too() -> None:
    """A mask alone isn't enough where a position is a learned vector."""
    model = build(PACKED["GPT-2"]())
    embed = model.transformer.wpe

    def ignore(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (torch.arange(inputs[0].shape[-1]).expand_as(inputs[0]),)

    hook = embed.register_forward_pre_hook(ignore)
    assert not isolates_documents(model)
    hook.remove()
    assert isolates_documents(model)
