"""Low-rank adapters: training a few added weights, and none of the base's."""

from typing import Annotated, Literal

from pydantic import Field

from moray.config.schema.base import PositiveInt, Section


class Adapter(Section):
    """LoRA: small trained matrices beside the frozen ones of the base. Source: Hu et al., 2021."""

    rank: PositiveInt = Field(8, description="Inner dimension of the added pairs of matrices.")
    alpha: float = Field(
        16.0, gt=0, description="What they add is scaled by `alpha / rank`; see `use_rslora`."
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of their inputs.")
    target_modules: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = Field(
        "all-linear",
        description="Names, or ends of names, of the layers that get a pair. `all-linear`: all "
        "linear layers but the output embedding.",
    )
    use_rslora: bool = Field(
        False,
        description="Whether the scale is `alpha / sqrt(rank)`. Source: Kalajdzievski, 2023.",
    )
    use_dora: bool = Field(
        False,
        description="Whether magnitudes of the base's columns are trained too. Source: Liu et "
        "al., 2024.",
    )
    base_dtype: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Type of the frozen base's weights during training. `bf16` takes half of the "
        "memory and computes in bf16; the adapters stay fp32.",
    )
    quantize_base: Literal["4bit"] | None = Field(
        None,
        description="`4bit`: the linear layers of the frozen base are held in 4-bit NormalFloat "
        "(QLoRA, Dettmers et al., 2023), and its other weights in `base_dtype`. Needs the optional "
        "`qlora` extra and `strategy: ddp`.",
    )
