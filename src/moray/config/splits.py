"""Keys that take one value or one per split. Part of the code that results depend on."""

from typing import Literal, cast

from pydantic import BaseModel

Split = Literal["train", "validation", "test"]


def paths_by_split(locations: str | list[str] | BaseModel) -> dict[Split, list[str]]:
    """The paths, globs or URLs of each split that has its own."""
    given = _by_split(locations)
    return {split: [one] if isinstance(one, str) else one for split, one in given.items()}


def expressions_by_split(expression: str | BaseModel) -> dict[Split, str]:
    """The split expression of each split that has its own."""
    return cast(dict[Split, str], _by_split(expression))


def idx_files_by_split(train: BaseModel, test: BaseModel | None) -> dict[Split, dict[str, str]]:
    """The IDX files of each split that has its own, by the keys that name them."""
    given: dict[Split, BaseModel | None] = {"train": train, "test": test}
    return {split: files.model_dump() for split, files in given.items() if files}


def _by_split(value: str | list[str] | BaseModel) -> dict[Split, str | list[str]]:
    """A single value is for train; a section has a key for each split."""
    if not isinstance(value, BaseModel):
        return {"train": value}
    return {cast(Split, split): one for split, one in value if one is not None}
