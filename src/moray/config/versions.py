"""Versions of results: what an upgrade runs again.

A stage runs again if the version of its results was raised since they were made. A person raises
it with the change that makes other results; `tests/golden` compares the results of small runs with
recorded ones, and fails if they differ under the same version.
"""

from moray.config.tasks import MODALITIES, TASKS
from moray.provenance.edits import edits_of

# By stage, and by task, modality, source or metric where they differ.
RESULTS = {
    "base_model images": 1,
    "base_model labelled text": 1,
    "base_model text": 1,
    "benchmark": 1,
    "card": 1,
    "choose": 1,
    "classify reward": 1,
    "classify": 1,
    "decode": 1,
    "download": 2,
    "evaluate classification": 1,
    "evaluate images": 1,
    "evaluate kto": 1,
    "evaluate language": 1,
    "evaluate preference": 1,
    "evaluate reward": 1,
    "evaluate token_classification": 1,
    "export images": 1,
    "export labelled text": 2,
    "export text": 2,
    "finetune classification": 3,
    "finetune distillation": 2,
    "finetune images": 2,
    "finetune kto": 2,
    "finetune language": 3,
    "finetune preference": 3,
    "finetune reward": 3,
    "finetune token_classification": 3,
    "generate": 1,
    "gguf": 1,
    "predict": 1,
    "push": 1,
    "reference": 1,
    "report": 2,
    "search": 1,
    "smoke_test": 1,
    "teacher": 1,
    "tokenize kto": 1,
    "tokenize language": 2,
    "tokenize preference": 1,
    "tokenize_labelled reward": 1,
    "tokenize_labelled": 1,
    "track": 1,
}


def version_of(stage: str, *names: str) -> str:
    """The version of a stage's results, which tells the workflow whether they are of this code.

    Args:
        stage: name of the stage.
        names: those of its task, modality or metrics, or the module of its source.

    Returns:
        Such as `finetune language 4`; if modules that it imports were edited, with their digest.
    """
    # A task of one's own has no version, but it is computed with the code of another.
    shared = [MODALITIES[TASKS[name].modality].task for name in TASKS if name in names]
    rows = [stage, *(f"{stage} {name}" for name in names)]
    if not any(row in RESULTS for row in rows):
        rows += [f"{stage} {name}" for name in shared]
    versions = [f"{row} {RESULTS[row]}" for row in rows if row in RESULTS] or [stage]
    # Code that a modality's tasks share lies in the folder of one of them.
    tasks = [MODALITIES[name].task for name in MODALITIES if name in names]
    edits = edits_of(stage, (*names, *tasks))
    return ", ".join([*versions, f"edited {edits}"] if edits else versions)
