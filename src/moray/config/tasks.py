"""Facts about tasks that are needed without importing `moray.tasks`."""

from dataclasses import dataclass
from typing import Literal

from moray.config.formats import TaskName

Modality = Literal["text", "images"]


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
    """

    modality: Modality
    scored: str
    headline: str
    section_path: str = ""

    @property
    def prepared(self) -> str:
        """The folder of the stores that its datasets are prepared into."""
        return {"text": "results/tokens", "images": "results/pixels"}[self.modality]

    @property
    def section_name(self) -> str:
        """The name of that section where a training is recorded."""
        return self.section_path.rpartition(".")[2]


TASKS: dict[TaskName, TaskFacts] = {
    "language": TaskFacts("text", scored="documents", headline="bits_per_byte"),
    "preference": TaskFacts(
        "text",
        scored="pairs",
        headline="reward_accuracy",
        section_path="preference",
    ),
    "images": TaskFacts(
        "images",
        scored="images",
        headline="accuracy",
        section_path="data.augmentation",
    ),
}

SCORED = tuple(task.scored for task in TASKS.values())
TASK_SECTIONS = tuple(task.section_name for task in TASKS.values() if task.section_name)
