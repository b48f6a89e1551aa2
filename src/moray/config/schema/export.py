"""The export of a run's model, its upload, and files for other programs."""

from typing import Annotated, Literal

from pydantic import Field

from moray.config.schema.base import Section


class Export(Section):
    """How the trained model is exported as a Hugging Face folder."""

    dtype: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="Data type of the stored weights. `auto`: that of the model the run started "
        "from; adapters that aren't merged are stored in fp32.",
    )
    merge_adapter: bool = Field(
        True,
        description="Whether a run with an adapter merges it into the base and exports the "
        "whole model. If false, only the adapter is exported, and the base is needed to load "
        "it.",
    )


class Push(Section):
    """Where `snakemake push` uploads the model and its card to."""

    repo: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Repository of the Hub, `owner/name`. It is created if it doesn't exist. Each "
        "run needs one of its own.",
    )
    private: bool = Field(
        True,
        description="Whether a repository that is created is private. One that is there stays as "
        "it is.",
    )


GgufType = Literal["f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k"]


class Gguf(Section):
    """The files that `snakemake gguf` makes of the model."""

    types: Annotated[list[GgufType], Field(min_length=1)] = Field(
        ["f16"],
        description="Types of the weights, with llama.cpp's names; one file for each. Those below "
        "8 bits need its `llama-quantize`.",
    )
