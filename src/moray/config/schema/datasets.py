"""Datasets: where rows come from, their format, and how they are split."""

import platform
import re
from itertools import chain
from pathlib import PurePath
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moray.config.schema.base import (
    Fraction,
    PositiveInt,
    RepoId,
    Revision,
    Section,
    Seed,
    UserPath,
    added,
)
from moray.config.schema.image_datasets import Digits, Idx, ImageFolder
from moray.config.schema.sources import TEST_SHARE, VALIDATION_SHARE, Source
from moray.config.splits import Split, expressions_by_split, paths_by_split
from moray.config.tasks import FORMATS, FormatName

Deduplicate = Literal["held-out", "exact", "near"]
# In other formats, nearly the same words can have another label or another answer.
WITH_NEAR_COPIES = ("text", "prompt-completion", "instruction", "messages")
Paths = UserPath | Annotated[list[UserPath], Field(min_length=1)]
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]

# Also matches in chained URLs. Keys of object stores may contain a slash; a port is not a secret.
CREDENTIALS = re.compile(r"://(?:[^/?#]*@|[^/?#@:]*:(?!:|\d*(?:[/?#]|$))[^@]*@)")
CREDENTIALS_REFUSED = (
    "the URL contains credentials, and the config is written to logs and records; remove them; for "
    "s3:// set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for https:// write ~/.netrc and set "
    'FSSPEC_HTTPS=\'{"client_kwargs": {"trust_env": true}}\''
)


class PythonStdlib(Source):
    """The standard library of the running Python: real code that is on every machine."""

    source: Literal["python-stdlib"] = Field(description="Selects this source.")
    format: Literal[
        "text",
        "prompt-completion",
        "preference",
        "unpaired-preference",
        "classification",
        "reward",
        "token-classification",
    ] = Field(
        "text",
        description="`text`: whole modules. `prompt-completion`: functions; signature and "
        "docstring are the prompt, the body is the completion. `preference`: the same prompts; "
        "the body is the chosen answer, that of another function of the module the rejected one. "
        "`unpaired-preference`: one of both, good or bad. "
        "`classification`: functions of modules that have 100 or more; the label is the module. "
        "`reward`: the pairs of `preference`. `token-classification`: short functions; the tags "
        "say which words are names of functions, parameters and exceptions.",
    )
    validation_share: Fraction = Field(
        0.05, description="Share of the modules in the validation split."
    )
    test_share: Fraction = Field(0.05, description="Share of the modules in the test split.")

    def state(self, path: str) -> dict[str, str]:
        """The version of the running Python."""
        return {"python": platform.python_version()}


class Synthetic(Source):
    """Generated text of any size, for trying out a setup and for benchmarks."""

    source: Literal["synthetic"] = Field(description="Selects this source.")
    format: Literal["text"] = Field("text", description="Documents of a few sentences each.")
    size_gb: float = Field(gt=0, description="Size of the text in GB (10^9 bytes).")
    seed: Seed = Field(0, description="Seed for generating the text.")
    validation_share: Fraction = Field(
        0.05, description="Share of the documents in the validation split."
    )
    test_share: Fraction = Field(0.05, description="Share of the documents in the test split.")


class BySplit(Section):
    """One location per split; a split without one is a share of train."""

    train: Paths = Field(description="Location of the train split.")
    validation: Paths | None = Field(None, description="Location of the validation split.")
    test: Paths | None = Field(None, description="Location of the test split.")


Locations = Paths | BySplit


