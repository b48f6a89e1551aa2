"""Datasets of labelled images."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from moray.config.listing import digest_of_listing
from moray.config.schema.base import Fraction, Section
from moray.config.schema.datasets import HubDataset, LocalFiles, Source
from moray.config.splits import Split, folders_by_split, idx_files_by_split

_VALIDATION_SHARE = Field(
    0.05, description="Share of train to use as the validation split, if none is given."
)
_TEST_SHARE = Field(0.05, description="Share of train to use as the test split, if none is given.")


class Digits(Source):
    """1,797 handwritten digits of 8 x 8 pixels, which are part of scikit-learn."""

    libraries: ClassVar[dict[str, str]] = {"scikit-learn": "sklearn"}

    source: Literal["digits"] = Field(description="Selects this source.")
    format: Literal["images"] = Field("images", description="Images with a label each.")
    validation_share: Fraction = _VALIDATION_SHARE
    test_share: Fraction = _TEST_SHARE


class IdxFiles(Section):
    """The two files of a split in the format of MNIST, compressed (`.gz`) or not."""

    images: str = Field(description="Path of the images, relative to the working directory.")
    labels: str = Field(description="Path of the labels.")


class Idx(Source):
    """Images in IDX files, as MNIST and the datasets in its format come."""

    source: Literal["idx"] = Field(description="Selects this source.")
    format: Literal["images"] = Field("images", description="Images with a label each.")
    train: IdxFiles = Field(description="Files of the train split.")
    test: IdxFiles | None = Field(None, description="Files of the test split.")
    validation_share: Fraction = _VALIDATION_SHARE
    test_share: Fraction = _TEST_SHARE

    @property
    def given_splits(self) -> set[Split]:
        """The splits that have files of their own; the others are taken from train."""
        return set(idx_files_by_split(self.train, self.test))

    @property
    def files(self) -> dict[Split, dict[str, list[str]]]:
        """The two files of each split."""
        return {
            split: {f"{split}.{key}": [path] for key, path in files.items()}
            for split, files in idx_files_by_split(self.train, self.test).items()
        }


class ImageFolder(Source):
    """A folder with a subfolder of images for each class, whose name is the label."""

    source: Literal["image-folder"] = Field(description="Selects this source.")
    format: Literal["images"] = Field("images", description="Images with a label each.")
    path: str = Field(
        description="Path of the folder, relative to the working directory. It contains the "
        "folders of the classes; or `train` and, optionally, `validation` and `test`, which "
        "contain them. The files are of any type that Pillow reads.",
    )
    validation_share: Fraction = _VALIDATION_SHARE
    test_share: Fraction = _TEST_SHARE

    @property
    def given_splits(self) -> set[Split]:
        """The splits that have folders of their own; the others are taken from train."""
        return set(folders_by_split(self.path))

    def state(self, path: str) -> dict[str, str]:
        """A digest of the files, which are too many to be the input files of a rule."""
        return {"listing": digest_of_listing(self.path, f"{path}.path")}


OnlyImages = Annotated[Digits | Idx | ImageFolder, Field(discriminator="source")]
ImageDataset = Annotated[OnlyImages | LocalFiles | HubDataset, Field(discriminator="source")]
