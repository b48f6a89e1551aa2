"""Datasets of images that aren't tables: digits, IDX files, folders with a class each."""

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from moray.config.folders import files_below
from moray.config.schema.base import Fraction, Section, UserPath
from moray.config.schema.sources import TEST_SHARE, VALIDATION_SHARE, Source
from moray.config.splits import Split, folders_by_split, idx_files_by_split
from moray.errors import UserError
from moray.provenance.contents import contents_of


class Digits(Source):
    """1,797 handwritten digits of 8 x 8 pixels, which are part of scikit-learn."""

    source: Literal["digits"] = Field(description="Selects this source.")
    format: Literal["images"] = Field("images", description="Images with a label each.")
    validation_share: Fraction = VALIDATION_SHARE
    test_share: Fraction = TEST_SHARE

    @property
    def libraries(self) -> dict[str, str]:
        return {"scikit-learn": "sklearn"}


class IdxFiles(Section):
    """The two files of a split in the format of MNIST, compressed (`.gz`) or not."""

    images: UserPath = Field(description="Path of the images, relative to the working directory.")
    labels: UserPath = Field(description="Path of the labels.")


class Idx(Source):
    """Images in IDX files, as MNIST and the datasets in its format come."""

    source: Literal["idx"] = Field(description="Selects this source.")
    format: Literal["images"] = Field("images", description="Images with a label each.")
    train: IdxFiles = Field(description="Files of the train split.")
    test: IdxFiles | None = Field(None, description="Files of the test split.")
    validation_share: Fraction = VALIDATION_SHARE
    test_share: Fraction = TEST_SHARE

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
    path: UserPath = Field(
        description="Path of the folder, relative to the working directory. It contains the "
        "folders of the classes; or `train` and, optionally, `validation` (or `val`, `valid`) and "
        "`test`, which contain them. Links are followed, and hidden folders left out. The files "
        "are of any type that Pillow reads.",
    )
    validation_share: Fraction = VALIDATION_SHARE
    test_share: Fraction = TEST_SHARE

    @property
    def given_splits(self) -> set[Split]:
        """The splits that have folders of their own; the others are taken from train."""
        return set(folders_by_split(self.path))

    def state(self, path: str) -> dict[str, str]:
        """A digest of the files, which are too many to be the input files of a rule."""
        return {"listing": _digest_of_listing(self.path, f"{path}.path")}


def _digest_of_listing(folder: str, key: str) -> str:
    """A digest of the names and contents of a folder's files, to tell whether they changed."""
    if not Path(folder).is_dir():
        raise UserError(
            key,
            f"got {folder}, expected a folder with a folder of images for each class",
            "check the path; it is relative to the working directory",
        )
    digests = contents_of(file.path for file in files_below(folder))
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16]
