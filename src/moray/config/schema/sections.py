"""The sections of a run other than those of its training."""

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from moray.config.schema.base import (
    ChatTemplate,
    Fraction,
    PositiveInt,
    Section,
    Seed,
    TemplateVariable,
    UserPath,
    added,
    execution_only,
)
from moray.config.schema.datasets import CREDENTIALS, CREDENTIALS_REFUSED

# Variables that each chat template gets, besides those of special tokens.
_ALWAYS_SET = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
# What object stores allow in a bucket's name, which nothing with credentials in it is.
_BUCKET = r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]"


class Augmentation(Section):
    """Random changes of training images. A change follows from `train.seed`, epoch and image."""

    shift: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Maximum number of pixels by which an image is moved, in both directions; "
        "black pixels come in.",
    )
    crop: Fraction = Field(
        0.0,
        description="Maximum share of height and width that is cut away; what is left is resized "
        "to the whole (nearest neighbour).",
    )
    flip: bool = Field(False, description="Whether half of the images are mirrored.")


class Data(Section):
    """How documents or images become rows. Images have only the last three keys."""

    block_size: Annotated[int, Field(ge=8)] = Field(256, description="Tokens per row.")
    long_documents: Literal["split", "truncate", "drop"] = Field(
        "split",
        description="What to do with documents longer than a row. `split`: continue them in "
        "another row, which doesn't see the first. `truncate`: leave out their end, with the stop "
        "token. `drop`: leave them out. The number is printed and recorded. Pairs of a preference "
        "dataset can't continue: `split` truncates answers longer than half a row.",
    )
    packing: Literal["auto"] | bool = Field(
        "auto",
        description="Whether documents share a row, without attending to each other. `auto`: if "
        "the model's architecture allows it; otherwise each row has one document, or one piece "
        "of a long one, and padding.",
    )
    chat_template: ChatTemplate | None = Field(
        None,
        description="Jinja template for `instruction` and `messages`, or the path of its file "
        "(`.jinja`, `.j2`), instead of the tokenizer's own. Runs that start from this one use it "
        "too, and the exported model includes it.",
    )
    bos: Literal["auto"] | bool = added(
        "auto",
        description="Whether documents begin with the tokenizer's BOS token; chat templates add "
        "it themselves. `auto`: if a call of the tokenizer adds it, or if it is also the stop "
        "token, as in GPT-2's tokenizer.",
    )
    mask_history: bool = Field(
        False,
        description="Whether only the last assistant turn of a conversation is trained, instead "
        "of all of them.",
    )
    template_variables: dict[TemplateVariable, bool | int | float | str] = added(
        {},
        description="Variables for the chat template, such as `{enable_thinking: false}` for "
        "Qwen 3's. Tokens and generation have them, and they are the defaults of the exported "
        "template. Runs that start from this one have them too, unless they have a template of "
        "their own.",
    )
    train_template_text: bool = added(
        False,
        description="Whether text is trained that the chat template puts between the prompt and "
        "an answer: the empty `<think></think>` that Qwen 3's puts before an answer without "
        "reasoning.",
    )
    turns: Literal["together", "each"] = added(
        "together",
        description="What becomes of a conversation with several trained answers. `together`: one "
        "document, as the chat template renders the whole conversation. `each`: a document for "
        "each answer, as the template renders it up to there, which is what generation sees; for "
        "templates that render earlier turns differently from the last.",
    )
    tokenize: Literal["ahead", "on-the-fly"] = Field(
        "ahead",
        description="`ahead`: tokenise once and store the tokens. `on-the-fly`: only count "
        "tokens ahead, and tokenise during training, for corpora too large to store twice; the "
        "samples are the same. Needs `loader: stream`; not for preference datasets.",
    )
    augmentation: Augmentation = Field(
        Augmentation(), description="For images: random changes during training."
    )
    loader: Literal["memory", "stream"] = execution_only(
        "memory",
        description="`memory`: each worker memory-maps the tokens. `stream`: Ray tasks read "
        "them ahead and pass each worker its rows. The samples and their order are the same.",
    )
    stream_from: Annotated[str, Field(pattern=r"^[a-z0-9+]+://")] | None = execution_only(
        None,
        description="Folder in an object store, such as `s3://bucket/folder`. The tokens are "
        "copied to it and streamed from it, for clusters without a fast shared disk.",
    )

    # Must be the first validator, because the others print the value.
    @model_validator(mode="after")
    def _no_credentials(self) -> Self:
        if self.stream_from is not None and CREDENTIALS.search(self.stream_from):
            raise ValueError(f"stream_from: {CREDENTIALS_REFUSED}")
        return self

    @model_validator(mode="after")
    def _variables_are_free(self) -> Self:
        for name in self.template_variables:
            if name in _ALWAYS_SET or name.endswith("_token"):
                raise ValueError(
                    f"template_variables.{name}: follows from the row and the tokenizer; remove it"
                )
        return self

    @model_validator(mode="after")
    def _streams(self) -> Self:
        for key, value in (("tokenize", self.tokenize), ("stream_from", self.stream_from)):
            if value not in ("ahead", None) and self.loader != "stream":
                raise ValueError(
                    f"{key}: {value} needs loader: stream, got loader: {self.loader}; "
                    "change one of them"
                )
        if self.tokenize == "on-the-fly" and self.stream_from is not None:
            raise ValueError(
                "stream_from: needs tokenize: ahead, because tokenize: on-the-fly stores no "
                "tokens to copy; change one of them"
            )
        return self


