"""What is known of each task without its code, which is in `moray.tasks`."""

from dataclasses import dataclass
from typing import Literal

TaskName = Literal["language", "preference", "images"]


@dataclass(frozen=True)
class TaskFacts:
    """A task, for planning and for reporting.

    Attributes:
        prepared: folder of the stores that its datasets are prepared into.
        unit: what is scored, as `eval.json` counts it.
        headline: the figure of `eval.json` that runs are judged by.
        section: path of the section of a run that only this task's training reads, if there is one.
    """

    prepared: str
    unit: str
    headline: str
    section: str | None = None

    @property
    def section_name(self) -> str | None:
        """The name of that section where a training is recorded."""
        return self.section and self.section.rpartition(".")[2]


TASKS: dict[TaskName, TaskFacts] = {
    "language": TaskFacts("results/tokens", "documents", "bits_per_byte"),
    "preference": TaskFacts("results/tokens", "pairs", "reward_accuracy", "preference"),
    "images": TaskFacts("results/pixels", "images", "accuracy", "data.augmentation"),
}

UNITS = tuple(task.unit for task in TASKS.values())
SECTIONS = tuple(task.section_name for task in TASKS.values() if task.section_name)
