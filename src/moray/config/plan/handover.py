"""What becomes of a trained model: the export, the upload, files for other programs."""

from typing import Any

from moray.config.plan.data import modality
from moray.config.plan.rows import chat_template, start_folder
from moray.config.schema import Experiment, result_keys


def export_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What the model card says about a run, besides what training recorded."""
    section = experiment.runs[run]
    of_text = modality(experiment, run) == "text"
    template = {"chat_template": chat_template(experiment, run)} if of_text else {}
    return {
        **template,
        "datasets": section.datasets,
        **result_keys(section.export),
        "run": run,
        "start": start_folder(experiment, run),
    }


def push_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """Where a run's model is uploaded to, for a run that says it."""
    section = experiment.runs[run].push
    assert section
    return dict(sorted({"run": run, **result_keys(section)}.items()))


def gguf_config(experiment: Experiment, run: str) -> dict[str, Any]:
    """What a run's GGUF files depend on, besides its model, for a run that has any."""
    section = experiment.runs[run].gguf
    assert section
    return result_keys(section)
