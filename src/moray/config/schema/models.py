"""Models: the bases that runs start from."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moray.config.schema.base import Name, PositiveInt, Section
from moray.config.schema.vision import ScratchVisionModel


class TrainedTokenizer(Section):
    """A byte-level BPE tokenizer, trained on the train split of a dataset."""

    train_on: Name = Field(
        description="Name of the dataset whose train split the tokenizer is trained on. Of a "
        "large one, at most 256 MB are used, spread evenly.",
    )
    vocab_size: Annotated[int, Field(ge=258)] = Field(
        4096, description="Vocabulary size, including the 256 bytes and the special tokens."
    )


class ScratchModel(Section):
    """A randomly initialised model with its own tokenizer."""

    source: Literal["scratch"] = Field(description="Selects this source.")
    architecture: Literal["llama"] = Field("llama", description="Model type in transformers.")
    tokenizer: TrainedTokenizer = Field(description="The tokenizer to train.")
    hidden_size: PositiveInt = Field(256, description="Width of the residual stream.")
    intermediate_size: PositiveInt = Field(688, description="Width inside the MLP.")
    num_hidden_layers: PositiveInt = Field(4, description="Number of transformer blocks.")
    num_attention_heads: PositiveInt = Field(4, description="Attention heads per block.")
    num_key_value_heads: PositiveInt | None = Field(
        None, description="Key and value heads per block; defaults to `num_attention_heads`."
    )
    max_position_embeddings: PositiveInt = Field(
        1024, description="Maximum sequence length in tokens."
    )
    tie_word_embeddings: bool = Field(
        True, description="Whether input and output embeddings share one matrix."
    )
    seed: int = Field(0, ge=0, description="Seed for the initial weights.")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(
                f"hidden_size: got {self.hidden_size}, expected an even multiple of "
                f"num_attention_heads ({self.num_attention_heads}); change one of them"
            )
        if self.num_attention_heads % (self.num_key_value_heads or 1):
            raise ValueError(
                f"num_key_value_heads: got {self.num_key_value_heads}, expected a divisor of "
                f"num_attention_heads ({self.num_attention_heads}); change one of them"
            )
        return self


class _Existing(Section):
    """Base class of the models that are not made from scratch."""

    classes_of: Name | None = Field(
        None,
        description="For images: name of the dataset whose classes the model tells apart. If its "
        "own differ, it gets a new, randomly initialised output layer.",
    )
    seed: int = Field(0, ge=0, description="For images: seed for the new output layer.")


class PathModel(_Existing):
    """A Hugging Face folder on this machine: config, safetensors, tokenizer or image processor."""

    source: Literal["path"] = Field(description="Selects this source.")
    path: str = Field(description="Path of the folder, relative to the working directory.")


class HubModel(_Existing):
    """A model on the Hugging Face hub, pinned to a commit."""

    source: Literal["hub"] = Field(description="Selects this source.")
    repo_id: str = Field(description="`owner/name` on the hub.", pattern=r"^[^/\s]+(/[^/\s]+)?$")
    revision: str = Field(
        description="Commit hash, 40 hexadecimal digits. Branches are not accepted, because "
        "they can move.",
        pattern=r"^[0-9a-f]{40}$",
    )


BaseModelSource = Annotated[
    ScratchModel | ScratchVisionModel | PathModel | HubModel, Field(discriminator="source")
]
