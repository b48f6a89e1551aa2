"""The whole config: named datasets, named models, and runs that combine them."""

from typing import Annotated, Self

from pydantic import Field, PrivateAttr

from moray.config.schema.adapter import Adapter
from moray.config.schema.base import Name, RunName, Section
from moray.config.schema.datasets import HubDataset, LocalFiles, PythonStdlib, Synthetic, Url
from moray.config.schema.image_datasets import Digits, Idx, ImageFolder
from moray.config.schema.models import BaseModelSource
from moray.config.schema.preference import Preference
from moray.config.schema.sections import Data, Evaluate, Export, Generate, Ray
from moray.config.schema.sweep import Grid, Sweep
from moray.config.schema.train import Train

Dataset = Annotated[
    PythonStdlib | LocalFiles | Url | HubDataset | Synthetic | Digits | Idx | ImageFolder,
    Field(discriminator="source"),
]


class RunRef(Section):
    """Start from the exported model of another run."""

    run: RunName = Field(description="Name of the run to start from.")


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


class Run(Grid, Sections):
    """A model fine-tuned on a dataset; its sections override `defaults` key by key."""

    model: Name | RunRef = Field(description="A name under `models`, or `{run: NAME}`.")
    dataset: Name | Annotated[dict[Name, Annotated[float, Field(gt=0)]], Field(min_length=1)] = (
        Field(
            description="A name under `datasets`; or several with their shares, as in "
            "`{functions: 0.7, modules: 0.3}`: the shares of the trained tokens. They don't have "
            "to add up to 1. A dataset that is used up is shuffled again and repeated."
        )
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

    def base_model(self, run: str) -> str:
        """Name of the model at the root of a run's lineage."""
        model = self.runs[run].model
        return self.base_model(model.run) if isinstance(model, RunRef) else model