class _Table(Source):
    """Base class of the sources whose rows have named columns."""

    format: FormatName = Field(
        "text",
        description="Format of a row. "
        + " ".join(f"`{name}`: {format.meaning}." for name, format in FORMATS.items()),
    )
    columns: dict[str, str] = Field(
        {},
        description="Column names that differ from the default, such as `{prompt: question, "
        "completion: answer}`. By default: "
        + "; ".join(
            f"for `{name}` " + ", ".join(f"`{column}`" for column in format.columns)
            for name, format in FORMATS.items()
        )
        + ". In `messages`, `prompt` and `completion` together replace `messages`. "
        "`conversations` is accepted for `messages`, and for the `prompt` of `preference`. In "
        "`unpaired-preference`, `messages` are the prompt and its answer in one. "
        "`group`: a column whose equal values stay in one split, such as a patient or a file.",
    )
    system: str | Literal[False] | None = Field(
        None,
        description="System prompt for conversations that have none. `false` removes those that "
        "they have, for chat templates that refuse them.",
    )
    bad_rows: Literal["refuse", "drop"] = added(
        "refuse",
        description="What to do with rows that don't fit the format. `refuse`: stop at the first. "
        "`drop`: leave them out, and say how many there are and where the first is, for each "
        "reason; if they are more than `max_bad_rows`, stop.",
    )
    max_bad_rows: Fraction = added(
        0.01, description="Largest share of all rows that `bad_rows: drop` leaves out."
    )
    problem_type: ProblemType | None = added(
        None,
        description="What labels are, by transformers' names. By default, the data decide: lists "
        "are `multi_label_classification`, numbers of which some have a fraction `regression`, "
        "and all else `single_label_classification`.",
    )
    deduplicate: Deduplicate = added(
        "held-out",
        description="Which rows of train are left out, besides blank ones. `held-out`: those that "
        "are in validation or test too. `exact`: also those that train has already. `near`: also "
        "those whose words are nearly those of another row, in train or held out (MinHash, "
        "Broder, 1997: of the runs of five words in either, four in five are in both); only for "
        "`text`, `prompt-completion`, `instruction` and `messages`, whose system messages aren't "
        "compared. Needs the optional `near` extra.",
    )
    split_by: Literal["hash", "tail"] = Field(
        "hash",
        description="`hash`: assign each document by its hash, so that documents keep their "
        "split when data is added. `tail`: hold out the end of the text, cut at a character "
        "(`text` only).",
    )
    validation_share: Fraction = VALIDATION_SHARE
    test_share: Fraction = TEST_SHARE

    @property
    def libraries(self) -> dict[str, str]:
        return {"rensa": "rensa"} if self.deduplicate == "near" else {}

    @model_validator(mode="after")
    def _copies_can_be_found(self) -> Self:
        if self.deduplicate != "held-out" and self.split_by == "tail":
            raise ValueError(
                f"deduplicate: {self.deduplicate} needs split_by: hash, as split_by: tail cuts one "
                "text; remove one of both"
            )
        if self.deduplicate == "near" and self.format not in WITH_NEAR_COPIES:
            raise ValueError(
                f"deduplicate: near needs format: {', '.join(WITH_NEAR_COPIES)}, got format: "
                f"{self.format}, whose rows differ in more than their words; set it to exact"
            )
        return self

    @model_validator(mode="after")
    def _format_fits(self) -> Self:
        if self.split_by == "tail" and self.format != "text":
            raise ValueError(
                f"split_by: tail needs format: text, got format: {self.format}; set split_by: hash"
            )
        if self.split_by == "tail" and "group" in self.columns:
            raise ValueError(
                "columns.group: split_by: tail cuts the text where a share ends, and can't keep "
                "groups together; remove columns.group, or set split_by: hash"
            )
        known = {*FORMATS[self.format].columns, "group"}
        if unknown := [name for name in self.columns if name not in known]:
            raise ValueError(
                f"columns.{unknown[0]}: format {self.format} doesn't have this column, only "
                f"{', '.join(FORMATS[self.format].columns)}; rename the key or change the format"
            )
        if self.bad_rows == "refuse" and "max_bad_rows" in self.model_fields_set:
            raise ValueError(
                "max_bad_rows: only for bad_rows: drop; set that too, or remove max_bad_rows"
            )
        if self.bad_rows == "drop" and self.format == "images":
            raise ValueError(
                "bad_rows: drop doesn't work for format: images; remove it, and the bad images"
            )
        if self.problem_type and self.format != "classification":
            raise ValueError(
                f"problem_type: only for format: classification, got format: {self.format}; remove "
                "it or change the format"
            )
        if self.system is not None and not FORMATS[self.format].chat:
            raise ValueError(
                "system: a system prompt needs format: instruction, messages or preference, got "
                f"format: {self.format}; remove it or change the format"
            )
        return self


