"""The table of names: formats of datasets, tasks, and what tasks are of; facts about each.

A new task has its entries here, and all else in its folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Literal

TaskName = Literal[
    "language",
    "distillation",
    "preference",
    "kto",
    "classification",
    "reward",
    "token_classification",
    "images",
]
FormatName = Literal[
    "text",
    "prompt-completion",
    "instruction",
    "messages",
    "preference",
    "unpaired-preference",
    "classification",
    "reward",
    "token-classification",
    "images",
]
Modality = Literal["text", "labelled text", "images"]

# Documents and rows of text: the endings of their files.
_OF_TEXT = (
    *(
        f"{kind}{compression}"
        for kind in (".txt", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
        for compression in ("", ".gz", ".zst")
    ),
    ".parquet",
)


@dataclass(frozen=True)
class Format:
    """The rows of a format.

    Attributes:
        meaning: what a row is, and what of it is trained on, for the reference of the keys.
        columns: the columns of a source's rows, and whether a row must have them.
        kept: the columns that a dataset keeps, those of a `Document`.
        types: the Arrow types of those that aren't text.
        nested: the columns whose values can be lists or mappings, such as messages or words.
        classes: the columns whose values are names of classes: text or numbers.
        numbers: the columns whose values are numbers that aren't negative.
        chat: whether a row can be a conversation, which needs a chat template.
        answered: whether a row is a prompt with its answers, as text or as messages: text needs no
            chat template, and each answer is one turn.
        answers: number of answers that share a row of tokens.
        task: the task that it is for.
        endings: those of the files that a folder of `source: files` stands for.
    """

    meaning: str
    columns: dict[str, bool]
    kept: tuple[str, ...]
    types: Mapping[str, str] = field(default_factory=dict)
    nested: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    chat: bool = False
    answered: bool = False
    answers: int = 1
    task: TaskName = "language"
    endings: tuple[str, ...] = _OF_TEXT


FORMATS: dict[FormatName, Format] = {
    "text": Format("a document", {"text": True}, kept=("text",)),
    "prompt-completion": Format(
        "only the completion is trained on",
        {"prompt": True, "completion": True},
        kept=("prompt", "completion"),
    ),
    "instruction": Format(
        "an instruction, an optional input, and the output (Alpaca), rendered with a chat "
        "template; only the output is trained on",
        {"instruction": True, "input": False, "output": True, "system": False, "history": False},
        kept=("messages", "tools"),
        nested=("history",),
        chat=True,
    ),
    # `prompt` and `completion` together, as lists of messages, replace `messages`.
    "messages": Format(
        "a conversation in OpenAI's format (`role`, `content`, `tool_calls`) or ShareGPT's "
        "(`from`, `value`), rendered with a chat template; only what the assistant says is "
        "trained on",
        {
            "messages": True,
            "prompt": False,
            "completion": False,
            "tools": False,
            "system": False,
        },
        kept=("messages", "tools"),
        nested=("messages", "prompt", "completion", "tools"),
        chat=True,
    ),
    "preference": Format(
        "a prompt with a chosen and a rejected answer, as text or as messages; see "
        "[preference](preference.md)",
        {"prompt": False, "chosen": True, "rejected": True, "tools": False, "system": False},
        kept=("prompt", "chosen", "rejected", "tools"),
        nested=("prompt", "chosen", "rejected", "tools"),
        chat=True,
        answered=True,
        answers=2,
        task="preference",
    ),
    # `messages` are a prompt and its completion in one. A row of tokens also has the answer of
    # another document.
    "unpaired-preference": Format(
        "a prompt with one answer and whether it is good, as text or as messages; see "
        "[preference](preference.md#one-answer-good-or-bad-kto)",
        {
            "prompt": False,
            "completion": False,
            "messages": False,
            "label": True,
            "tools": False,
            "system": False,
        },
        kept=("prompt", "completion", "tools", "label"),
        types={"label": "bool"},
        nested=("prompt", "completion", "messages", "tools"),
        chat=True,
        answered=True,
        answers=2,
        task="kto",
    ),
    "classification": Format(
        "a text, or two, and its label: a word or a number, a list of them, or a number to "
        "predict; see [classification](classification.md)",
        {"text": True, "text_pair": False, "label": True},
        kept=("text", "text_pair", "label"),
        classes=("label",),
        task="classification",
    ),
    "reward": Format(
        "the same pairs, for a reward model; with the margin by which the chosen answer is better; "
        "see [reward models](reward.md)",
        {
            "prompt": False,
            "chosen": True,
            "rejected": True,
            "tools": False,
            "system": False,
            "margin": False,
        },
        kept=("prompt", "chosen", "rejected", "tools", "margin"),
        types={"margin": "float64"},
        nested=("prompt", "chosen", "rejected", "tools"),
        numbers=("margin",),
        chat=True,
        answered=True,
        task="reward",
    ),
    "token-classification": Format(
        "the words of a text and the tag of each, as lists; see "
        "[token-classification](token-classification.md)",
        {"tokens": True, "tags": True},
        kept=("tokens", "tags"),
        nested=("tokens", "tags"),
        task="token_classification",
    ),
    "images": Format(
        "an image and its label, in Parquet files or on the hub; see [images](images.md)",
        {"image": True, "label": True},
        kept=("image", "label"),
        types={"image": "binary", "label": "int64"},
        task="images",
        endings=(".parquet",),
    ),
}


@dataclass(frozen=True)
class ModalityFacts:
    """What datasets and models are of, for planning and for reporting.

    Attributes:
        task: the task in whose folder the modules are that all tasks of the modality share.
        prepared: the folder of the stores that datasets are prepared into.
        sources: the task in whose folder its sources are; by default, that one.
        stages: those that only its runs have, each with a rule `workflow/rules/{stage}.smk`.
        has_samples: whether one of them makes samples of what a model says.
        has_part: whether its runs have a part of their own in the report.
        has_tokens: whether rows are of tokens, so that a base has a tokenizer.
        data_keys: the keys of a run's `data` section that say how documents become rows; None for
            all of them, with the chat template.
        model_key: the key of a base model that names a dataset of this modality, of which the
            model then is; empty for that of models without such a key.
        libraries: what its datasets need besides, by the names of packages; the modules.
        extra: the extra of moray that has them.
        example: what a pipeline is called with, in examples; empty if it is a prompt.
    """

    task: TaskName
    prepared: str
    sources: TaskName | None = None
    stages: tuple[str, ...] = ()
    has_samples: bool = False
    has_part: bool = False
    has_tokens: bool = False
    data_keys: tuple[str, ...] | None = ()
    model_key: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)
    extra: str = ""
    example: str = ""


MODALITIES: dict[Modality, ModalityFacts] = {
    "text": ModalityFacts(
        "language",
        prepared="results/tokens",
        stages=("tokenize", "preview", "generate"),
        has_samples=True,
        has_part=True,
        has_tokens=True,
        data_keys=None,
    ),
    "labelled text": ModalityFacts(
        "classification",
        prepared="results/labelled",
        sources="language",
        stages=("tokenize_labelled", "classify"),
        has_samples=True,
        has_part=True,
        has_tokens=True,
        data_keys=("block_size",),
        model_key="classes_of",
        example='"I liked it."',
    ),
    "images": ModalityFacts(
        "images",
        prepared="results/pixels",
        stages=("decode", "predict"),
        has_samples=True,
        has_part=True,
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
            none. A finished run's task is recognised by it, and without one by where its rows are.
        searches_section: whether a search can choose values of that section.
        takes_mixtures: whether a run can have several datasets.
        has_reference: whether a run can train on its rows with what its start says of them, which
            the stage `reference` stores.
        has_checks: whether it refuses more keys of a run than its modality does.
        has_survey: whether it learns from the documents of a dataset what it needs to know, by
            `survey_of` of its module `survey`.
        has_part: whether its runs have a part in the report that isn't that of their modality.
        data_keys: keys of a run's `data` section that its rows depend on, besides those of its
            modality.
        example: what a pipeline is called with, in examples; by default, that of its modality.
    """

    modality: Modality
    scored: str
    headline: str
    section_path: str = ""
    searches_section: bool = False
    takes_mixtures: bool = False
    has_reference: bool = False
    has_checks: bool = False
    has_survey: bool = False
    has_part: bool = False
    data_keys: tuple[str, ...] = ()
    example: str = ""

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
    # Of runs on text with a teacher; datasets, scores and samples are those of language.
    "distillation": TaskFacts(
        "text",
        scored="documents",
        headline="bits_per_byte",
        section_path="distillation",
        takes_mixtures=True,
        has_checks=True,
    ),
    "preference": TaskFacts(
        "text",
        scored="pairs",
        headline="reward_accuracy",
        section_path="preference",
        has_reference=True,
        has_checks=True,
    ),
    "kto": TaskFacts(
        "text",
        scored="answers",
        headline="reward_auroc",
        section_path="kto",
        has_reference=True,
        has_checks=True,
        has_survey=True,
    ),
    "classification": TaskFacts(
        "labelled text",
        scored="texts",
        headline="accuracy",
        section_path="classification",
        has_survey=True,
    ),
    "reward": TaskFacts(
        "labelled text",
        scored="pairs",
        headline="accuracy",
        section_path="reward",
        has_part=True,
        data_keys=("long_documents",),
        example='"What is 2 + 2? It is 4."',
    ),
    "token_classification": TaskFacts(
        "labelled text",
        scored="texts",
        headline="accuracy",
        has_survey=True,
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


def sequence_length(format: FormatName, block_size: int) -> int:
    """Tokens of the longest sequence that a model gets, which has no neighbours in its row."""
    return block_size // FORMATS[format].answers


def modalities_of_key(key: str) -> list[Modality]:
    """The modalities of the datasets that a key of a base model can name."""
    return [name for name, facts in MODALITIES.items() if facts.model_key == key]


def modality_of_format(format: FormatName) -> Modality:
    """The modality of datasets of a format."""
    return TASKS[FORMATS[format].task].modality


def source_module(source: str, format: FormatName) -> str:
    """The module of a source of documents, by the names in the config."""
    facts = MODALITIES[modality_of_format(format)]
    return f"moray.tasks.{facts.sources or facts.task}.sources.{source.replace('-', '_')}"


SCORED = tuple(dict.fromkeys(task.scored for task in TASKS.values()))
TASK_SECTIONS = tuple(task.section_name for task in TASKS.values() if task.section_name)
MODEL_KEYS = tuple(dict.fromkeys(one.model_key for one in MODALITIES.values() if one.model_key))
