"""The whole config: named datasets, named models, and runs that combine them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, PrivateAttr, Tag, model_validator

from moray.config.schema.base import (
    Name,
    PositiveInt,
    Proofs,
    RunName,
    Section,
    Seed,
    execution_only,
)
from moray.config.schema.datasets import Dataset
from moray.config.schema.export import Export, Gguf, Push
from moray.config.schema.losses import Classification, Distillation, Kto, Preference, Reward
from moray.config.schema.models import BaseModelSource, RunModel
from moray.config.schema.report import Report
from moray.config.schema.sections import (
    Benchmarks,
    Data,
    Evaluate,
    Generate,
    Ray,
)
from moray.config.schema.start import BestRef, ModelOrRun, RunRef
from moray.config.schema.train import Adapter, Train

DottedKey = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$")]
Seeds = Annotated[list[Seed], Field(min_length=1)]


class Grid(Section):
    """What makes a run a sweep."""

    grid: dict[DottedKey, Annotated[list[Any], Field(min_length=1)]] | None = Field(
        None,
        description="Makes one run for each combination of values; dotted keys of the run with "
        "lists of values, as in `{train.learning_rate: [1e-4, 3e-4]}`. The runs are named after "
        "their values.",
    )
    seeds: PositiveInt | Seeds | None = Field(
        None,
        description="Makes one run for each `train.seed`: a list, or a number for so many, from 0.",
    )


@dataclass(frozen=True)
class Member:
    """One run of a sweep.

    Attributes:
        setting: its name without the seed; equal for runs that differ only in their seed.
        values: what it takes from the grid, by dotted key.
        seed: what it takes from `seeds`; None without them.
    """

    setting: str
    values: dict[str, Any]
    seed: int | None


Sweep = dict[str, Member]
"""The runs of a sweep, by name."""


class Range(Section):
    """Numbers between two bounds; whole ones if the key takes whole numbers."""

    low: float = Field(description="Smallest value.")
    high: float = Field(description="Largest value.")
    log: bool = Field(
        False, description="Whether values are drawn evenly by their logarithm; for learning rates."
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.low >= self.high:
            raise ValueError(
                f"high: got {self.high:g}, expected more than low ({self.low:g}); raise it"
            )
        if self.log and self.low <= 0:
            raise ValueError(
                f"low: got {self.low:g}, expected more than 0 with log: true; raise it"
            )
        return self


def _kind_of_values(written: Any) -> str:
    return "Range" if isinstance(written, Mapping | Range) else "list"


Values = Annotated[
    Annotated[Range, Tag("Range")] | Annotated[list[Any], Field(min_length=1), Tag("list")],
    Discriminator(_kind_of_values),
]


class Search(Section):
    """A search for the settings of a run with the lowest validation loss."""

    trials: PositiveInt = Field(
        description="Number of trainings. With a greater one, a search continues."
    )
    seed: Seed = Field(0, description="Seed for the choice of values.")
    space: Annotated[dict[DottedKey, Values], Field(min_length=1)] = Field(
        description="What to choose from, by dotted key of the run's `train`, `adapter` or "
        "`data.augmentation`: a range, as in `{train.learning_rate: {low: 1e-4, high: 1e-2}}`, or "
        "a list of values."
    )


# Name of the run in `config/smoke-test.yaml`.
SMOKE_TEST_RUN = "smoke-test"


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
    kto: Kto = Field(Kto(), description="The loss of runs on answers that are good or bad.")
    classification: Classification = Field(
        Classification(), description="The loss of runs on texts with labels."
    )
    distillation: Distillation | None = Field(
        None, description="A teacher that runs on text learn from too; `null` for none."
    )
    reward: Reward = Field(Reward(), description="The loss of reward models.")
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
    proofs: Proofs = execution_only(
        "refuse",
        description="What follows if a stage's result differs from what the plain libraries "
        "compute on a sample of the same rows: `refuse` stops the stage with both figures, `warn` "
        "prints them, `off` compares nothing. What several runs share has the strictest of "
        "theirs. Comparisons take at most 3 s or 2 % of a stage.",
    )
    tracking: list[Literal["tensorboard", "mlflow", "wandb"]] = execution_only(
        [],
        description="Trackers that show a run while it trains. Each needs the optional extra of "
        "its name, and is set up by environment variables of its own.",
    )


class Run(Grid, Sections):
    """A model fine-tuned on a dataset; its sections override `defaults` key by key."""

    model: ModelOrRun = Field(
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
    report: Report = Field(Report(), description="What the report says of the experiment.")
    runs_from: str | None = Field(
        None,
        description="A table with more runs, `.tsv` or `.csv`: a row is a run, and a column a "
        "dotted key, such as `train.learning_rate`; `run` is the name.",
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
        return self.runs_of(self.runs[run].model)

    def teachers(self, run: str) -> list[str]:
        """The runs that a run's teacher may be the model of, likewise."""
        section = self.runs[run].distillation
        return self.runs_of(section.teacher) if section else []

    def runs_of(self, model: ModelOrRun) -> list[str]:
        """The runs that a model may be of: one, or those of a sweep; none for a base model.

        A base model that is made of a run counts as that run.
        """
        if isinstance(model, str):
            base = self.models.get(model)
            return [base.run] if isinstance(base, RunModel) else []
        if isinstance(model, RunRef):
            return [model.run]
        return sorted(self.sweeps[model.best])

    def models_of(self, run: str) -> dict[str, ModelOrRun]:
        """What a run starts from and what its teacher is, by key."""
        section = self.runs[run]
        teacher = section.distillation and {"distillation.teacher": section.distillation.teacher}
        return {"model": section.model} | (teacher or {})

    def needs(self, run: str) -> list[str]:
        """The runs that have to be trained before a run."""
        models = self.models_of(run).values()
        return list(dict.fromkeys(name for model in models for name in self.runs_of(model)))

    def concurrent(self, run: str) -> int:
        """How many runs can train at the same time, this one among them.

        Those that it builds on and those that build on it can't; of the others, as many can as are
        at the same place of their chains.
        """
        related = {run}
        for direction in (self.needs, self._following.__getitem__):
            waiting = [run]
            for name in waiting:
                new = [other for other in direction(name) if other not in related]
                related.update(new)
                waiting += new
        others = Counter(self._depths.values())
        others.subtract(self._depths[name] for name in related)
        return 1 + max(others.values())

    @cached_property
    def _following(self) -> dict[str, list[str]]:
        """The runs that need each run."""
        following: dict[str, list[str]] = {run: [] for run in self.runs}
        for run in self.runs:
            for needed in self.needs(run):
                following[needed].append(run)
        return following

    @cached_property
    def _depths(self) -> dict[str, int]:
        """How many runs each run builds on, one after another."""
        depths: dict[str, int] = {}

        def depth(run: str) -> int:
            if run not in depths:
                depths[run] = 1 + max(map(depth, self.needs(run)), default=-1)
            return depths[run]

        for run in self.runs:
            depth(run)
        return depths

    def trained_by(self, run: str) -> dict[str, list[str]]:
        """The datasets that a run and those that it builds on train on, and which of them do.

        Runs of a sweep whose best one is the start go by the name of the sweep.
        """
        names, waiting = {run: run}, [run]
        for name in waiting:
            for model in self.models_of(name).values():
                for other in self.runs_of(model):
                    if other not in names:
                        names[other] = model.best if isinstance(model, BestRef) else other
                        waiting.append(other)
        found: dict[str, list[str]] = {}
        for name, shown in names.items():
            for dataset in self.runs[name].datasets:
                if shown not in found.setdefault(dataset, []):
                    found[dataset].append(shown)
        return found

    def proofs_of_model(self, model: str) -> Proofs:
        """What follows if a base model differs from what transformers reads: the strictest mode."""
        return self._strictest(run for run in self.runs if self.base_model(run) == model)

    def proofs_of_dataset(self, dataset: str) -> Proofs:
        """The same for a dataset."""
        return self._strictest(run for run in self.runs if dataset in self.runs[run].datasets)

    def _strictest(self, runs: Iterable[str]) -> Proofs:
        found = {self.runs[run].proofs for run in runs}
        modes: tuple[Proofs, ...] = ("refuse", "warn", "off")
        # What no run uses, such as a dataset that only a tokenizer is trained on, has the default.
        return next((mode for mode in modes if mode in found), "refuse")

    def base_model(self, run: str) -> str:
        """Name of the model at the root of a run's lineage."""
        model = self.runs[run].model
        # Runs of a sweep have the same, if others start from its best.
        return model if isinstance(model, str) else self.base_model(self.starts(run)[0])
