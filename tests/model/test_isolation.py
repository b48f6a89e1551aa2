"""Whether documents of a row see each other."""

import pytest
import torch
from architectures import PACKED, UNPACKED, build
from transformers import PreTrainedModel

from moray.errors import UserError
from moray.model.isolation import check_isolation, isolates_documents


def small_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Of a model as it is before training, whose documents hardly influence each other."""
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() >= 2:
                weights.mul_(0.02 / 0.3)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prepare", [lambda model: model, small_weights])
@pytest.mark.parametrize("architecture", PACKED)
def test_architectures_that_keep_documents_apart_pass(
    architecture: str, prepare: type, dtype: torch.dtype
) -> None:
    model = prepare(build(PACKED[architecture]())).to(dtype)
    assert isolates_documents(model)
    check_isolation(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prepare", [lambda model: model, small_weights])
@pytest.mark.parametrize("architecture", UNPACKED)
def test_architectures_that_leak_are_refused_by_name(
    architecture: str, prepare: type, dtype: torch.dtype
) -> None:
    model = prepare(build(UNPACKED[architecture]())).to(dtype)
    assert not isolates_documents(model)
    with pytest.raises(UserError) as caught:
        check_isolation(model)
    assert str(caught.value) == (
        "data.packing: documents that share a row see each other in a model of type "
        f"{model.config.model_type}; set it to auto or false"
    )


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
