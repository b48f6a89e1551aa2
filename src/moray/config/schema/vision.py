"""Models of images from scratch."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moray.config.schema.base import Name, PositiveInt, Section


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
    seed: int = Field(0, ge=0, description="Seed for the initial weights.")
