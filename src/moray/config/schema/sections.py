"""The sections that every run has, besides `train` and `adapter`."""

from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from moray.config.schema.base import PositiveInt, Section, execution_only
from moray.config.schema.datasets import CREDENTIALS, CREDENTIALS_REFUSED


class Data(Section):
    """How documents become rows of tokens, and how the rows reach the workers."""

    block_size: Annotated[int, Field(ge=8)] = Field(256, description="Tokens in a row.")
    long_documents: Literal["split", "drop"] = Field(
        "split",
        description="What becomes of documents longer than a row. `split`: they continue in "
        "another. `drop`: they are left out, and counted.",
    )
    packing: Literal["auto"] | bool = Field(
        "auto",
        description="Whether documents share a row, without seeing each other. `auto`: where the "
        "model's architecture allows it; elsewhere a row holds one document, or one piece of a "
        "long one, and padding.",
    )
    chat_template: str | None = Field(
        None,
        description="Jinja template for `instruction` and `messages`, in place of the "
        "tokenizer's own. Runs that start from this one have it too, and so has the exported "
        "model.",
    )
    tokenize: Literal["ahead", "on-the-fly"] = Field(
        "ahead",
        description="`ahead`: tokens are written down once. `on-the-fly`: only counted ahead, and "
        "made anew beside the training, for corpora too large to be kept twice; the samples are "
        "the same. Needs `loader: stream`.",
    )
    loader: Literal["memory", "stream"] = execution_only(
        "memory",
        description="`memory`: each worker maps the tokens into its memory. `stream`: Ray Data "
        "reads them ahead and hands each worker its rows. The samples and their order are the "
        "same.",
    )
    stream_from: Annotated[str, Field(pattern=r"^[a-z0-9+]+://")] | None = execution_only(
        None,
        description="Folder in an object store, `s3://bucket/folder`, say, that the tokens are "
        "copied to and streamed from, for clusters without a shared disk fast enough.",
    )

    # The first of all, because the others repeat what is given.
    @model_validator(mode="after")
    def _no_credentials(self) -> Self:
        if self.stream_from is not None and CREDENTIALS.search(self.stream_from):
            raise ValueError(f"stream_from: {CREDENTIALS_REFUSED}")
        return self

    @model_validator(mode="after")
    def _streams(self) -> Self:
        for key, value in (("tokenize", self.tokenize), ("stream_from", self.stream_from)):
            if value not in ("ahead", None) and self.loader != "stream":
                raise ValueError(
                    f"{key}: got {value} with loader: {self.loader}, expected loader: stream; "
                    "change either"
                )
        if self.tokenize == "on-the-fly" and self.stream_from is not None:
            raise ValueError(
                "stream_from: got a folder with tokenize: on-the-fly, expected tokenize: ahead, "
                "which writes what can be streamed; change either"
            )
        return self


class Ray(Section):
    """Where the training runs; changes the result by no more than rounding and dropout's noise."""

    address: str = execution_only(
        "local",
        description="`local` starts Ray on this machine for the run; else a cluster's address, "
        "`host:port` or `ray://host:port`, or `auto` for the one that this machine belongs to.",
    )
    num_workers: Literal["auto"] | PositiveInt = execution_only(
        "auto",
        description="Training processes. `auto`: one for each GPU, as far as they divide "
        "`train.global_batch_size` evenly; without a GPU, two.",
    )
    use_gpu: Literal["auto"] | bool = execution_only(
        "auto", description="Whether each worker gets a GPU; `auto`: if there is one for each."
    )
    resources_per_worker: dict[str, Annotated[float, Field(gt=0)]] = execution_only(
        {"CPU": 1.0}, description="What Ray reserves for each worker; CPUs are its threads."
    )
    max_failures: int = execution_only(
        3, ge=0, description="Times that lost workers are replaced within a run."
    )
    storage_path: str = execution_only(
        "results/state",
        description="Folder of checkpoints and run state; on a cluster shared, as `results` is.",
    )
    include_dashboard: bool = execution_only(
        False,
        description="Whether a local Ray serves its dashboard, at an address that the run prints. "
        "Needs the optional `dashboard` extra.",
    )

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Host and port of a cluster; None where Ray finds it, or is started here."""
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
    def _storage_is_a_folder(self) -> Self:
        kind, separator, _ = self.storage_path.partition("://")
        if separator:
            raise ValueError(
                f"storage_path: got {kind}://…, expected a folder that all workers share; "
                "mount the store and give the folder"
            )
        return self

    @model_validator(mode="after")
    def _gpus_are_used(self) -> Self:
        gpus = self.resources_per_worker.get("GPU")
        if gpus and self.use_gpu is False:
            raise ValueError(
                f"resources_per_worker.GPU: got {gpus:g} with use_gpu: false, expected none; "
                "leave it out, or set use_gpu to true or auto"
            )
        return self


class Export(Section):
    """Writing the trained model as a Hugging Face folder."""

    dtype: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="Type of the stored weights. `auto`: that of the model the run started from; "
        "adapters that aren't merged are stored in fp32.",
    )
    merge_adapter: bool = Field(
        True,
        description="Whether a run with an adapter exports a whole model, with the adapter merged "
        "into the base. If false, it exports the adapter alone, which needs its base to be loaded.",
    )


_PRECISION: Any = Field(
    "auto",
    description="Type of the weights and arithmetic of the models. `auto`: bf16 on GPUs that "
    "compute in it, fp32 elsewhere.",
)
_NUM_WORKERS: Any = execution_only(
    "auto",
    description="Processes that share the batches, started as `train.launcher` and `ray` say. "
    "`auto`: one for each GPU; without a GPU, one that uses all cores.",
)


class Evaluate(Section):
    """Scoring a run's model and its base on the test split."""

    max_documents: PositiveInt | None = Field(
        None,
        description="Documents of the test split that are scored, each of them whole: a random "
        "sample, the same for every model. All documents unless given.",
    )
    bootstrap_samples: PositiveInt = Field(
        1000, description="Resamplings of the documents behind an interval."
    )
    confidence: float = Field(0.95, gt=0, lt=1, description="Coverage of the intervals.")
    precision: Literal["auto", "bf16", "fp32"] = _PRECISION
    num_workers: Literal["auto"] | PositiveInt = _NUM_WORKERS
    batch_size: PositiveInt = execution_only(
        16, description="Rows in a forward pass; halved where memory is too small."
    )


class Generate(Section):
    """Continuing prompts of the test split, by the run's model and by its base."""

    num_samples: PositiveInt = Field(32, description="Prompts that are continued.")
    max_new_tokens: PositiveInt = Field(128, description="Tokens of a continuation, at most.")
    prompt_tokens: PositiveInt = Field(
        64, description="Tokens of a `text` document that serve as its prompt."
    )
    temperature: float = Field(0.7, ge=0, description="0 takes the likeliest token.")
    top_p: float = Field(
        0.95, gt=0, le=1, description="Smallest set of tokens with this probability is sampled."
    )
    seed: int = Field(0, ge=0, description="Seed of the sampling.")
    precision: Literal["auto", "bf16", "fp32"] = _PRECISION
    num_workers: Literal["auto"] | PositiveInt = _NUM_WORKERS
    batch_size: PositiveInt = execution_only(
        16, description="Prompts continued at once; halved where memory is too small."
    )
