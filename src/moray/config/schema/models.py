"""Models: the bases that runs start from."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moray.config.schema.base import (
    Name,
    PositiveInt,
    RepoId,
    Revision,
    RunName,
    Section,
    Seed,
    UserPath,
    added,
)


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
    classes_of: Name | None = added(
        None,
        description="For text with labels: name of the dataset whose classes the model tells "
        "apart, or whose numbers it predicts.",
    )
    seed: Seed = Field(0, description="Seed for the initial weights.")

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
        description="For images and texts with labels: name of the dataset whose classes the model "
        "tells apart. If its own differ, it gets a new, randomly initialised output layer; images "
        "have them in the dataset's order.",
    )
    seed: Seed = Field(
        0, description="Seed for a new output layer (`classes_of`) or for `random_weights`."
    )
    random_weights: bool = added(
        False,
        description="For text: take the model's config and tokenizer, and new random weights, to "
        "train it from the beginning. Its own weights are neither read nor downloaded.",
    )
    new_tokens: list[str] = added(
        [],
        description="For text: special tokens to add, such as the marks of a chat template. Their "
        "embeddings begin as the mean of the others, and are trained; with an adapter, only they "
        "are, of all embeddings.",
    )
    eos_token: str | None = added(
        None,
        description="For text: the token that ends texts and answers, instead of the tokenizer's "
        "own; one of the model's or of `new_tokens`.",
    )
    adapter: UserPath | None = added(
        None,
        description="For text: path of a folder with a LoRA adapter of this model, as PEFT writes "
        "it (`adapter_config.json`, `adapter_model.safetensors`), relative to the working "
        "directory. Runs start from both; with `adapter.create_new_adapter: false`, they train it "
        "further.",
    )

    @model_validator(mode="after")
    def _tokens_are_of_text(self) -> Self:
        for key in ("new_tokens", "eos_token", "adapter"):
            if getattr(self, key) and self.classes_of is not None:
                raise ValueError(f"{key}: only for models of text; remove it or classes_of")
        if self.adapter and self.random_weights:
            raise ValueError("adapter: it isn't one of random_weights; remove one of them")
        if "" in self.new_tokens or len(set(self.new_tokens)) < len(self.new_tokens):
            raise ValueError("new_tokens: got an empty or a repeated token; remove it")
        return self


class PathModel(_Existing):
    """A Hugging Face folder on this machine: config, safetensors, tokenizer or image processor."""

    source: Literal["path"] = Field(description="Selects this source.")
    path: UserPath = Field(description="Path of the folder, relative to the working directory.")


class HubModel(_Existing):
    """A model on the Hugging Face hub, pinned to a commit."""

    source: Literal["hub"] = Field(description="Selects this source.")
    repo_id: RepoId
    revision: Revision


class RunModel(Section):
    """The exported model of a run on text, with a new output layer for labels or rewards."""

    source: Literal["run"] = Field(description="Selects this source.")
    run: RunName = Field(description="Name of the run, which exports a whole model.")
    classes_of: Name = Field(
        description="Name of the dataset of labelled texts or of pairs that the model is for.",
    )
    seed: Seed = Field(0, description="Seed for the new output layer.")


class ResNet(Section):
    """A residual network (He et al., 2015) of basic blocks. By default, the shape of ResNet18."""

    depths: Annotated[list[PositiveInt], Field(min_length=1)] = Field(
        [2, 2, 2, 2], description="Number of blocks in each stage."
    )
    hidden_sizes: Annotated[list[PositiveInt], Field(min_length=1)] = Field(
        [64, 128, 256, 512], description="Number of channels in each stage."
    )
    embedding_size: PositiveInt = Field(
        64, description="Number of channels of the first convolution."
    )

    @model_validator(mode="after")
    def _stages_agree(self) -> Self:
        if len(self.depths) != len(self.hidden_sizes):
            raise ValueError(
                f"depths: got {len(self.depths)} stages, expected as many as hidden_sizes has "
                f"({len(self.hidden_sizes)}); change one of them"
            )
        return self


class ViT(Section):
    """A vision transformer (Dosovitskiy et al., 2020)."""

    patch_size: PositiveInt = Field(4, description="Height and width of a patch in pixels.")
    hidden_size: PositiveInt = Field(192, description="Width of the residual stream.")
    intermediate_size: PositiveInt = Field(768, description="Width inside the MLP.")
    num_hidden_layers: PositiveInt = Field(6, description="Number of transformer blocks.")
    num_attention_heads: PositiveInt = Field(3, description="Attention heads per block.")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size: got {self.hidden_size}, expected a multiple of "
                f"num_attention_heads ({self.num_attention_heads}); change one of them"
            )
        return self


class ScratchVisionModel(Section):
    """A randomly initialised model that classifies images."""

    source: Literal["scratch-vision"] = Field(description="Selects this source.")
    architecture: Literal["resnet", "vit"] = Field(
        "resnet", description="Model type in transformers."
    )
    classes_of: Name = Field(description="Name of the dataset whose classes the model tells apart.")
    image_size: PositiveInt | None = Field(
        None,
        description="Height and width that images are resized to. By default, the size of the "
        "dataset's images, if all have the same one and are square.",
    )
    num_channels: Literal[1, 3] = Field(
        3,
        description="3: colour; grey images get three equal channels. 1: grey, for models that are "
        "not used with transformers' pipelines, which turn every image into colour.",
    )
    resnet: ResNet = Field(ResNet(), description="Shape of `architecture: resnet`.")
    vit: ViT = Field(ViT(), description="Shape of `architecture: vit`.")
    seed: Seed = Field(0, description="Seed for the initial weights.")


BaseModelSource = Annotated[
    ScratchModel | ScratchVisionModel | PathModel | HubModel | RunModel,
    Field(discriminator="source"),
]
