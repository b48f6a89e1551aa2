"""The whole config: named datasets, named models, and runs that combine them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, PrivateAttr, Tag

from moray.config.schema.base import Name, RunName, Section, execution_only
from moray.config.schema.datasets import Dataset
from moray.config.schema.models import BaseModelSource
from moray.config.schema.sections import (
    Benchmarks,
    Data,
    Evaluate,
    Export,
    Generate,
    Gguf,
    Push,
    Ray,
)
from moray.config.schema.sweeps import Grid, Search, Sweep
from moray.config.schema.train import Adapter, Preference, Train

# Name of the run in `config/smoke-test.yaml`.
SMOKE_TEST_RUN = "smoke-test"


class RunRef(Section):
    """Start from the exported model of another run."""

    run: RunName = Field(description="Name of the run to start from.")


class BestRef(Section):
    """Start from the run of a sweep with the lowest loss on the validation split."""

    best: Name = Field(
        description="Name of the sweep: of a run with `grid` or `seeds`. Of equal runs, the first "
        "by name is taken."
    )


def _kind(written: Any) -> str:
    names_best = isinstance(written, BestRef) or (
        isinstance(written, Mapping) and "best" in written
    )
    return "BestRef" if names_best else "RunRef"


Start = Annotated[
    Annotated[RunRef, Tag("RunRef")] | Annotated[BestRef, Tag("BestRef")], Discriminator(_kind)
]


class Sections(Section):
    """The sections that runs and `defaults` have in common."""

    data: Data = Field(Data(), description="How documents become rows of tokens.")
    train: Train = Field(Train(), description="How the model is trained.")
    adapter: Adapter | None = Field(
        None, description="Low-rank adapters, trained instead of the whole model; `null` for none."
    )
    preference: Preference = Field(
        Preference(), description="The loss of runs on pairs of answers."
    )
    ray: Ray = Field(Ray(), description="Where the training runs, and on how many workers.")
    export: Export = Field(Export(), description="How the trained model is exported.")
    evaluate: Evaluate = Field(Evaluate(), description="How the model is compared with its base.")
    generate: Generate = Field(Generate(), description="How held-out prompts are continued.")
    benchmarks: Benchmarks = Field(
        Benchmarks(), description="Benchmarks of the model and its base."
    )
    push: Push | None = Field(
        None, description="Where the model is uploaded to; `null` for nowhere."
    )
    gguf: Gguf | None = Field(None, description="Files for llama.cpp and Ollama; `null` for none.")
    tracking: list[Literal["tensorboard", "mlflow", "wandb"]] = execution_only(
        [],
        description="Trackers that show a run while it trains. Each needs the optional extra of "
        "its name, and is set up by environment variables of its own.",
    )


class Run(Grid, Sections):
    """A model fine-tuned on a dataset; its sections override `defaults` key by key."""

    model: Name | Start = Field(
        description="A name under `models`; or another run, as `{run: NAME}`; or the best of a "
        "sweep, as `{best: NAME}`."
    )
    dataset: Name | Annotated[dict[Name, Annotated[float, Field(gt=0)]], Field(min_length=1)] = (
        Field(
            description="A name under `datasets`; or several with their shares, as in "
            "`{functions: 0.7, modules: 0.3}`: the shares of the trained tokens. They don't have "
            "to add up to 1. A dataset that is used up is shuffled again and repeated."
        )
    )
    search: Search | None = Field(
        None,
        description="A search for better settings, by `snakemake search`. It changes nothing of "
        "the run itself. Needs the optional `search` extra.",
    )

    @property
    def datasets(self) -> dict[str, float]:
        """The datasets with their shares, sorted by name."""
        if isinstance(self.dataset, str):
            return {self.dataset: 1.0}
        return dict(sorted(self.dataset.items()))


class Experiment(Section):
    """A config as a user writes it, with `defaults` filled into each run, and sweeps expanded."""

    datasets: dict[Name, Dataset] = Field(
        description="Datasets by name. Several runs can use the same one."
    )
    models: dict[Name, BaseModelSource] = Field(description="Base models by name.")
    defaults: Sections = Field(
        Sections(), description="Settings of all runs, unless a run overrides them."
    )
    runs: dict[RunName, Run] = Field(
        description="Runs by name; `null` removes a run of an earlier file."
    )
    _sweeps: dict[str, Sweep] = PrivateAttr(default_factory=dict)

    @property
    def sweeps(self) -> dict[str, Sweep]:
        """The sweeps by name; their runs are among `runs`."""
        return self._sweeps

    def with_sweeps(self, sweeps: dict[str, Sweep]) -> Self:
        """A copy that knows which of its runs form sweeps."""
        copy = self.model_copy()
        copy._sweeps = sweeps
        return copy

    def starts(self, run: str) -> list[str]:
        """The runs that a run may start from: one, or those of a sweep; none for a base model."""
        model = self.runs[run].model
        if isinstance(model, RunRef):
            return [model.run]
        return sorted(self.sweeps[model.best]) if isinstance(model, BestRef) else []

    def base_model(self, run: str) -> str:
        """Name of the model at the root of a run's lineage."""
        model = self.runs[run].model
        # Runs of a sweep have the same, if others start from its best.
        return model if isinstance(model, str) else self.base_model(self.starts(run)[0])