class _Files(_Table):
    """Base class of the sources that are files of tables or text."""

    delimiter: Annotated[str, Field(pattern=r'^[^"\r\n]$')] | None = added(
        None,
        description="Character between the values of `.csv` and `.tsv` files, such as `;` or "
        '`"\\t"`. By default a comma in `.csv` and a tab in `.tsv`, unless the header is one name '
        "by that with a semicolon, a tab, a bar or a comma in it, which then is what separates "
        "values; the download says so.",
    )
    encoding: str = added(
        "utf-8",
        description="Encoding of the files' text, by its name in Python, such as `cp1252` or "
        "`utf-16`. Parquet and `.xlsx` have their own.",
    )
    max_rows: PositiveInt | None = added(
        None,
        description="Read only the first rows: of each split that has files of its own, as many, "
        "in the order of the files, with bad, blank and repeated ones; of `.txt`, documents.",
    )

    @property
    def endings(self) -> set[str]:
        """The endings of the files that the config names."""
        locations = self.path if isinstance(self, LocalFiles) else getattr(self, "url", [])
        every = chain.from_iterable(paths_by_split(locations).values())
        return {PurePath(path).suffix.lower() for path in every}

    @property
    def libraries(self) -> dict[str, str]:
        openpyxl = {"openpyxl": "openpyxl"} if ".xlsx" in self.endings else {}
        return super().libraries | openpyxl

    @model_validator(mode="after")
    def _encoding_is_known(self) -> Self:
        try:
            "".encode(self.encoding)
        except (LookupError, ValueError):
            raise ValueError(
                f"encoding: Python doesn't know {self.encoding!r} as one of text; write a name "
                "such as utf-8, cp1252 or utf-16"
            ) from None
        return self

    @model_validator(mode="after")
    def _are_tables(self) -> Self:
        own = {"delimiter", "encoding", "max_rows"} & self.model_fields_set
        if self.format == "images" and own:
            raise ValueError(f"{min(own)}: only for tables and text, not for images; remove it")
        return self


class LocalFiles(_Files):
    """Files on this machine or on a shared file system."""

    source: Literal["files"] = Field(description="Selects this source.")
    path: Locations = Field(
        description="Path or glob, or a list of them, relative to the working directory: `.txt` "
        "(one document per file; a large file is cut into documents of 4 MB), `.jsonl` or "
        "`.ndjson`, `.json`, `.csv`, `.tsv`, `.parquet`, `.xlsx` (one document per row; the "
        "first sheet; needs the optional `xlsx` extra). All except `.parquet` and `.xlsx` can be "
        "compressed (`.gz`, `.zst`). A folder stands for the files of "
        "these types in it but `.xlsx`. Or `{train: …, validation: …, test: …}`.",
    )

    @property
    def given_splits(self) -> set[Split]:
        """The splits that have files of their own; the others are taken from train."""
        return set(paths_by_split(self.path))

    @property
    def files(self) -> dict[Split, dict[str, list[str]]]:
        """The files of each split."""
        return {split: {"path": paths} for split, paths in paths_by_split(self.path).items()}

    @model_validator(mode="after")
    def _on_this_machine(self) -> Self:
        if any("://" in path for paths in paths_by_split(self.path).values() for path in paths):
            raise ValueError("path: got a URL, expected file paths; set source: url")
        return self


class Url(_Files):
    """Files on a web server or in an object store, read through fsspec."""

    source: Literal["url"] = Field(description="Selects this source.")
    url: Locations = Field(
        description="URL or list of URLs: `https://`, `s3://`, `gs://` or any other protocol "
        "that fsspec has a package for. In an object store it can be a glob. Or `{train: …, "
        "validation: …, test: …}`. The file types are those of `files`.",
    )
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="SHA-256 that the file must have; only for a single URL."
    )

    @property
    def given_splits(self) -> set[Split]:
        """The splits that have URLs of their own; the others are taken from train."""
        return set(paths_by_split(self.url))

    @model_validator(mode="after")
    def _has_no_images(self) -> Self:
        if self.format == "images":
            raise ValueError(
                "format: images can't be read from a URL; download the files and set source: files"
            )
        return self

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
                f"sha256: got one digest for {len(named)} URLs, expected a single URL; "
                "remove it, or make each URL a dataset"
            )
        return self


class HubSplits(Section):
    """One split expression per split; a split without one is a share of train."""

    train: str = Field(description="Expression for the train split, such as `train[:90%]`.")
    validation: str | None = Field(None, description="Expression for the validation split.")
    test: str | None = Field(None, description="Expression for the test split.")


class HubDataset(_Table):
    """A dataset on the Hugging Face hub, pinned to a commit. Gated ones need `hf auth login`."""

    source: Literal["hub"] = Field(description="Selects this source.")
    repo_id: RepoId
    revision: Revision
    name: str | None = Field(None, description="Configuration of the dataset, if it has several.")
    data_dir: str | None = Field(None, description="Folder in the repository.")
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
    PythonStdlib | LocalFiles | Url | HubDataset | Synthetic | Digits | Idx | ImageFolder,
    Field(discriminator="source"),
]
