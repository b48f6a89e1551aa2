"""Datasets: where rows come from, what shape they have, how they are split."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moray.config.formats import CHAT_FORMATS, FORMATS
from moray.config.schema.base import Fraction, Section
from moray.config.splits import Split, expressions_by_split, paths_by_split

Paths = str | Annotated[list[str], Field(min_length=1)]

# In an address, a chained one too. Keys of object stores may hold a slash; a port is no secret.
CREDENTIALS = re.compile(r"://(?:[^/?#]*@|[^/?#@:]*:(?!:|\d*(?:[/?#]|$))[^@]*@)")
CREDENTIALS_REFUSED = (
    "got an address with credentials in it, expected one without: what the config says is written "
    "to logs and records; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://, or write "
    '~/.netrc and set FSSPEC_HTTPS=\'{"client_kwargs": {"trust_env": true}}\' for https://'
)


class _Source(Section):
    """What every dataset has."""

    @property
    def given_splits(self) -> set[Split]:
        """The splits that the source itself makes; the others are taken from train."""
        return {"train"}


class PythonStdlib(_Source):
    """The standard library of the running Python: real code that every machine has."""

    source: Literal["python-stdlib"] = Field(description="Which source this is.")
    format: Literal["text", "prompt-completion"] = Field(
        "text",
        description="`text`: whole modules. `prompt-completion`: functions, from signature and "
        "docstring to body.",
    )
    validation_share: Fraction = Field(
        0.05, description="Share of the modules that makes the validation split."
    )
    test_share: Fraction = Field(
        0.05, description="Share of the modules that makes the test split."
    )


class Synthetic(_Source):
    """Made-up text of any size, for trying a set-up and for measuring."""

    source: Literal["synthetic"] = Field(description="Which source this is.")
    format: Literal["text"] = Field("text", description="Documents of some sentences each.")
    size_gb: float = Field(gt=0, description="Size of the text, in 10^9 bytes.")
    seed: int = Field(0, ge=0, description="Seed of the text.")
    validation_share: Fraction = Field(0.05, description="Share that makes the validation split.")
    test_share: Fraction = Field(0.05, description="Share that makes the test split.")


class BySplit(Section):
    """A place for each split; a split without one is taken from train, by its share."""

    train: Paths = Field(description="Where the train split is.")
    validation: Paths | None = Field(None, description="Where the validation split is.")
    test: Paths | None = Field(None, description="Where the test split is.")


Locations = Paths | BySplit


class _Table(_Source):
    """What sources have in common whose rows have named columns."""

    format: Literal["text", "prompt-completion", "instruction", "messages"] = Field(
        "text",
        description="What a row is. `text`: a document. `prompt-completion`: only the completion "
        "is trained. `instruction`: an instruction, an input that may be empty, and the output "
        "(Alpaca). `messages`: a conversation in OpenAI's spelling (`role`, `content`, "
        "`tool_calls`) or ShareGPT's (`from`, `value`). The last two go through a chat template, "
        "and only what the assistant says is trained.",
    )
    columns: dict[str, str] = Field(
        {},
        description="Names of the columns where they aren't the format's own: `text`; `prompt`, "
        "`completion`; `instruction`, `input`, `output`, `system`; `messages` (or "
        "`conversations`), `tools`, `system`. `{prompt: question, completion: answer}`, say.",
    )
    system: str | None = Field(
        None, description="System prompt of conversations that have none of their own."
    )
    split_by: Literal["hash", "tail"] = Field(
        "hash",
        description="`hash`: each document's hash decides, so that splits stay put when data is "
        "added. `tail`: the last shares of the text, cut at a character (`text` only).",
    )
    validation_share: Fraction = Field(
        0.05, description="Share of train that makes the validation split, if none is given."
    )
    test_share: Fraction = Field(
        0.05, description="Share of train that makes the test split, if none is given."
    )

    @model_validator(mode="after")
    def _format_fits(self) -> Self:
        if self.split_by == "tail" and self.format != "text":
            raise ValueError(
                f"split_by: got tail with format {self.format}, expected format text; "
                "set split_by: hash"
            )
        if unknown := [name for name in self.columns if name not in FORMATS[self.format]]:
            raise ValueError(
                f"columns.{unknown[0]}: got a column that format {self.format} doesn't have, "
                f"expected {', '.join(FORMATS[self.format])}; rename the key or change the format"
            )
        if self.system is not None and self.format not in CHAT_FORMATS:
            raise ValueError(
                f"system: got a system prompt with format {self.format}, expected format "
                "instruction or messages; remove it or change the format"
            )
        return self


class LocalFiles(_Table):
    """Files on this machine or on a shared file system."""

    source: Literal["files"] = Field(description="Which source this is.")
    path: Locations = Field(
        description="Path or glob, or a list of them, relative to the working directory: `.txt` "
        "(a document a file, of a large one each 4 MB), `.jsonl`, `.json`, `.csv`, `.parquet` (a "
        "document a row), all but the last also as `.gz` or `.zst`. Or `{train: …, validation: …, "
        "test: …}`."
    )

    @property
    def given_splits(self) -> set[Split]:
        """The splits that have files of their own; the others are taken from train."""
        return set(paths_by_split(self.path))

    @model_validator(mode="after")
    def _on_this_machine(self) -> Self:
        if any("://" in path for paths in paths_by_split(self.path).values() for path in paths):
            raise ValueError("path: got an address, expected paths of files; set source: url")
        return self


class Url(_Table):
    """Files on a web server or in an object store, read through fsspec."""

    source: Literal["url"] = Field(description="Which source this is.")
    url: Locations = Field(
        description="URL or a list of them, `https://`, `s3://`, `gs://` or whatever fsspec has a "
        "package for; in an object store a glob too. Or `{train: …, validation: …, test: …}`. "
        "Files as for `files`."
    )
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="SHA-256 that the file must have, where `url` names just one."
    )

    @property
    def given_splits(self) -> set[Split]:
        """The splits that have URLs of their own; the others are taken from train."""
        return set(paths_by_split(self.url))

    @model_validator(mode="after")
    def _no_credentials(self) -> Self:
        named = [url for urls in paths_by_split(self.url).values() for url in urls]
        if any(map(CREDENTIALS.search, named)):
            raise ValueError(f"url: {CREDENTIALS_REFUSED}")
        return self

    @model_validator(mode="after")
    def _one_file_has_the_digest(self) -> Self:
        named = [url for urls in paths_by_split(self.url).values() for url in urls]
        if self.sha256 is not None and len(named) > 1:
            raise ValueError(
                f"sha256: got a digest for {len(named)} URLs, expected one URL; "
                "remove it, or make a dataset of each"
            )
        return self


class HubSplits(Section):
    """A split expression of the hub for each split; one without is taken from train."""

    train: str = Field(description="What to train on, `train[:90%]`, say.")
    validation: str | None = Field(None, description="What makes the validation split.")
    test: str | None = Field(None, description="What makes the test split.")


class HubDataset(_Table):
    """A dataset on the Hugging Face hub, pinned to a commit; `hf auth login` for gated ones."""

    source: Literal["hub"] = Field(description="Which source this is.")
    repo_id: str = Field(description="`owner/name` on the hub.", pattern=r"^[^/\s]+(/[^/\s]+)?$")
    revision: str = Field(
        description="The commit, 40 hexadecimal digits: a branch would move under the workflow.",
        pattern=r"^[0-9a-f]{40}$",
    )
    name: str | None = Field(None, description="The dataset's configuration, if it has several.")
    data_dir: str | None = Field(None, description="Folder inside the repository.")
    split: str | HubSplits = Field(
        "train",
        description="Split or split expression, such as `train[:1%]`. Or `{train: …, "
        "validation: …, test: …}`.",
    )

    @property
    def given_splits(self) -> set[Split]:
        """The splits that have an expression; the others are taken from train."""
        return set(expressions_by_split(self.split))


Dataset = Annotated[
    PythonStdlib | LocalFiles | Url | HubDataset | Synthetic, Field(discriminator="source")
]
