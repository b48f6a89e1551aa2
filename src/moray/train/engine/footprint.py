"""What a worker holds of a model between its backward pass and its step."""

from dataclasses import dataclass

from moray.config.schema import Train

_FLOAT = 4


@dataclass(frozen=True)
class Footprint:
    """Bytes on a worker, all in fp32; activations come on top.

    Attributes:
        parameters: what the forward pass computes with.
        gradients: of the trained ones.
        optimizer: AdamW's two moments; under ZeRO, a copy of the trained parameters too.
    """

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer


def footprint(settings: Train, trained: int, frozen: int, workers: int) -> Footprint:
    """The footprint of a strategy.

    Source: Rajbhandari et al., "ZeRO", 2020, section 3, for fp32 throughout.

    Args:
        settings: the `train` section.
        trained: parameters that are trained.
        frozen: parameters that aren't.
        workers: how many share the work.
    """
    # Of each: whether parameters, gradients and optimizer state are spread; floats of the last.
    spread = {
        "ddp": (False, False, False, 2),
        "fsdp2": (True, True, True, 2),
        "zero 1": (False, False, True, 3),
        "zero 2": (False, True, True, 3),
        "zero 3": (True, True, True, 3),
    }
    if settings.global_batch_size > workers * settings.micro_batch_size:
        # Gradients that add up before they meet are whole.
        spread["fsdp2"] = (True, False, True, 2)
    deepspeed = settings.strategy == "deepspeed"
    name = f"zero {settings.deepspeed.zero_stage}" if deepspeed else settings.strategy
    parameters, gradients, optimizer, floats = spread[name]
    return Footprint(
        _FLOAT * (trained + frozen) // (workers if parameters else 1),
        _FLOAT * trained // (workers if gradients else 1),
        _FLOAT * floats * trained // (workers if optimizer else 1),
    )
