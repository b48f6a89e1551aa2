"""The tasks, by name: facts about them, and the modules in their folders."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from moray.config.formats import FORMATS, FormatName, TaskName

Modality = Literal["text", "images"]


@dataclass(frozen=True)
class ModalityFacts:
    """What datasets and models are of, for planning and for reporting.

    Attributes:
        task: the task in whose folder the modules are that all tasks of the modality share, such as
            its sources.
        prepared: the folder of the stores that datasets are prepared into.
        has_tokens: whether rows are of tokens, so that a base has a tokenizer, and a run's `data`
            section and chat template say how documents become rows.
        model_key: the key of a base model that says that it is of this modality, and names a
            dataset; empty for that of models without such a key.
        libraries: what its datasets need besides, by the names of packages; the modules.
        extra: the extra of moray that has them.
        example: what a pipeline is called with, in examples; empty if it is a prompt.
    """

    task: TaskName
    prepared: str
    has_tokens: bool = False
    model_key: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)
    extra: str = ""
    example: str = ""


MODALITIES: dict[Modality, ModalityFacts] = {
    "text": ModalityFacts(
        "language",
        prepared="results/tokens",
        has_tokens=True,
    ),
    "images": ModalityFacts(
        "images",
        prepared="results/pixels",
        model_key="classes_of",
        libraries={"Pillow": "PIL", "Matplotlib": "matplotlib"},
        extra="vision",
        example='"image.png"',
    ),
}


@dataclass(frozen=True)
class TaskFacts:
    """A task, for planning and for reporting.

    Attributes:
        modality: what its datasets and models are of. Tasks of one modality share base models and
            stages, such as export and generation.
        scored: what is scored, as `eval.json` counts it.
        headline: the figure of `eval.json` that runs are judged by.
        section_path: where in a run the section is that only this task reads; empty if there is
            none. A finished run's task is recognised by it, and is `language` without one.
        searches_section: whether a search can choose values of that section.
        takes_mixtures: whether a run can have several datasets.
        has_reference: whether a run trains on its rows with what its start says of them, which the
            stage `reference` stores.
        has_checks: whether it refuses more keys of a run than its modality does.
    """

    modality: Modality
    scored: str
    headline: str
    section_path: str = ""
    searches_section: bool = False
    takes_mixtures: bool = False
    has_reference: bool = False
    has_checks: bool = False

    @property
    def section_name(self) -> str:
        """The name of that section where a training is recorded."""
        return self.section_path.rpartition(".")[2]


TASKS: dict[TaskName, TaskFacts] = {
    "language": TaskFacts(
        "text",
        scored="documents",
        headline="bits_per_byte",
        takes_mixtures=True,
    ),
    "preference": TaskFacts(
        "text",
        scored="pairs",
        headline="reward_accuracy",
        section_path="preference",
        has_reference=True,
        has_checks=True,
    ),
    "images": TaskFacts(
        "images",
        scored="images",
        headline="accuracy",
        section_path="data.augmentation",
        searches_section=True,
    ),
}


def module_of(task: str, name: str) -> ModuleType:
    """A module in a task's folder, by their names, so that the other tasks aren't imported."""
    return import_module(f"moray.tasks.{task}.{name}")


def modality_of(model: Mapping[str, Any]) -> Modality:
    """The modality of a base model, by the keys of its section."""
    named = (
        name
        for name, facts in MODALITIES.items()
        if facts.model_key and model.get(facts.model_key) is not None
    )
    return next(named, "text")


def modality_of_format(format: FormatName) -> Modality:
    """The modality of datasets of a format."""
    return TASKS[FORMATS[format].task].modality


def source_module(source: str, format: FormatName) -> str:
    """The module of a source of documents, by the names in the config."""
    shared = MODALITIES[modality_of_format(format)].task
    return f"moray.tasks.{shared}.sources.{source.replace('-', '_')}"


SCORED = tuple(task.scored for task in TASKS.values())
TASK_SECTIONS = tuple(task.section_name for task in TASKS.values() if task.section_name)
