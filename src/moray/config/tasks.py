"""Facts about tasks that are needed without importing `moray.tasks`."""

from dataclasses import dataclass

from moray.config.formats import TaskName


@dataclass(frozen=True)
class TaskFacts:
    """A task, for planning and for reporting.

    Attributes:
        prepared: folder of the stores that its datasets are prepared into.
        scored: what is scored, as `eval.json` counts it.
        headline: the figure of `eval.json` that runs are judged by.
        section_path: where in a run the section is that only this task's training reads; empty if
            there is none.
    """

    prepared: str
    scored: str
    headline: str
    section_path: str = ""

    @property
    def section_name(self) -> str:
        """The name of that section where a training is recorded."""
        return self.section_path.rpartition(".")[2]


TASKS: dict[TaskName, TaskFacts] = {
    "language": TaskFacts(prepared="results/tokens", scored="documents", headline="bits_per_byte"),
    "preference": TaskFacts(
        prepared="results/tokens",
        scored="pairs",
        headline="reward_accuracy",
        section_path="preference",
    ),
    "images": TaskFacts(
        prepared="results/pixels",
        scored="images",
        headline="accuracy",
        section_path="data.augmentation",
    ),
}

SCORED = tuple(task.scored for task in TASKS.values())
TASK_SECTIONS = tuple(task.section_name for task in TASKS.values() if task.section_name)
