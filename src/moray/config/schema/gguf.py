"""Conversion of a run's model for llama.cpp and Ollama."""

from typing import Annotated, Literal

from pydantic import Field

from moray.config.schema.base import Section

GgufType = Literal["f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k"]


class Gguf(Section):
    """The files that `snakemake gguf` makes of the model."""

    types: Annotated[list[GgufType], Field(min_length=1)] = Field(
        ["f16"],
        description="Types of the weights, with llama.cpp's names; one file for each. Those below "
        "8 bits need its `llama-quantize`.",
    )
