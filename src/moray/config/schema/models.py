"""Models: the base that a run starts from."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moray.config.schema.base import Name, PositiveInt, Section


class TrainedTokenizer(Section):
    """A byte-level BPE tokenizer, trained on the train split of a dataset."""

    train_on: Name = Field(
        description="Name of the dataset whose train split it learns from; of a large one, at "
        "most 256 MB, spread evenly."
    )
    vocab_size: Annotated[int, Field(ge=258)] = Field(
        4096, description="Tokens, the 256 bytes and the special tokens included."
    )


class ScratchModel(Section):
    """A randomly initialised model with a tokenizer of its own."""

    source: Literal["scratch"] = Field(description="Which source this is.")
    architecture: Literal["llama"] = Field("llama", description="Model family of transformers.")
    tokenizer: TrainedTokenizer = Field(description="The tokenizer to train.")
    hidden_size: PositiveInt = Field(256, description="Width of the residual stream.")
    intermediate_size: PositiveInt = Field(688, description="Width inside the MLP.")
    num_hidden_layers: PositiveInt = Field(4, description="Transformer blocks.")
    num_attention_heads: PositiveInt = Field(4, description="Attention heads in a block.")
    num_key_value_heads: PositiveInt | None = Field(
        None, description="Key and value heads in a block; as many as attention heads unless given."
    )
    max_position_embeddings: PositiveInt = Field(
        1024, description="Longest sequence, in tokens, that the model is meant for."
    )
    tie_word_embeddings: bool = Field(
        True, description="Whether input and output embeddings are one matrix."
    )
    seed: int = Field(0, ge=0, description="Seed of the initial weights.")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(
                f"hidden_size: got {self.hidden_size}, expected an even multiple of "
                f"num_attention_heads ({self.num_attention_heads}); change either"
            )
        if self.num_attention_heads % (self.num_key_value_heads or 1):
            raise ValueError(
                f"num_key_value_heads: got {self.num_key_value_heads}, expected a divisor of "
                f"num_attention_heads ({self.num_attention_heads}); change either"
            )
        return self


class PathModel(Section):
    """A Hugging Face folder on this machine: config, safetensors, tokenizer."""

    source: Literal["path"] = Field(description="Which source this is.")
    path: str = Field(description="The folder, relative to the working directory.")


class HubModel(Section):
    """A model on the Hugging Face hub, pinned to a commit."""

    source: Literal["hub"] = Field(description="Which source this is.")
    repo_id: str = Field(description="`owner/name` on the hub.", pattern=r"^[^/\s]+(/[^/\s]+)?$")
    revision: str = Field(
        description="The commit, 40 hexadecimal digits: a branch would move under the workflow.",
        pattern=r"^[0-9a-f]{40}$",
    )


BaseModelSource = Annotated[ScratchModel | PathModel | HubModel, Field(discriminator="source")]