class WorkerRange(Section):
    """An elastic number of workers: as many as there is room for, from `min` to `max`."""

    min: PositiveInt = execution_only(
        ...,
        description="Number of workers below which a run waits for nodes, at most "
        "`ray.start_timeout` seconds.",
    )
    max: PositiveInt = execution_only(
        ...,
        description="Number of workers at most. On a cluster, a run is restarted from its newest "
        "checkpoint with fewer workers when a node is lost, and with more when one joins.",
    )


class Ray(Section):
    """Where the training runs. These keys change results only by rounding and dropout noise."""

    address: str = execution_only(
        "local",
        description="`local` starts Ray on this machine for the run. Otherwise the address of a "
        "cluster, `host:port` or `ray://host:port`, or `auto` for the cluster that this machine "
        "belongs to.",
    )
    num_workers: Literal["auto"] | PositiveInt | WorkerRange = execution_only(
        "auto",
        description="Number of training processes. `auto`, as far as that many divide "
        "`train.global_batch_size` evenly: one per GPU; on cores of this machine, one for each 16, "
        "or as many as `resources_per_worker.CPU` allows; on a cluster without GPUs, two. "
        "`{min: 1, max: 4}`: on a cluster, as many as there is room for at any time.",
    )
    use_gpu: Literal["auto"] | bool = execution_only(
        "auto",
        description="Whether each worker gets a GPU. `auto`: if there is one for each worker.",
    )
    resources_per_worker: dict[str, Literal["auto"] | Annotated[float, Field(gt=0)]] = (
        execution_only(
            {"CPU": "auto"},
            description="Resources that Ray reserves for each worker. `CPU` is also its number of "
            "threads. `auto`: workers share the cores of `snakemake --cores`, and runs that don't "
            "build on each other do too; 1 on GPUs and on a cluster. `GPU` is a whole number, and "
            "a worker computes on one of its GPUs.",
        )
    )
    max_failures: int = execution_only(
        3,
        ge=0,
        description="How many times lost workers are replaced before the run fails. Nodes that are "
        "preempted with a notice don't count.",
    )
    start_timeout: float = execution_only(
        300.0,
        gt=0,
        description="Seconds that a run on a cluster waits without a live worker before it fails. "
        "The time that workers take to start counts. On this machine, seconds for workers to "
        "start, which can be a minute if others use the cores too.",
    )
    upload_package: bool = execution_only(
        False,
        description="Whether to send this checkout's package to the nodes of a cluster. "
        "Otherwise, each needs the same version of it installed.",
    )
    network_interface: str | None = execution_only(
        None,
        description="Network interface for the traffic between workers on a cluster. By default, "
        "on each node the one with the address by which Ray knows the node. "
        "`GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME` in a node's environment come first.",
    )
    storage_path: UserPath = execution_only(
        "results/state",
        description="Folder for checkpoints and run state, which all workers share, or "
        "`s3://bucket/prefix` or `gs://bucket/prefix`, with credentials and endpoint from the "
        "environment. `gs://` needs the optional `gcs` extra.",
    )
    include_dashboard: bool = execution_only(
        False,
        description="Whether a local Ray serves its dashboard; the run prints its address. "
        "Needs the optional `dashboard` extra.",
    )

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Host and port of a cluster; None if Ray finds the cluster or is started here."""
        if self.address in ("local", "auto"):
            return None
        parts = urlsplit(self.address if "//" in self.address else f"//{self.address}")
        if not parts.hostname or not parts.port:
            raise ValueError("no host or no port")
        return parts.hostname, parts.port

    @model_validator(mode="after")
    def _address_is_whole(self) -> Self:
        try:
            _ = self.endpoint
        except ValueError as error:
            raise ValueError(
                f"address: got {self.address}, expected local, auto, host:port or "
                "ray://host:port; set it to one of these"
            ) from error
        return self

    @model_validator(mode="after")
    def _storage_is_a_folder_or_a_bucket(self) -> Self:
        kind, separator, rest = self.storage_path.partition("://")
        bucket = rest.partition("/")[0]
        # Others weren't tried; and credentials in a URL would be in logs.
        if separator and (kind not in ("s3", "gs") or not re.fullmatch(_BUCKET, bucket)):
            raise ValueError(
                f"storage_path: got {kind}://…, expected a folder that all workers share, or "
                "s3://bucket/prefix or gs://bucket/prefix; mount another store and set the mounted "
                "folder"
            )
        return self

    @property
    def in_object_store(self) -> bool:
        """Whether the state of runs is in an object store."""
        return "://" in self.storage_path

    @property
    def shares(self) -> dict[str, float]:
        """`resources_per_worker` in numbers; `auto` is 1, unless `layout.on_cores` replaced it."""
        return {
            name: 1.0 if share == "auto" else share
            for name, share in self.resources_per_worker.items()
        }

    @model_validator(mode="after")
    def _gpus_are_used(self) -> Self:
        for name, share in self.resources_per_worker.items():
            if share == "auto" and name != "CPU":
                raise ValueError(
                    f"resources_per_worker.{name}: got auto, expected a number, because only CPU "
                    "can be auto; set it to the number that a worker needs"
                )
        gpus = self.shares.get("GPU", 1.0)
        if not gpus.is_integer():
            raise ValueError(
                f"resources_per_worker.GPU: got {gpus:g}, expected a whole number, because workers "
                "can't share a GPU; set it to 1 or remove it"
            )
        if "GPU" in self.resources_per_worker and self.use_gpu is False:
            raise ValueError(
                f"resources_per_worker.GPU: got {gpus:g}, but use_gpu is false; "
                "remove it, or set use_gpu to true or auto"
            )
        return self


_PRECISION = (
    "Data type of the models' weights and arithmetic. `auto`: bf16 on GPUs that support it, fp32 "
    "otherwise."
)
_NUM_WORKERS: Any = execution_only(
    "auto",
    description="Number of processes that share the batches, started with the settings of "
    "`train.launcher` and `ray`. `auto`: one per GPU; without a GPU, one that uses all "
    "cores.",
)


class Evaluate(Section):
    """How a run's model and its base are scored on the test split."""

    max_documents: PositiveInt | None = Field(
        None,
        description="Maximum number of test documents (or images) to score, each in full: a random "
        "sample, the same for every model. By default, all of them.",
    )
    bootstrap_samples: PositiveInt = Field(
        1000, description="Bootstrap resamples of the documents for the confidence intervals."
    )
    confidence: float = Field(0.95, gt=0, lt=1, description="Confidence level of the intervals.")
    precision: Literal["auto", "bf16", "fp32"] = Field("auto", description=_PRECISION)
    num_workers: Literal["auto"] | PositiveInt = _NUM_WORKERS
    batch_size: PositiveInt = execution_only(
        16, description="Rows per forward pass; halved if they don't fit in memory."
    )


