"""Low-rank adapters: a few added weights are trained, and the base is frozen."""

from typing import Annotated, Literal

from pydantic import Field

from moray.config.schema.base import PositiveInt, Section


class Adapter(Section):
    """LoRA: trains small matrices added to the frozen base. Source: Hu et al., 2021."""

    rank: PositiveInt = Field(8, description="Rank of the added matrices.")
    alpha: float = Field(
        16.0,
        gt=0,
        description="The adapter's output is scaled by `alpha / rank`; see `use_rslora`.",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout on the adapter's input.")
    target_modules: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = Field(
        "all-linear",
        description="Names, or ends of names, of the layers to adapt. `all-linear`: all linear "
        "layers except the output embedding.",
    )
    use_rslora: bool = Field(
        False,
        description="Whether to scale by `alpha / sqrt(rank)` instead. Source: Kalajdzievski, "
        "2023.",
    )
    use_dora: bool = Field(
        False,
        description="Whether to train the magnitudes of the base's weight columns too. Source: "
        "Liu et al., 2024.",
    )
    base_dtype: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Data type of the frozen base's weights during training. `bf16` halves "
        "their memory and computes in bf16; the adapter stays in fp32.",
    )
    quantize_base: Literal["4bit"] | None = Field(
        None,
        description="`4bit`: keep the linear layers of the frozen base in 4-bit NormalFloat "
        "(QLoRA, Dettmers et al., 2023), and its other weights in `base_dtype`. Needs the "
        "optional `qlora` extra and `strategy: ddp`.",
    )
