"""The whole config: named datasets, named models, and runs that join them."""

from pydantic import Field

from moray.config.schema.adapter import Adapter
from moray.config.schema.base import Name, Section
from moray.config.schema.datasets import Dataset
from moray.config.schema.models import BaseModelSource
from moray.config.schema.sections import Data, Evaluate, Export, Generate, Ray
from moray.config.schema.train import Train


class RunRef(Section):
    """The exported model of another run, as a base."""

    run: Name = Field(description="Name of the run to start from.")


class Sections(Section):
    """What every run starts from."""

    data: Data = Field(Data(), description="How documents become rows of tokens.")
    train: Train = Field(Train(), description="The optimisation.")
    adapter: Adapter | None = Field(
        None, description="Low-rank adapters to train in place of the whole model; `null`: none."
    )
    ray: Ray = Field(Ray(), description="Where the training runs.")
    export: Export = Field(Export(), description="Writing the trained model.")
    evaluate: Evaluate = Field(Evaluate(), description="Scoring against the base.")
    generate: Generate = Field(Generate(), description="Continuing held-out prompts.")


class Run(Sections):
    """A model fine-tuned on a dataset; its sections override `defaults` key by key."""

    model: Name | RunRef = Field(description="A name under `models`, or `{run: NAME}`.")
    dataset: Name = Field(description="A name under `datasets`.")


class Experiment(Section):
    """A config as a user writes it, with `defaults` filled into each run."""

    datasets: dict[Name, Dataset] = Field(description="Named datasets, shared by runs.")
    models: dict[Name, BaseModelSource] = Field(description="Named bases to start from.")
    defaults: Sections = Field(Sections(), description="What every run starts from.")
    runs: dict[Name, Run] = Field(description="Named runs; `null` removes one of an earlier file.")

    def base_model(self, run: str) -> str:
        """Name of the model at the root of a run's lineage."""
        model = self.runs[run].model
        return self.base_model(model.run) if isinstance(model, RunRef) else model