class Generate(Section):
    """How a run's model and its base continue prompts of the test split, or classify its images."""

    num_samples: PositiveInt = Field(
        32, description="Number of prompts to continue, or of images to classify."
    )
    max_new_tokens: PositiveInt = Field(
        128, description="Maximum number of tokens in a continuation."
    )
    prompt_tokens: PositiveInt = Field(
        64, description="Tokens of a `text` document to use as its prompt."
    )
    temperature: float = Field(
        0.7, ge=0, description="Sampling temperature; 0 always picks the most likely token."
    )
    top_p: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Sample from the smallest set of tokens with this total probability.",
    )
    seed: Seed = Field(0, description="Seed for sampling.")
    metrics: list[Literal["exact_match", "python_syntax", "chrf", "doctests"]] = Field(
        [],
        description="Metrics of the continuations; see [evaluation](evaluation.md#metrics-of-"
        "continuations). `exact_match`: whether one is what follows its prompt in the document. "
        "`python_syntax`: whether prompt and continuation parse; not for `text` and chats. "
        "`chrf`: chrF against what follows, 0 to 100; needs the optional `metrics` extra. "
        "`doctests`: whether a function passes its own; runs generated code, in a sandbox.",
    )
    precision: Literal["auto", "bf16", "fp32"] = Field("auto", description=_PRECISION)
    num_workers: Literal["auto"] | PositiveInt = _NUM_WORKERS
    batch_size: PositiveInt = execution_only(
        16, description="Prompts continued at once; halved if they don't fit in memory."
    )


class Benchmarks(Section):
    """Tasks of lm-evaluation-harness. They need the optional `benchmarks` extra."""

    tasks: list[str] = Field(
        [],
        description="Names of tasks, groups or tags, of `include_path` or of the harness. "
        "Intervals follow `evaluate.bootstrap_samples` and `evaluate.confidence`.",
    )
    include_path: UserPath | None = Field(
        None,
        description="Folder with task files of your own, in YAML, and their data. Its files "
        "count by their content. `!function` in them runs Python code.",
    )
    num_fewshot: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Examples in front of each document. By default, as many as the task defines; "
        "a task that defines 0 keeps it.",
    )
    limit: PositiveInt | None = Field(None, description="So many documents a task, the first ones.")
    chat_template: bool = Field(
        False,
        description="Whether both models get the prompts in the run's chat template, with the "
        "examples as earlier turns.",
    )
    precision: Literal["auto", "bf16", "fp32"] = Field("auto", description=_PRECISION)
    num_workers: Annotated[int, Field(ge=1, le=2)] = execution_only(
        1,
        description="Number of processes. With 2, base and tuned are scored at the same time, "
        "each on a GPU of its own if there are any.",
    )
    batch_size: PositiveInt = execution_only(
        16, description="Requests per forward pass; halved if they don't fit in memory."
    )
