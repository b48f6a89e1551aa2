"""Datasets: where rows come from, what shape they have, how they are split."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moray.config.schema.base import Model, Share

Format = Literal["text", "prompt-completion"]


class PythonStdlib(Model):
    """The standard library of the running Python: real code that every machine has."""

    source: Literal["python-stdlib"] = Field(description="Which source this is.")
    format: Format = Field(
        "text",
        description="`text`: whole modules. `prompt-completion`: functions, from signature and "
        "docstring to body.",
    )
    validation_share: Share = Field(
        0.05, description="Share of the modules that makes the validation split."
    )
    test_share: Share = Field(0.05, description="Share of the modules that makes the test split.")


class LocalFiles(Model):
    """Files on this machine or on a shared file system."""

    source: Literal["files"] = Field(description="Which source this is.")
    path: str | Annotated[list[str], Field(min_length=1)] = Field(
        description="Path or glob, or a list of them, relative to the working directory: `.txt` "
        "(a document a file), `.jsonl`, `.json`, `.csv`, `.parquet` (a document a row)."
    )
    format: Format = Field(
        "text",
        description="`text`: a column `text`. `prompt-completion`: columns `prompt` and "
        "`completion`; only the completion is trained.",
    )
    split_by: Literal["hash", "tail"] = Field(
        "hash",
        description="`hash`: each document's hash decides, so that splits stay put when data is "
        "added. `tail`: the last shares of the text, cut at a character (`text` only).",
    )
    validation_share: Share = Field(0.05, description="Share that makes the validation split.")
    test_share: Share = Field(0.05, description="Share that makes the test split.")

    @property
    def patterns(self) -> list[str]:
        """The paths and globs, always as a list."""
        return [self.path] if isinstance(self.path, str) else self.path

    @model_validator(mode="after")
    def _tail_needs_text(self) -> Self:
        if self.split_by == "tail" and self.format != "text":
            raise ValueError(
                f"split_by: got tail with format {self.format}, expected format text; "
                "set split_by: hash"
            )
        return self


Dataset = Annotated[PythonStdlib | LocalFiles, Field(discriminator="source")]
